"""Tables of what containers take of their nodes: each against literal rows."""

from __future__ import annotations

import pytest

from ...journal_builder import JournalBuilder
from .at_hand import in_order, of_journal, of_relations

pytestmark = pytest.mark.long


def test_containers_over_time_are_carried_forward() -> None:
    """The run has 1,000 ns, and an interval 5."""
    held = [("h1:1", 200, 300), ("h2:1", 200, 600), ("h2:1", 800, None)]
    rows = [
        {"container": f"c{n}", "node": node, "started_seq": at + n, "started_at": at, "ended_seq": end, "ended_at": end}
        for n, (node, at, end) in enumerate(held)
    ]

    found = of_relations(times=(0, 999, 1), containers=rows)["containers_over_time"]

    def most(node: str | None, bucket: int) -> int:
        of_node = [(start, end or 1000) for name, start, end in held if node in (name, None)]
        return sum(start < 5 * bucket + 5 and end >= 5 * bucket for start, end in of_node)

    expected = [(node, n, 5 * n, most(node, n)) for node in ("h1:1", "h2:1", None) for n in range(200)]
    assert found == in_order(expected)


def test_a_change_at_the_very_end_of_a_long_run_is_in_the_last_bucket(journal: JournalBuilder) -> None:
    """Divided as doubles, a time beyond 2^53 ns rounds up into a bucket that does not exist."""
    end_s = 20_000_000
    journal.allocate(1, "c", "h1:1", 1)
    journal.complete(2, "c", end_s)

    found = of_journal(journal)["containers_over_time"]

    assert sorted((row[0] or "", row[1]) for row in found) == [
        (node, bucket) for node in ("", "h1:1") for bucket in range(200)
    ]
