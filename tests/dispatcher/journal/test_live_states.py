"""The live entities of a journal: read at a start, kept by snapshots, through retention, kills and damage."""

from __future__ import annotations

import json
import logging
import tempfile
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, JournalConfig, JournalError, JournalWriter
from dispatcher.journal import TRANSITIONS, read_rows, verify
from dispatcher.journal import keeper as keeper_module
from dispatcher.journal import live_states as live_states_module
from dispatcher.journal.format import frames as frames_module
from dispatcher.journal.format.frames import ACCEPTED, ROWS, SNAPSHOT, Frame, FrameReader
from dispatcher.journal.format.live_states import LastStates, StatesAt, decode_states, encode_states
from dispatcher.journal.format.segments import open_segment_path, open_segments, segment_path, segments
from dispatcher.journal.read import frames_in

from ...journal_rows import begin, end
from ...kit import TIMEOUT_S, until
from .conftest import after_a_crash, flip

Open = Callable[..., JournalWriter]
ENDS = frozenset({"ENDED"})
NEVER = 10**9


class Move(Enum):
    MADE = 1


class State(Enum):
    NEW = 1
    OPEN = 2
    HELD = 3
    ENDED = 4


def move(writer: JournalWriter, entity: str, to: State, machine: str = "Order", *, valid: bool = True) -> None:
    """One event, which makes one transition."""
    begin(writer, 1000)
    writer.transition(machine, entity, State.NEW, Move.MADE, to, valid=valid)
    end(writer, "shop", "Move", "MADE", "handled", entity=entity)


def restore(
    writer: JournalWriter, machine: str = "Order", *, every: int = NEVER, every_s: float = 1e6
) -> dict[str, str]:
    return writer.restore_states(machine, ENDS, snapshot_transitions=every, snapshot_s=every_s)


def read(path: Path, machine: str = "Order") -> dict[str, str]:
    """As a restore, from any copy of a journal."""
    return live_states_module.read_states(path, machine, ENDS, 0).states


def replayed(path: Path, machine: str = "Order") -> dict[str, str]:
    """The reference: what all rows of the journal lead to."""
    states: dict[str, str] = {}
    for row in read_rows(path, TRANSITIONS, on_damage=lambda line: None):
        if row["machine"] == machine and row["valid"]:
            states[row["entity"]] = row["to_state"]
    return {entity: state for entity, state in states.items() if state not in ENDS}


def flush(writer: JournalWriter) -> None:
    """Write the rows, and wait for the snapshot that is due then."""
    writer.flush()
    live: Any = writer._live_states
    until(lambda: not any(each._is_writing for each in live.values()))


def snapshots(journal: Path) -> list[StatesAt]:
    return [decode_states(frame.payload) for _, frame in snapshot_frames(journal)]


def snapshot_frames(journal: Path) -> list[tuple[Path, Frame]]:
    return [
        (segment, found)
        for segment in (*segments(journal), *open_segments(journal))
        for found in frames_in(segment)
        if isinstance(found, Frame) and found.header.kind == SNAPSHOT
    ]


def closed(journal: Path) -> list[int]:
    return [int(path.stem.rpartition("-")[2]) for path in segments(journal)]


def test_refused_transitions_and_other_machines_change_nothing(open_writer: Open) -> None:
    writer = open_writer(write_ahead=True)
    move(writer, "a", State.OPEN)
    move(writer, "a", State.HELD, valid=False)
    move(writer, "a", State.HELD, machine="Parcel")
    writer.close()

    writer = open_writer(write_ahead=True)
    assert (restore(writer), restore(writer, "Parcel")) == ({"a": "OPEN"}, {"a": "HELD"})


def test_the_first_frame_and_then_every_so_many_transitions_bring_a_snapshot(open_writer: Open, journal: Path) -> None:
    writer = open_writer()
    restore(writer, every=3)

    for number in range(7):
        move(writer, f"order_{number % 2}", State.OPEN)
        flush(writer)

    assert [at.seq for at in snapshots(journal)] == [2, 5, 8]
    assert snapshots(journal)[-1].states == {"order_0": "OPEN", "order_1": "OPEN"}
    assert verify(journal).problems == ()


def test_many_entities_space_the_snapshots_further_apart(open_writer: Open, journal: Path) -> None:
    writer = open_writer()
    restore(writer, every=2)

    for number in range(20):
        move(writer, f"order_{number}", State.OPEN)
        flush(writer)

    assert [at.seq for at in snapshots(journal)] == [2, 4, 7, 13]


def test_time_brings_a_snapshot(open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(live_states_module, "monotonic", lambda: now_s)
    writer = open_writer()
    restore(writer, every_s=60)
    move(writer, "a", State.OPEN)
    flush(writer)
    move(writer, "b", State.OPEN)
    flush(writer)
    before = len(snapshots(journal))

    now_s += 60
    move(writer, "c", State.OPEN)
    flush(writer)

    assert (before, [at.seq for at in snapshots(journal)]) == (1, [2, 4])


def test_a_snapshot_has_the_transitions_of_written_rows_only(open_writer: Open, journal: Path) -> None:
    """The journal's own thread writes rows while an event is in hand, whose transitions are not in a frame yet."""
    writer = open_writer()
    restore(writer)
    move(writer, "a", State.OPEN)
    begin(writer, 2000)
    writer.transition("Order", "b", State.NEW, Move.MADE, State.OPEN, valid=True)

    writer._append_rows(amid_event=True)
    live: Any = writer._live_states
    until(lambda: not live["Order"]._is_writing)

    assert snapshots(journal)[-1].states == {"a": "OPEN"}
    end(writer, "shop", "Move", "MADE", "handled")


def test_a_restart_reads_the_newest_snapshot_and_the_rows_behind_it(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(write_ahead=True)
    restore(writer, every=50)
    for number in range(120):
        move(writer, f"order_{number % 20}", State.HELD if number > 100 else State.OPEN)
        if number % 10 == 9:
            flush(writer)
        if number == 30:
            writer.roll()
    writer.close()
    decoded: list[int] = []
    decode = live_states_module.decode_rows
    monkeypatch.setattr(live_states_module, "decode_rows", lambda rows: decoded.append(1) or decode(rows))

    states = restore(open_writer(write_ahead=True))

    assert states == replayed(journal)
    assert len(decoded) == 1


def test_retention_keeps_what_the_last_two_snapshots_need(open_writer: Open, journal: Path) -> None:
    writer = open_writer(write_ahead=True, retention_bytes=1)
    restore(writer, every=2)
    kept = []
    for number in range(8):
        move(writer, f"order_{number}", State.OPEN)
        flush(writer)
        writer.roll()
        kept.append(closed(journal)[0])
    writer.close()

    first_needed = [at.segment for at in snapshots(journal)]
    assert first_needed[-2] >= kept[-1] > 1
    assert restore(open_writer(write_ahead=True, retention_bytes=1)) == {f"order_{n}": "OPEN" for n in range(8)}


def test_retention_removes_no_rows_before_there_are_two_snapshots(open_writer: Open, journal: Path) -> None:
    writer = open_writer(retention_bytes=1)
    restore(writer)

    for number in range(5):
        move(writer, f"order_{number}", State.OPEN)
        flush(writer)
        writer.roll()

    assert closed(journal) == [1, 2, 3, 4, 5]


def test_a_snapshot_of_an_earlier_run_is_kept_until_there_is_another_one(open_writer: Open, journal: Path) -> None:
    config = {"write_ahead": True, "retention_bytes": 1}
    writer = open_writer(**config)
    restore(writer, every=1)
    for number in range(3):
        move(writer, f"order_{number}", State.OPEN)
        flush(writer)
        writer.roll()
    writer.close()

    writer = open_writer(**config)
    restore(writer)
    writer.log.retain()

    assert read(journal) == {f"order_{number}": "OPEN" for number in range(3)}


def test_rows_that_are_missing_are_logged(open_writer: Open, journal: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = open_writer()
    for number in range(3):
        move(writer, f"order_{number}", State.OPEN)
        flush(writer)
    writer.close()
    [_, second, _] = [
        each for each in frames_in(segment_path(journal, 1)) if isinstance(each, Frame) and each.header.kind == ROWS
    ]
    flip(segment_path(journal, 1), second.offset + 70)

    with caplog.at_level(logging.ERROR):
        states = live_states_module.read_states(journal, "Order", ENDS, 4).states

    assert states == {"order_0": "OPEN", "order_2": "OPEN"}
    assert "the rows of events 2 to 2 are missing" in caplog.text


def test_states_cannot_be_restored_twice(open_writer: Open) -> None:
    writer = open_writer()
    restore(writer)

    with pytest.raises(JournalError, match="states of Order were restored already"):
        restore(writer)


def test_states_cannot_be_restored_once_there_are_rows(open_writer: Open) -> None:
    writer = open_writer()
    move(writer, "a", State.OPEN)

    with pytest.raises(JournalError, match="the states of Order cannot be restored once"):
        restore(writer)


def test_states_cannot_be_restored_once_the_dispatcher_has_started(journal: Path) -> None:
    writer = JournalWriter(journal)
    with (
        AsyncDispatcher(name="shop", journal=writer),
        pytest.raises(JournalError, match="cannot be restored once shop has started"),
    ):
        restore(writer)


def test_a_snapshot_without_a_thread_comes_later(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, has_threads = 100.0, False
    start = live_states_module.try_to_start
    monkeypatch.setattr(live_states_module, "monotonic", lambda: now_s)
    monkeypatch.setattr(live_states_module, "try_to_start", lambda thread: has_threads and start(thread))
    writer = open_writer()
    restore(writer)
    move(writer, "a", State.OPEN)
    flush(writer)
    assert snapshots(journal) == []

    has_threads, now_s = True, 102.0
    move(writer, "b", State.OPEN)
    flush(writer)

    assert [at.states for at in snapshots(journal)] == [{"a": "OPEN", "b": "OPEN"}]


def test_one_snapshot_is_written_at_a_time(open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, is_encoding, goes_on = live_states_module.encode_states, threading.Event(), threading.Event()

    def encode_slowly(*arguments: Any) -> bytes:
        is_encoding.set()
        assert goes_on.wait(TIMEOUT_S)
        return encode(*arguments)

    monkeypatch.setattr(live_states_module, "encode_states", encode_slowly)
    writer = open_writer()
    restore(writer, every=1)
    move(writer, "a", State.OPEN)
    writer.flush()
    assert is_encoding.wait(TIMEOUT_S)

    for entity in "bcd":
        move(writer, entity, State.OPEN)
        writer.flush()
    goes_on.set()
    flush(writer)
    move(writer, "e", State.OPEN)
    flush(writer)

    assert [list(at.states) for at in snapshots(journal)] == [["a"], ["a", "b", "c", "d", "e"]]


def test_entities_in_a_state_that_ends_them_since_the_snapshot_are_left_out(open_writer: Open, journal: Path) -> None:
    """A release may add an end."""
    writer = open_writer(write_ahead=True)
    restore(writer, every=1)
    move(writer, "a", State.HELD)
    move(writer, "b", State.OPEN)
    flush(writer)
    writer.close()

    assert live_states_module.read_states(journal, "Order", frozenset({"HELD"}), 0).states == {"b": "OPEN"}


def test_a_snapshot_comes_back_as_it_was_encoded() -> None:
    states = LastStates({f"Bestellung {number} \n \u20ac \udc80": "OPEN" for number in range(10_000)})
    states.data = dict.fromkeys(list(states)[::2], '{"version":1,"data":{"name":"€"}}')
    pauses: list[None] = []
    at = StatesAt("Order", 7, 1234, 99, states)

    payload = encode_states(at, lambda: pauses.append(None))

    assert decode_states(payload) == at
    assert decode_states(payload).states.data == states.data
    assert len(pauses) == 3


def test_verify_names_a_snapshot_that_cannot_be_read(open_writer: Open, journal: Path) -> None:
    writer = open_writer()
    writer.log.append_snapshot(json.dumps({"machine": "Order", "entities": 2}).encode())
    writer.close()

    [problem] = verify(journal).problems

    assert "frame 1: cannot be read: ValueError: has 0 entities, but its first line says 2" in problem


@pytest.mark.parametrize("chunk", [64, 1000, 1 << 20])
def test_frames_of_a_kind_are_found_among_others(
    open_writer: Open, journal: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(frames_module, "_CHUNK", chunk)
    writer = open_writer(write_ahead=True)
    for number in range(50):
        writer.append_accepted(b"x" * number * 37)
        move(writer, "a", State.OPEN)
        flush(writer)
    path = open_segment_path(journal, 1)

    for kind in (ROWS, ACCEPTED, SNAPSHOT):
        expected = [each for each in frames_in(path) if isinstance(each, Frame) and each.header.kind == kind]
        with FrameReader(path) as reader:
            assert list(reader.frames_of(kind)) == expected
            assert list(reader.frames_of(kind, expected[-1].offset if expected else 0)) == expected[-1:]


MOVES = st.tuples(st.sampled_from("abcd"), st.sampled_from([State.OPEN, State.HELD, State.ENDED]))
STEPS = st.lists(st.one_of(MOVES, st.sampled_from(["flush", "roll", "accept"])), max_size=40)


@settings(deadline=None)
@given(steps=STEPS, every=st.integers(1, 6), cut=st.floats(0, 1), damaged=st.sets(st.integers(0, 10)))
def test_what_a_kill_leaves_restores_to_what_its_rows_lead_to(
    steps: list[Any], every: int, cut: float, damaged: set[int]
) -> None:
    """Whatever the end of the open segment is, and whichever snapshots are damaged."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = JournalConfig(write_ahead=True, segment_age_s=1e6)
        writer = JournalWriter(folder / "journal", config)
        restore(writer, every=every)
        for step in steps:
            match step:
                case "flush":
                    flush(writer)
                case "roll":
                    writer.roll()
                case "accept":
                    writer.settle(writer.append_accepted(b"{}"))
                case entity, to:
                    move(writer, entity, to)
        left = after_a_crash(folder / "journal", folder / "left")
        for number, (segment, frame) in enumerate(snapshot_frames(left)):
            if number in damaged:
                flip(segment, frame.end - 1)
        [last] = open_segments(left)
        with last.open("r+b") as file:
            file.truncate(round(last.stat().st_size * cut))
        writer.close()

        restarted = JournalWriter(left, config.model_copy(update={"on_loss": "start"}))
        states = restore(restarted)
        restarted.close()

        assert states == replayed(left)


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keeper_module.LATE_MS == NEVER  # rows are written by `flush` only, so that each frame is known
