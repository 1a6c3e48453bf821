"""How the report writes numbers, times and quantities."""

from __future__ import annotations

import pytest

from pipeline.report.page import quantities


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),  # noqa: RUF001 (the dash is what is shown)
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
    assert quantities.duration(seconds) == text


def test_quantities_are_written_without_useless_digits() -> None:
    assert quantities.memory(262_144) == "256 GiB"
    assert quantities.memory(1_500) == "1.46 GiB"
    assert quantities.thousandths(460) == "0.46"
    assert quantities.thousandths(0) == "0"
    assert quantities.count(1_234_567) == "1,234,567"
    assert quantities.decimal(1234.56) == "1,234.6"


def test_small_shares_have_a_decimal() -> None:
    assert [quantities.percent(share) for share in (0, 0.004, 0.0996, 0.1, 0.756, 1, 12.5, -0.05, None)] == [
        "0 %",
        "0.4 %",
        "10.0 %",
        "10 %",
        "76 %",
        "100 %",
        "1,250 %",
        "-5.0 %",
        quantities.NOTHING,
    ]


def test_a_moment_is_written_in_utc() -> None:
    assert quantities.moment(1_700_000_000_999_999_999) == "2023-11-14 22:13:20 UTC"
