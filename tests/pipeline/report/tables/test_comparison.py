"""Two runs side by side."""

from __future__ import annotations

from typing import Any

import pytest

from .at_hand import in_order, of_relations

pytestmark = pytest.mark.long


def figures(rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [dict(zip(("subject", "metric", "unit", "value"), row, strict=True)) for row in rows]


def test_the_figures_of_both_runs_stand_side_by_side() -> None:
    before = [
        ("run", "span", "s", 8.0),
        ("run", "failed", "", 0.0),
        ("queue a", "p50", "s", None),
        ("gone", "x", "", 1.0),
    ]
    after = [("run", "span", "s", 6.0), ("run", "failed", "", 2.0), ("queue a", "p50", "s", 1.0), ("new", "x", "", 3.0)]

    found = of_relations(before_key_figures=figures(before), key_figures=figures(after))["comparison"]

    rows = [
        ("run", "span", "s", 8.0, 6.0, -0.25),
        ("run", "failed", "", 0.0, 2.0, None),
        ("queue a", "p50", "s", None, 1.0, None),
        ("gone", "x", "", 1.0, None, None),
        ("new", "x", "", None, 3.0, None),
    ]
    assert found == in_order(rows)
