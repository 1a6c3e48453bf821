"""What a task does: reads its part of a journal, and writes its digest.

Apart from Spark, so that a task's Python imports no more than this needs: that is most of a small report's time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from dispatcher.journal.format.schema import EVENTS, TRANSITIONS
from pipeline.journal.arrow import arrow_schema
from pipeline.journal.scan import Part, logged, scan_together
from pipeline.report.digests import event_digest, transition_digest
from pipeline.report.digests.digest import PartWriter, digest_together
from pipeline.report.digests.event_digest import ROWS_AT_ONCE
from pipeline.report.digests.transition_digest import Ends


class DigestedPart(NamedTuple):
    """A part of a journal, for one task, and where its digest goes. Picklable."""

    journal: Path
    parts: Sequence[Part]
    folder: Path
    number: int
    """Of the part, in the order of seq."""
    ends: Ends
    span: tuple[int, int] | None
    """About the time that the whole run covers (Unix ns), if known."""

    def write(self) -> None:
        """
        Raises:
            JournalError: a segment cannot be read.
        """
        with PartWriter(self.folder, self.number) as writer:
            writer.write(digest_together(self.batches(), self.ends, self.span))

    def batches(self) -> Iterator[tuple[pa.RecordBatch, ...]]:
        """The part's rows as pairs of batches, of events and of transitions."""
        columns = ((EVENTS, event_digest.READS), (TRANSITIONS, transition_digest.READS))
        wanted = [(table, arrow_schema(table, names, coded=True)) for table, names in columns]
        return scan_together(self.parts, wanted, logged(self.journal), rows=ROWS_AT_ONCE)
