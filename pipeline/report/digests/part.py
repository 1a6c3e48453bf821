"""What a task does: reads its part of a journal, and writes its digest.

It imports nothing of Spark and little else: imports in the tasks are most of a small report's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from dispatcher.errors import JournalError
from dispatcher.journal.format.schema import EVENTS, TRANSITIONS
from pipeline.journal.arrow import arrow_schema
from pipeline.journal.scan import JournalPart, logged, scan_together
from pipeline.report.digests import event_digest, transition_digest
from pipeline.report.digests.digest import PartWriter, digest_together
from pipeline.report.digests.event_digest import ROWS_AT_ONCE
from pipeline.report.digests.transition_digest import Ends


class DigestedPart(NamedTuple):
    """A part of a journal, for one task, and where its digest goes. Picklable."""

    journal: Path
    parts: Sequence[JournalPart]
    folder: Path
    number: int
    """Of the part, in the order of seq."""
    ends: Ends
    span: tuple[int, int] | None
    """About the time that the whole run covers (Unix ns), if known."""
    fails_on_loss: bool = False
    """Whether a segment that no longer exists is an error; otherwise it is logged."""

    def write(self) -> None:
        """
        Raises:
            JournalError: a segment cannot be read, or no longer exists and `fails_on_loss` is set.
        """
        with PartWriter(self.folder, self.number) as writer:
            writer.write(digest_together(self.batches(), self.ends, self.span))

    def batches(self) -> Iterator[tuple[pa.RecordBatch, ...]]:
        """The part's rows as pairs of batches, of events and of transitions."""
        columns = ((EVENTS, event_digest.READS), (TRANSITIONS, transition_digest.READS))
        wanted = [(table, arrow_schema(table, names, coded=True)) for table, names in columns]
        report_gone = self._refuse if self.fails_on_loss else None
        return scan_together(self.parts, wanted, logged(self.journal), report_gone, rows=ROWS_AT_ONCE)

    def _refuse(self, line: str) -> None:
        raise JournalError(
            f"{self.journal}: {line}, and the report has not counted it. "
            "To start over with the remaining segments, name another folder for the report."
        )
