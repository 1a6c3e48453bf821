"""Comparisons in a text, and the conditions that they place on frames and segments."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyarrow")


from dispatcher import DispatcherError
from dispatcher.journal import EVENTS

from .reading import comparisons_of, conditions_of


def test_comparisons_are_joined_by_and() -> None:
    text = "seq >= -1 AND Event_Type IN ('A and B', 'C') and started_at between 3 and 5 and redelivered == TRUE"

    assert comparisons_of(text) == [
        ("seq", ">=", -1),
        ("event_type", "in", ("A and B", "C")),
        ("started_at", ">=", 3),
        ("started_at", "<=", 5),
        ("redelivered", "=", True),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "seq",
        "seq = 1 and",
        "seq = 1 or seq = 2",
        "not seq = 1",
        "(seq = 1)",
        "seq = 1.5",
        "entity = 'it''s'",
        "1 = seq",
    ],
)
def test_anything_else_is_refused_with_what_can_be_said(text: str) -> None:
    with pytest.raises(DispatcherError, match=r"is not a comparison of a column with a value\. Join comparisons with"):
        comparisons_of(text)


@pytest.mark.parametrize(
    ("text", "ranges", "values"),
    [
        ("seq > 5 and seq < 9 and seq <= 20", {"seq": (6, 8)}, {}),
        ("outcome in ('failed', 'retried') and outcome = 'failed'", {}, {"outcome": frozenset({"failed"})}),
        ("event_type = 5 and entity = 'x' and seq = 'a' and outcome = true", {}, {}),  # Spark would convert these
    ],
)
def test_comparisons_become_conditions_where_a_frame_can_tell(text: str, ranges: Any, values: Any) -> None:
    assert conditions_of(text, EVENTS) == (ranges, values)
