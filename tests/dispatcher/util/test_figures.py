"""How numbers, times and quantities read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.util import figures

NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "local_now", lambda: time.localtime(NOW_MS / 1000))


WRITTEN: list[tuple[Callable[[Any], str], dict[Any, str]]] = [
    (
        figures.short_count,
        {
            None: "-",
            0: "0",
            0.44: "0.4",
            9.94: "9.9",
            12.6: "13",
            99_999: "99,999",
            100_000: "100k",
            4_600_000: "4.6M",
            -1234: "-1,234",
            1e18: "1.0e+06",
        },
    ),
    (
        figures.short_duration,
        {
            None: "-",
            0: "0 s",
            0.000_012: "12 us",
            0.25: "250 ms",
            61.2: "61.2 s",
            99.97: "1 m 40 s",
            11_520: "3 h 12 m",
            352_800: "4 d 2 h",
            -1.0: "0 s",
        },
    ),
    (
        figures.duration,
        {
            None: figures.NOTHING,
            -1.0: "0 s",
            0: "0 s",
            5e-7: "500 ns",
            0.0123: "12.3 ms",
            0.9999: "1 s",
            12.345: "12.3 s",
            59.96: "1 min",
            61: "1 min 1 s",
            3599.6: "1 h",
            7_199: "1 h 59 min",
            86_400: "1 d",
            12_902_960.5: "149 d 8 h",
        },
    ),
    (figures.plain_seconds, {0.0123: "0.0123 s", 73.21: "73.2 s", 1234.5: "1234 s"}),
    (figures.plain_milliseconds, {None: "-", 12_345: "0.012 ms", 1_500_000_000: "1500.000 ms"}),
    (figures.gibibytes, {262_144: "256 GiB", 1_500: "1.46 GiB"}),
    (figures.thousandths, {460: "0.46", 0: "0"}),
    (figures.count, {1_234_567: "1,234,567"}),
    (figures.decimal, {1234.56: "1,234.6"}),
    (
        figures.percent,
        {
            0: "0 %",
            0.0004: "< 0.1 %",
            0.004: "0.4 %",
            0.0996: "10 %",
            0.756: "76 %",
            1: "100 %",
            12.5: "1,250 %",
            -0.05: "-5.0 %",
            None: figures.NOTHING,
        },
    ),
    (
        figures.exact_percent,
        {0: "0.0 %", 0.00123: "0.12 %", 0.0567: "5.7 %", 0.756: "75.6 %", None: figures.NOTHING},
    ),
    (figures.short_percent, {0.123: "12 %"}),
    (figures.size, {None: "-", 512: "512 B", 121_000_000: "121 MB", 1e18: "1e+03 PB"}),
    (figures.clock_time, {1e30: f"@{1e27:.0f}"}),
]


@pytest.mark.parametrize(("write", "texts"), WRITTEN, ids=[write.__name__ for write, _ in WRITTEN])
def test_a_figure_is_written(write: Callable[[Any], str], texts: dict[Any, str]) -> None:
    assert {number: write(number) for number in texts} == texts


def test_a_short_count_takes_seven_characters_at_most() -> None:
    assert max(len(figures.short_count(10.0**power)) for power in range(-3, 19)) <= 7


def test_a_number_has_the_plural_of_its_noun() -> None:
    assert [figures.counted(number, "entity") for number in (0, 1, 1234)] == [
        "0 entities",
        "1 entity",
        "1,234 entities",
    ]
    assert figures.counted(2, "dead letter") == "2 dead letters"


def test_a_moment_is_written_in_utc() -> None:
    assert figures.moment(1_700_000_000_999_999_999) == "2023-11-14 22:13:20 UTC"


def test_a_time_of_another_day_has_its_date() -> None:
    assert len(figures.clock_time(NOW_MS)) == len("12:34:56")
    assert len(figures.clock_time(NOW_MS - 86_400_000)) == len("07-01 12:34")
    assert len(figures.clock_time(NOW_MS - 400 * 86_400_000)) == len("2024-07-01")


def test_a_sparkline_goes_from_zero_to_the_maximum() -> None:
    assert figures.sparkline([0, 1, 4, 8], 4) == "▁▂▅█"
    assert figures.sparkline([0, 0], 2) == "▁▁"
    assert figures.sparkline([None, 5, None], 3) == " █ "
    assert figures.sparkline([5], 3) == "  █"
    assert figures.sparkline([], 3) == "   "


def test_a_column_of_a_narrow_sparkline_shows_the_highest_of_its_values() -> None:
    assert figures.sparkline([0, 8, 0, 0, 4, 0], 3) == "█▁▅"


def test_columns_keep_their_values_while_new_ones_come() -> None:
    """Each second shifted the groups, so that the whole line flickered."""
    ever = [number % 7 * 1.0 for number in range(70)]

    lines = [figures.sparkline(ever[end - 60 : end], 12, end) for end in range(60, 66)]

    assert lines[0][1:-1] in lines[1] or lines[0][2:] == lines[1][1:-1]
    assert all(line[:-1] == lines[1][:-1] for line in lines[1:5])
