"""How numbers, times and quantities read."""

from __future__ import annotations

import time

import pytest

from dispatcher.util import figures
from dispatcher.util.figures import clock_time, duration, short_count, short_duration, size, sparkline

NOW_MS = 1_700_000_000_000


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "local_now", lambda: time.localtime(NOW_MS / 1000))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.44, "0.4"),
        (9.94, "9.9"),
        (12.6, "13"),
        (99_999, "99,999"),
        (100_000, "100k"),
        (4_600_000, "4.6M"),
        (-1234, "-1,234"),
        (1e18, "1.0e+06"),
    ],
)
def test_a_short_count_takes_seven_characters_at_most(number: float | None, text: str) -> None:
    assert short_count(number) == text
    assert len(short_count(number)) <= 7


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.000_012, "12 us"),
        (0.25, "250 ms"),
        (61.2, "61.2 s"),
        (99.97, "1 m 40 s"),
        (11_520, "3 h 12 m"),
        (352_800, "4 d 2 h"),
        (-1.0, "0 s"),
    ],
)
def test_a_short_duration_has_two_units_at_most(seconds: float | None, text: str) -> None:
    assert short_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, figures.NOTHING),
        (-1.0, "0 s"),
        (0, "0 s"),
        (5e-7, "500 ns"),
        (0.0123, "12.3 ms"),
        (0.9999, "1 s"),
        (12.345, "12.3 s"),
        (59.96, "1 min"),
        (61, "1 min 1 s"),
        (3599.6, "1 h"),
        (7_199, "1 h 59 min"),
        (86_400, "1 d"),
        (12_902_960.5, "149 d 8 h"),
    ],
)
def test_a_duration_is_written_in_its_largest_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_durations_of_one_unit_compare() -> None:
    assert [figures.plain_seconds(each) for each in (0.0123, 73.21, 1234.5)] == ["0.0123 s", "73.2 s", "1234 s"]
    assert [figures.plain_milliseconds(each) for each in (None, 12_345, 1_500_000_000)] == [
        "-",
        "0.012 ms",
        "1500.000 ms",
    ]


def test_quantities_are_written_without_useless_digits() -> None:
    assert figures.gibibytes(262_144) == "256 GiB"
    assert figures.gibibytes(1_500) == "1.46 GiB"
    assert figures.thousandths(460) == "0.46"
    assert figures.thousandths(0) == "0"
    assert figures.count(1_234_567) == "1,234,567"
    assert figures.decimal(1234.56) == "1,234.6"


def test_a_number_has_the_plural_of_its_noun() -> None:
    assert [figures.counted(number, "entity") for number in (0, 1, 1234)] == [
        "0 entities",
        "1 entity",
        "1,234 entities",
    ]
    assert figures.counted(2, "dead letter") == "2 dead letters"


def test_small_shares_have_a_decimal() -> None:
    assert [figures.percent(share) for share in (0, 0.0004, 0.004, 0.0996, 0.756, 1, 12.5, -0.05, None)] == [
        "0 %",
        "< 0.1 %",
        "0.4 %",
        "10 %",
        "76 %",
        "100 %",
        "1,250 %",
        "-5.0 %",
        figures.NOTHING,
    ]


def test_shares_to_compare_have_digits_enough() -> None:
    assert [figures.exact_percent(share) for share in (0, 0.00123, 0.0567, 0.756, None)] == [
        "0.0 %",
        "0.12 %",
        "5.7 %",
        "75.6 %",
        figures.NOTHING,
    ]


def test_a_moment_is_written_in_utc() -> None:
    assert figures.moment(1_700_000_000_999_999_999) == "2023-11-14 22:13:20 UTC"


@pytest.mark.parametrize(("number", "text"), [(None, "-"), (512, "512 B"), (121_000_000, "121 MB"), (1e18, "1e+03 PB")])
def test_a_size_is_in_powers_of_1000(number: float | None, text: str) -> None:
    assert size(number) == text


def test_shares_and_times_of_any_number_are_texts() -> None:
    assert figures.short_percent(0.123) == "12 %"
    assert clock_time(1e30) == f"@{1e27:.0f}"


def test_a_time_of_another_day_has_its_date() -> None:
    assert len(clock_time(NOW_MS)) == len("12:34:56")
    assert len(clock_time(NOW_MS - 86_400_000)) == len("07-01 12:34")
    assert len(clock_time(NOW_MS - 400 * 86_400_000)) == len("2024-07-01")


def test_a_sparkline_goes_from_zero_to_the_maximum() -> None:
    assert sparkline([0, 1, 4, 8], 4) == "▁▂▅█"
    assert sparkline([0, 0], 2) == "▁▁"
    assert sparkline([None, 5, None], 3) == " █ "
    assert sparkline([5], 3) == "  █"
    assert sparkline([], 3) == "   "


def test_a_column_of_a_narrow_sparkline_shows_the_highest_of_its_values() -> None:
    assert sparkline([0, 8, 0, 0, 4, 0], 3) == "█▁▅"


def test_columns_keep_their_values_while_new_ones_come() -> None:
    """Each second shifted the groups, so that the whole line flickered."""
    ever = [number % 7 * 1.0 for number in range(70)]

    lines = [sparkline(ever[end - 60 : end], 12, end) for end in range(60, 66)]

    assert lines[0][1:-1] in lines[1] or lines[0][2:] == lines[1][1:-1]
    assert all(line[:-1] == lines[1][:-1] for line in lines[1:5])
