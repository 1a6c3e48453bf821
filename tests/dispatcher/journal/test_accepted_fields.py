"""The fields of accepted events as the payloads of their rows."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="the extra spark is not installed")
pytest.importorskip("starlette", reason="the extra web is not installed")

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter
from dispatcher.journal import EVENTS, entity_history, read_rows, tail
from dispatcher.ops.journals import ScanDeadline, WantedEvents, tail_rows
from pipeline.journal import read_batches

from ...kit.journals import Job, JobEvent, Posted, flip, frames_of, segment_path, write_event, write_frames


def line(number: int) -> bytes:
    return b'{"event_class":"Job","event_type":"ENDED","model":"Posted","event":{"number":%d}}' % number


def write(journal: Path, steps: list[int]) -> list[str | None]:
    """A journal of a few segments; returns the payload that each of its rows is to have.

    A step of 0 to 5 accepts one event more than that in one frame, 6 rolls, others end an event: one of those that were
    accepted, one that was not, one that has a payload of its own.
    """
    writer = JournalWriter(journal, JournalConfig(write_ahead=True))
    waiting: list[int] = []
    fields: dict[int, str] = {}
    expected: list[str | None] = []
    for number, step in enumerate(steps):
        if step <= 5:
            for each in range(number * 10, number * 10 + step + 1):
                waiting.append(writer.append_accepted(line(each)))
                fields[waiting[-1]] = f'{{"number":{each}}}'
        elif step == 6:
            writer.flush()
            writer.roll()
        elif step == 7 or not waiting:
            write_event(writer)
            expected.append(None)
        else:
            seq = waiting.pop(number * step % len(waiting))
            own = {"own": number} if step == 8 else None
            write_event(writer, JobEvent(payload=own), accepted_seq=seq)
            expected.append(json.dumps(own, separators=(",", ":")) if own else fields[seq])
    writer.close()
    return expected


@settings(max_examples=50)
@given(st.lists(st.integers(0, 12), max_size=60))
def test_every_reader_shows_the_fields_of_accepted_events(steps: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, "journal")

        expected = write(journal, steps)

        rows = list(read_rows(journal, EVENTS))
        assert [row.get("payload") for row in rows] == expected
        assert tail(journal, 7) == rows[-7:]
        last = tail_rows(journal, 7, WantedEvents(), None, ScanDeadline(), payloads=True)
        assert last == rows[-7:]
        history = entity_history(journal, "job_1", limit=9).transitions
        assert [each.payload for each in reversed(history)] == expected[-9:]
        batches = read_batches(journal, EVENTS, ["payload"])
        assert [payload for batch in batches for payload in batch["payload"].to_pylist()] == expected


def test_the_row_of_a_dispatchers_event_has_its_fields(journal: Path) -> None:
    writer = JournalWriter(journal, JournalConfig(write_ahead=True))
    dispatcher = AsyncDispatcher(name="central", journal=writer)
    dispatcher.register(Job, lambda event: 1 / (event.number - 2), events=Posted, on_error="continue")
    with dispatcher:
        for number in range(3):
            dispatcher.post(Posted(Job.ENDED, number))

    rows = list(read_rows(journal, EVENTS))

    assert [(row["outcome"], json.loads(row["payload"])["number"]) for row in rows] == [
        ("handled", 0),
        ("handled", 1),
        ("failed", 2),
    ]


def test_fields_that_the_journal_has_no_longer_are_missing(journal: Path) -> None:
    writer = JournalWriter(journal, JournalConfig(write_ahead=True))
    for number in range(4):
        seq = writer.append_accepted(line(number))
        if number % 2:
            writer.flush()
            writer.roll()
        write_frames(writer, accepted_seq=seq)
    writer.close()
    whole = [row["payload"] for row in read_rows(journal, EVENTS)]
    assert whole == [f'{{"number":{number}}}' for number in range(4)]

    # The second event's line is in the segment before its row's, and is found without the start of the latter.
    flip(segment_path(journal, 2), 0)
    assert [row["payload"] for row in read_rows(journal, EVENTS, on_damage=lambda line: None)] == whole
    segment = segment_path(journal, 1)
    [frame] = [frame for frame in frames_of(segment) if b'"number":1' in frame.payload]
    flip(segment, frame.end - 1)

    assert [row.get("payload") for row in read_rows(journal, EVENTS, on_damage=lambda line: None)] == [
        whole[0],
        None,
        *whole[2:],
    ]
    segment_path(journal, 2).unlink()
    assert [row.get("payload") for row in read_rows(journal, EVENTS, on_damage=lambda line: None)] == [whole[0], None]
