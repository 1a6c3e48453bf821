"""Journals of millions of events: one replay of the sample workload, repeated at later times and under other ids.

So the kinds, the order and the durations of the events are real; only ids and times are made up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from dispatcher.journal.format.columns import encode_rows
from dispatcher.journal.format.schema import EVENTS, TRANSITIONS, EventRow, Kind, Row, Table, TransitionRow
from dispatcher.journal.format.segments import Manifest, SegmentFile
from dispatcher.journal.format.summary import Summary
from dispatcher.journal.read import read_rows
from statemachines.resourcemanager import Replay, ResourceManagerConfig
from statemachines.simulation.workload import read_workload

ROOT = Path(__file__).resolve().parents[3]
SEGMENT_BYTES = 64 * 1024 * 1024
FRAME_ROWS = 4096
OF_THE_CLUSTER = "_0_"  # in the ids of applications, attempts and containers: when the cluster started
JOBS = """
{"job.start.ms": 0, "job.queue.name": "q", "job.tasks":
  [{"container.host": "/r/node1", "container.start.ms": 0, "container.end.ms": 20}]}
"""
LIFE_NS = 3 * 3600 * 1_000_000_000  # from one copy's beginning to the next one's; the sample lasts less


class _Frame(NamedTuple):
    """A stretch of the replay that is one frame in each copy; names are positions among `_Replayed.names`."""

    kinds: list[int]
    names: list[int]
    payloads: list[int]
    ats: list[int]
    queue_ns: list[int]
    handling_ns: list[int]
    move_kinds: list[int]
    move_seqs: list[int]  # from the frame's first seq on
    move_names: list[int]
    move_ats: list[int]


class _Replayed(NamedTuple):
    events: int
    frames: list[_Frame]
    names: list[str | None]
    kinds: list[Kind]
    move_kinds: list[Kind]


def replay_sample(folder: Path) -> Path:
    """The journal of one replay, about 205,000 events."""
    workload = read_workload(ROOT / "config" / "workloads" / "sample")
    config = ResourceManagerConfig.model_validate({"metrics": {"enabled": False}})
    Replay(workload, config, journal_path=folder).run()
    return folder


def replay_jobs(folder: Path) -> Path:
    """The journal of a replay of two small jobs, of some dozens of events."""
    jobs = folder.with_name("jobs.json")
    jobs.write_text(JOBS)
    config = ResourceManagerConfig.model_validate({"metrics": {"enabled": False}})
    Replay(read_workload(jobs), config, journal_path=folder).run()
    return folder


def write_big_journal(sample: Path, folder: Path, events: int) -> int:
    """Write a journal of about `events` events, of whole copies of `sample`; returns how many there are."""
    replayed = _read(sample)
    copies = max(1, round(events / replayed.events))
    folder.mkdir(parents=True)
    segment = SegmentFile(folder, 1, Summary(1))
    for copy in range(copies):
        names = [name if name is None else name.replace(OF_THE_CLUSTER, f"_{copy}_") for name in replayed.names]
        for frame in replayed.frames:
            _append(segment, replayed, frame, names, copy * LIFE_NS)
            if segment.size >= SEGMENT_BYTES:
                segment.close(sync=False, recover_from=segment.number + 1)
                segment = SegmentFile(folder, segment.number + 1, segment.summary)
    segment.close(sync=False, recover_from=segment.number + 1)
    Manifest(1, segment.number, closed=True).write(folder, sync=False)
    return copies * replayed.events


def _append(segment: SegmentFile, replayed: _Replayed, frame: _Frame, names: list[str | None], shift_ns: int) -> None:
    """A frame of a copy, later by `shift_ns`."""
    first_seq, name_of = segment.summary.next_seq, names.__getitem__
    events = _rows(
        EVENTS,
        EventRow(kind=0),
        kind=frame.kinds,
        entity=map(name_of, frame.names),
        payload=map(name_of, frame.payloads),
        started_at=[at + shift_ns for at in frame.ats],
        queue_ns=frame.queue_ns,
        handling_ns=frame.handling_ns,
    )
    transitions = _rows(
        TRANSITIONS,
        TransitionRow(kind=0),
        kind=frame.move_kinds,
        seq=[first_seq + seq for seq in frame.move_seqs],
        entity=map(name_of, frame.move_names),
        at=[at + shift_ns for at in frame.move_ats],
    )
    segment.append_rows(encode_rows(events, transitions, first_seq, replayed.kinds, replayed.move_kinds, virtual=True))


def _rows(table: Table, blank: Row, **columns: Iterable[Any]) -> list[Row]:
    """Rows of a table from its columns; `blank` has what is not among them."""
    given = [columns.get(name, repeat(value)) for name, value in zip(table.row_fields, blank, strict=True)]
    return list(zip(*given, strict=False))


def _read(sample: Path) -> _Replayed:
    kinds: dict[Any, int] = {}
    move_kinds: dict[Any, int] = {}
    names: dict[str | None, int] = {}

    def place(among: dict[Any, int], key: Any) -> int:
        return among.setdefault(key, len(among))

    moves: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in read_rows(sample, TRANSITIONS):
        moves[(row["seq"] - 1) // FRAME_ROWS].append(row)
    events = list(read_rows(sample, EVENTS))
    frames = []
    for number, first in enumerate(range(0, len(events), FRAME_ROWS)):
        rows, made = events[first : first + FRAME_ROWS], moves[number]
        frames.append(
            _Frame(
                [place(kinds, tuple(r[name] for name in EVENTS.kind_columns)) for r in rows],
                [place(names, r.get("entity")) for r in rows],
                [place(names, r.get("payload")) for r in rows],
                [r["started_at"] for r in rows],
                [r["queue_ns"] for r in rows],
                [r["handling_ns"] for r in rows],
                [place(move_kinds, tuple(r[name] for name in TRANSITIONS.kind_columns)) for r in made],
                [r["seq"] - first - 1 for r in made],
                [place(names, r["entity"]) for r in made],
                [r["at"] for r in made],
            )
        )
    return _Replayed(len(events), frames, list(names), list(kinds), list(move_kinds))
