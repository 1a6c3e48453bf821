"""Axes: places and ticks."""

from __future__ import annotations

import pytest

from pipeline.report.plots.scales import Scale, durations, linear, powers_of_ten


def texts(scale: Scale) -> list[str]:
    return [tick.text for tick in scale.ticks]


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (7, ["0", "2", "4", "6", "8"]),
        (0.31, ["0.0", "0.1", "0.2", "0.3", "0.4"]),
        (1452, ["0", "500", "1,000", "1,500"]),
        (0.0084, ["0.000", "0.002", "0.004", "0.006", "0.008", "0.010"]),
    ],
)
def test_ticks_are_at_round_numbers_and_the_axis_ends_at_one(high: float, expected: list[str]) -> None:
    scale = linear(0, high)

    assert texts(scale) == expected
    assert scale.share(scale.ticks[-1].value) == 1
    assert scale.high >= high


def test_an_axis_may_end_between_ticks() -> None:
    scale = linear(0, 2.4, to_ticks=False)

    assert texts(scale) == ["0.0", "0.5", "1.0", "1.5", "2.0"]
    assert scale.share(2.4) == 1


def test_counts_have_no_ticks_at_halves() -> None:
    assert texts(linear(0, 2, is_whole=True)) == ["0", "1", "2"]


def test_negative_values_have_room_on_the_left() -> None:
    scale = linear(-50, 100, unit=" %")

    assert texts(scale) == ["-50 %", "0 %", "50 %", "100 %"]
    assert scale.share(0) == pytest.approx(1 / 3)


def test_an_axis_without_a_length_gets_one() -> None:
    assert linear(0, 0).high > 0


def test_values_outside_an_axis_go_to_its_ends() -> None:
    scale = linear(0, 10)

    assert (scale.share(-1), scale.share(5), scale.share(11)) == (0, 0.5, 1)


def test_durations_have_ticks_from_the_floor_to_the_longest() -> None:
    scale = durations(1e-3, 150.0)

    assert texts(scale) == ["\u2264 1 ms", "10 ms", "100 ms", "1 s", "10 s", "1 min"]
    assert 0 < scale.share(1e-3) < scale.share(0.1) < scale.share(150.0) < 1
    assert scale.share(0.0) == 0


def test_powers_of_ten_enclose_the_values_and_a_short_axis_has_ticks_between() -> None:
    assert texts(powers_of_ten(3e-6, 4e-3)) == ["1 \u00b5s", "10 \u00b5s", "100 \u00b5s", "1 ms", "10 ms"]
    assert texts(powers_of_ten(2e-3, 4e-3)) == ["1 ms", "2 ms", "5 ms", "10 ms"]
    assert powers_of_ten(1e-6, 8e-5).share(1e-5) == pytest.approx(0.5)
