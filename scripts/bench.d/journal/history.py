"""One entity's history in a journal of five million events about 500,000 entities, while a writer writes.

The worst case for a search: the events come in random order, so an entity's rows are in any frame. Every event makes
one transition.

Cold: a process of its own, after the system was asked to forget the journal's pages. First: a process of its own. Warm:
this process, for entities that were not asked for before. The writer is a thread of this process that journals events
as fast as it can, which leaves a look-up only every second turn of the interpreter. Beside them: reading the rows of
one segment.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from unittest import mock

from measure import Figures, Settings, Spread, print_table

from dispatcher import JournalConfig, JournalWriter
from dispatcher.journal import EVENTS, history, read_rows
from dispatcher.journal.format.columns import encode_rows
from dispatcher.journal.format.schema import EventRow, TransitionRow
from dispatcher.journal.format.segments import Manifest, SegmentFile, segments
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.history import entity_history
from dispatcher.journal.pacing import ReadingPace

EVENTS_OF_AN_ENTITY = 10
SEGMENT_BYTES = 64 * 1024 * 1024
FRAME_ROWS = 4096
LOOK_UPS = 10
KINDS = [("central", "RMContainerEventType", "FINISHED", "handled")]
MOVES = [("RMContainer", "RUNNING", "FINISHED", "COMPLETED", True)]
COLD = """
import sys, time
from dispatcher.journal.history import entity_history
started = time.perf_counter()
found = entity_history(sys.argv[1], sys.argv[2])
print(time.perf_counter() - started, len(found.transitions))
"""


def entity_name(number: int) -> str:
    return f"container_1445144423722_{number // 1000:04d}_01_{number % 1000:06d}"


def write_journal(folder: Path, events: int) -> int:
    """Returns how many entities the journal has."""
    entities, chosen = max(1, events // EVENTS_OF_AN_ENTITY), random.Random(1)
    folder.mkdir(parents=True)
    segment = SegmentFile(folder, 1, Summary(1))
    for first in range(1, events + 1, FRAME_ROWS):
        names = [entity_name(chosen.randrange(entities)) for _ in range(min(FRAME_ROWS, events + 1 - first))]
        at = range(first * 1000, (first + len(names)) * 1000, 1000)
        rows = [
            EventRow(0, entity=name, started_at=at_, queue_ns=9000, handling_ns=900)
            for name, at_ in zip(names, at, strict=True)
        ]
        moves = [TransitionRow(0, first + place, name, at[place]) for place, name in enumerate(names)]
        segment.append_rows(encode_rows(rows, moves, first, KINDS, MOVES))
        if segment.size >= SEGMENT_BYTES:
            segment.close(sync=True, recover_from=segment.number + 1)
            segment = SegmentFile(folder, segment.number + 1, segment.summary)
    segment.close(sync=True, recover_from=segment.number + 1)
    Manifest(1, segment.number, closed=True).write(folder, sync=True)
    return entities


class Writing:
    """A thread that journals events about an entity of its own, as the handler thread does."""

    def __init__(self, journal: Path) -> None:
        # Write-ahead mode alone continues a journal.
        self._writer = JournalWriter(journal, JournalConfig(write_ahead=True))
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.events = 0

    def _run(self) -> None:
        writer = self._writer
        kind = writer.kind(*KINDS[0])
        while not self._stopped.is_set():
            for _ in range(FRAME_ROWS):
                writer.seq += 1
                writer.at = time.time_ns()
                writer.rows.append(EventRow(kind, entity="written_meanwhile", started_at=writer.at))
            writer.flush()
            self.events += FRAME_ROWS

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._writer.close()


@contextmanager
def measured_pieces() -> Iterator[list[ReadingPace]]:
    """The paces of the look-ups made meanwhile: they know the most processor time between two waits."""
    paces: list[ReadingPace] = []

    def made(piece_s: float) -> ReadingPace:
        paces.append(ReadingPace(piece_s))
        return paces[-1]

    with mock.patch.object(history, "Pace", made):
        yield paces


def look_up_s(journal: Path, entity: str) -> float:
    started = time.perf_counter()
    entity_history(journal, entity)
    return time.perf_counter() - started


def first_s(journal: Path, entity: str) -> float:
    """A look-up in a process of its own; without the time to start Python."""
    done = subprocess.run([sys.executable, "-c", COLD, journal, entity], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[0])


def cold_s(journal: Path, entity: str) -> float:
    """As `first_s`, from the disk."""
    for path in journal.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        if hasattr(os, "posix_fadvise"):
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    return first_s(journal, entity)


def history_look_ups(settings: Settings) -> Figures:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_FOLDER")) as name:
        return _look_ups(settings, Path(name) / "journal")


def _look_ups(settings: Settings, journal: Path) -> Figures:
    events = settings.count(5_000_000)
    entities = write_journal(journal, events)
    chosen = random.Random(2)
    closed = segments(journal)
    size = sum(path.stat().st_size for path in closed)
    print(f"\nHistory: {events:,} events, {entities:,} entities, {len(closed)} segments, {size / 2**20:,.0f} MiB")

    def some() -> str:
        return entity_name(chosen.randrange(entities))

    scan_rate = _scan_rate(journal)
    colds = [cold_s(journal, some()) for _ in range(settings.repeats)]
    firsts = [first_s(journal, some()) for _ in range(settings.repeats)]
    with measured_pieces() as paces:
        look_up_s(journal, some())
        quiet = [look_up_s(journal, some()) for _ in range(LOOK_UPS)]
        with Writing(journal) as writing:
            cold_beside = [cold_s(journal, some())]
            started, before = time.perf_counter(), writing.events
            warm = [look_up_s(journal, some()) for _ in range(LOOK_UPS)]
            rate = (writing.events - before) / (time.perf_counter() - started)
    longest = max(pace.longest_s for pace in paces)
    print_table(
        "Milliseconds for one entity's history",
        {
            "warm, beside a busy writer": _ms(warm),
            "warm": _ms(quiet),
            "cold, pages dropped": _ms(colds),
            "cold, pages dropped, beside a busy writer": _ms(cold_beside),
            "first in its process": _ms(firsts),
        },
        digits=1,
    )
    print(f"The writer's {rate:,.0f} events/s meanwhile")
    print(f"Longest piece between two waits {longest * 1000:.2f} ms; reading rows instead: {scan_rate:,.0f} rows/s")
    return {
        "history.warm": statistics.median(warm) * 1000,
        "history.warm-highest": max(warm) * 1000,
        "history.cold": statistics.median(colds) * 1000,
        "history.first": statistics.median(firsts) * 1000,
        "history.piece": longest * 1000,
    }


def _scan_rate(journal: Path) -> float:
    """Rows per second of `read_rows`, of the first 100,000: all of them would take minutes."""
    started = time.perf_counter()
    count = sum(1 for _ in islice(read_rows(journal, EVENTS), 100_000))
    return count / (time.perf_counter() - started)


def _ms(seconds: list[float]) -> Spread:
    return Spread.of([each * 1000 for each in seconds])
