"""Axes: places and ticks."""

from __future__ import annotations

import pytest

from pipeline.report.plots.scales import Scale, durations, linear, powers_of_ten


@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (linear(0, 7), "0 | 2 | 4 | 6 | 8"),
        (linear(0, 0.31), "0.0 | 0.1 | 0.2 | 0.3 | 0.4"),
        (linear(0, 1452), "0 | 500 | 1,000 | 1,500"),
        (linear(0, 0.0084), "0.000 | 0.002 | 0.004 | 0.006 | 0.008 | 0.010"),
        (linear(0, 2.4, to_ticks=False), "0.0 | 0.5 | 1.0 | 1.5 | 2.0"),
        (linear(0, 2, is_whole=True), "0 | 1 | 2"),
        (linear(-50, 100, unit=" %"), "-50 % | 0 % | 50 % | 100 %"),
        (durations(1e-3, 150.0), "\u2264 1 ms | 10 ms | 100 ms | 1 s | 10 s | 1 min"),
        (powers_of_ten(3e-6, 4e-3), "1 \u00b5s | 10 \u00b5s | 100 \u00b5s | 1 ms | 10 ms"),
        (powers_of_ten(2e-3, 4e-3), "1 ms | 2 ms | 5 ms | 10 ms"),
    ],
)
def test_ticks_are_at_round_numbers(scale: Scale, ticks: str) -> None:
    assert " | ".join(tick.text for tick in scale.ticks) == ticks


@pytest.mark.parametrize(
    ("scale", "value", "share"),
    [
        (linear(0, 7), 8, 1),  # it ends at a tick
        (linear(0, 2.4, to_ticks=False), 2.4, 1),
        (linear(-50, 100, unit=" %"), 0, pytest.approx(1 / 3)),
        (linear(0, 10), -1, 0),
        (linear(0, 10), 5, 0.5),
        (linear(0, 10), 11, 1),
        (durations(1e-3, 150.0), 0.0, 0),
        (powers_of_ten(1e-6, 8e-5), 1e-5, pytest.approx(0.5)),
    ],
)
def test_a_value_has_its_share_of_the_axis_and_one_outside_goes_to_an_end(
    scale: Scale, value: float, share: float
) -> None:
    assert scale.share(value) == share


def test_durations_have_room_on_both_sides() -> None:
    scale = durations(1e-3, 150.0)

    assert 0 < scale.share(1e-3) < scale.share(0.1) < scale.share(150.0) < 1


@pytest.mark.parametrize("high", [0, 7, 0.31, 1452, 0.0084])
def test_an_axis_has_a_length_and_room_for_the_greatest_value(high: float) -> None:
    assert linear(0, high).high >= max(high, 1e-9)
