"""Warnings that repeat."""

from __future__ import annotations

import logging

import pytest

from pipeline.rare_log import RareLog


def test_a_warning_that_repeats_is_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    rare = RareLog(logging.getLogger("test"), lambda: now_s)

    for moment_s in (0.0, 0.1, 59.9, 60.0, 60.1, 200.0, 300.0):
        now_s = moment_s
        rare.warning(f"away at {moment_s}")

    assert caplog.messages == [
        "away at 0.0",
        "away at 60.0 (2 more since the last line)",
        "away at 200.0 (1 more since the last line)",
        "away at 300.0",
    ]
