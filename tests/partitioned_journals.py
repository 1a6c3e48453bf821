"""A partitioned journal for tests of its readers."""

from __future__ import annotations

from pathlib import Path

from dispatcher import PartitionedJournal

from .journal_rows import begin, end


def write_partitioned(path: Path, *partitions: int) -> Path:
    """Each partition has so many events, about nodes of its own, each with a transition."""
    journal = PartitionedJournal(path)
    for number, (writer, events) in enumerate(zip(journal.open(len(partitions)), partitions, strict=True)):
        for event in range(events):
            begin(writer, (event * len(partitions) + number + 1) * 1_000_000_000)
            writer.origin().add_transition("RMNode", f"node_{number}_{event}", "NEW", "STARTED", "RUNNING", valid=True)
            end(writer, f"rm-{number}", "RMNodeEventType", "STARTED", "handled", entity=f"node_{number}_{event}")
    journal.close()
    return path
