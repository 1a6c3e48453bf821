"""The live entities of a journal: read at a start, kept by snapshots, through retention, kills and damage."""

from __future__ import annotations

import json
import logging
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import AsyncDispatcher, JournalConfig, JournalError, JournalWriter
from dispatcher.journal import TRANSITIONS, read_rows, verify
from dispatcher.journal import live_states as live_states_module
from dispatcher.journal.format.live_states import LastStates, StatesAt, decode_states, encode_states

from ...journal_rows import begin, end
from ...kit import TIMEOUT_S, until
from ...kit.journals import (
    KINDS,
    JournalStage,
    Open,
    after_a_crash,
    flip,
    frames_of,
    intact_frames,
    open_segments,
    segment_path,
    segments,
)
from ...kit.scenarios import play
from ...kit.segment_files import ACCEPTED, ROWS, SNAPSHOT, FrameReader
from ._orders import ENDS, NEVER, State, flush, move


def restore(
    writer: JournalWriter, machine: str = "Order", *, every: int = NEVER, every_s: float = 1e6
) -> dict[str, str]:
    return writer.restore_states(machine, ENDS, snapshot_transitions=every, snapshot_s=every_s)


def replayed(path: Path, machine: str = "Order") -> dict[str, str]:
    """The reference: what all rows of the journal lead to."""
    states: dict[str, str] = {}
    for row in read_rows(path, TRANSITIONS, on_damage=lambda line: None):
        if row["machine"] == machine and row["valid"]:
            states[row["entity"]] = row["to_state"]
    return {entity: state for entity, state in states.items() if state not in ENDS}


def snapshots(journal: Path) -> list[StatesAt]:
    return [decode_states(frame.payload) for _, frame in snapshot_frames(journal)]


def snapshot_frames(journal: Path) -> list[tuple[Path, Any]]:
    files = (*segments(journal), *open_segments(journal))
    return [(segment, frame) for segment in files for frame in intact_frames(segment, "SNAPSHOT")]


class EntityStage(JournalStage):
    """A journal of orders, each in a state."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self.now_s, self.has_threads, self.ends = 100.0, True, ENDS
        self.states: dict[str, str] = {}
        start = live_states_module.try_to_start
        monkeypatch.setattr(live_states_module, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(live_states_module, "try_to_start", lambda thread: self.has_threads and start(thread))

    def do_restore(self, machine: str = "Order", **when: Any) -> None:
        self.states = restore(self.writer, machine, **when)

    def do_move(self, entity: str, to: str, machine: str = "Order") -> None:
        move(self.writer, entity, State[to], machine)

    def do_refuse(self, entity: str, to: str) -> None:
        move(self.writer, entity, State[to], valid=False)

    def do_flush(self) -> None:
        flush(self.writer)

    def do_moves(self, *entities: str) -> None:
        """To OPEN, each in a frame of its own."""
        for entity in entities:
            self.do_move(entity, "OPEN")
            self.do_flush()

    def do_rolls(self, *entities: str) -> None:
        """To OPEN, each in a segment of its own."""
        for entity in entities:
            self.do_moves(entity)
            self.writer.roll()

    def do_wait(self, seconds: str) -> None:
        self.now_s += float(seconds)

    def do_threads(self, are_left: str) -> None:
        self.has_threads = are_left == "yes"

    def do_end_in(self, state: str) -> None:
        self.ends = frozenset({state})

    def see_states(self) -> list[str]:
        return shown(self.states)

    def see_kept(self) -> list[str]:
        """What a restore from the files would return."""
        return shown(live_states_module.read_states(self.folder, "Order", self.ends, 0).states)

    def see_snapshots(self) -> list[int]:
        """The seq behind each."""
        return [at.seq for at in snapshots(self.folder)]

    def see_newest(self) -> list[str]:
        return shown(snapshots(self.folder)[-1].states)


def shown(states: dict[str, str]) -> list[str]:
    return [f"{entity}:{state}" for entity, state in sorted(states.items())]


AHEAD = "open write_ahead=true retention_bytes=1"
PROMISES = {
    "a refused transition, and one of another machine, change nothing": (
        f"{AHEAD} | move a OPEN | refuse a HELD | move a HELD Parcel | close"
        f" | {AHEAD} | restore -> states a:OPEN | restore Parcel -> states a:HELD"
    ),
    "the first frame, and then every so many transitions, bring a snapshot": (
        "open | restore every=3 | moves a b a b a b a -> snapshots 2 5 8 ; newest a:OPEN b:OPEN ; found 7 7"
    ),
    "many entities space the snapshots further apart": (
        "open | restore every=2 | moves a b c d e f g h i j k l m n o p -> snapshots 2 4 7 13"
    ),
    "time brings a snapshot": (
        "open | restore every_s=60 | moves a b -> snapshots 2 | wait 60 | moves c -> snapshots 2 4"
    ),
    "a snapshot for which no thread is left comes later": (
        "open | restore | threads no | moves a -> snapshots"
        " | threads yes | wait 2 | moves b -> snapshots 3 ; newest a:OPEN b:OPEN"
    ),
    "retention keeps what the last two snapshots need": (
        f"{AHEAD} | restore every=2 | rolls a b c d e f g h | close -> snapshots 4 7 ; closed 3 4 5 6 7 8"
        f" | {AHEAD} | restore -> states a:OPEN b:OPEN c:OPEN d:OPEN e:OPEN f:OPEN g:OPEN h:OPEN"
    ),
    "retention removes no rows before there are two snapshots": (
        "open retention_bytes=1 | restore | rolls a b c d e -> closed 1 2 3 4 5"
    ),
    "a snapshot of an earlier run is kept until there is another one": (
        f"{AHEAD} | restore every=1 | rolls a b c | close | {AHEAD} | restore | retain -> kept a:OPEN b:OPEN c:OPEN"
    ),
    # A release may add an end.
    "entities in a state that has become an end since the snapshot are left out": (
        "open | restore every=1 | move a HELD | moves b | close | end_in HELD -> kept b:OPEN"
    ),
}


@pytest.mark.parametrize("script", PROMISES.values(), ids=PROMISES)
def test_live_entities(journal: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    stage = EntityStage(journal, monkeypatch)

    play(stage, script)

    stage.close()


def test_a_snapshot_has_the_transitions_of_written_rows_only(open_writer: Open, journal: Path) -> None:
    """The journal's own thread writes rows while an event is in hand, whose transitions are not in a frame yet."""
    writer = open_writer()
    restore(writer)
    move(writer, "a", State.OPEN)
    begin(writer, 2000)
    writer.origin().add_transition("Order", "b", "NEW", "MADE", "OPEN", valid=True)

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


def test_rows_that_are_missing_are_logged(open_writer: Open, journal: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = open_writer()
    for number in range(3):
        move(writer, f"order_{number}", State.OPEN)
        flush(writer)
    writer.close()
    [_, second, _] = frames_of(segment_path(journal, 1), "ROWS")
    flip(segment_path(journal, 1), second.offset + 70)

    with caplog.at_level(logging.ERROR):
        states = live_states_module.read_states(journal, "Order", ENDS, 4).states

    assert states == {"order_0": "OPEN", "order_2": "OPEN"}
    assert "the rows of events 2 to 2 are missing" in caplog.text


def test_states_are_restored_once_and_before_the_first_row(open_writer: Open) -> None:
    writer = open_writer()
    restore(writer)

    with pytest.raises(JournalError, match="states of Order were restored already"):
        restore(writer)
    move(writer, "a", State.OPEN)
    with pytest.raises(JournalError, match="the states of Parcel cannot be restored once"):
        restore(writer, "Parcel")


def test_states_cannot_be_restored_once_the_dispatcher_has_started(journal: Path) -> None:
    writer = JournalWriter(journal)
    with (
        AsyncDispatcher(name="shop", journal=writer),
        pytest.raises(JournalError, match="cannot be restored once shop has started"),
    ):
        restore(writer)


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
    monkeypatch.setattr("dispatcher.journal.format.frames._CHUNK", chunk)
    writer = open_writer(write_ahead=True)
    for number in range(50):
        writer.append_accepted(b"x" * number * 37)
        move(writer, "a", State.OPEN)
        flush(writer)
    [path] = open_segments(journal)

    for kind in (ROWS, ACCEPTED, SNAPSHOT):
        expected = intact_frames(path, KINDS[kind])
        with FrameReader(path) as reader:
            assert list(reader.frames_of(kind)) == expected
            assert list(reader.frames_of(kind, expected[-1].offset if expected else 0)) == expected[-1:]


MOVES = st.tuples(st.sampled_from("abcd"), st.sampled_from([State.OPEN, State.HELD, State.ENDED]))
STEPS = st.lists(st.one_of(MOVES, st.sampled_from(["flush", "roll", "accept"])), max_size=40)


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
