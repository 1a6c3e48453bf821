from __future__ import annotations

import pytest

from dispatcher.cli.ops.figures import clock_time, count, duration, share, size, sparkline

from .fake_daemon import NOW_MS


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
def test_a_count_takes_seven_characters_at_most(number: float | None, text: str) -> None:
    assert count(number) == text
    assert len(count(number)) <= 7


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
def test_a_duration_has_two_units_at_most(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(None, "-"), (512, "512 B"), (121_000_000, "121 MB"), (1e18, "1e+03 PB")])
def test_a_size_is_in_powers_of_1000(number: float | None, text: str) -> None:
    assert size(number) == text


def test_shares_and_times_of_any_number_are_texts() -> None:
    assert share(0.123) == "12 %"
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
