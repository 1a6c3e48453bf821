"""The write-ahead log against a model of it: whatever was accepted and not settled when a crash came is handed out."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher import JournalConfig, JournalWriter
from dispatcher.journal import EVENTS, read_rows, recover, verify

from ...kit import tries
from ...kit.journals import JobEvent, after_a_crash, crash_amid, segments, write_event


class WriteAhead(RuleBasedStateMachine):
    """Accepts, handles and settles events, rolls segments, crashes and starts again, with retention on.

    Of what is handled or settled the log knows with the next flush; until then a crash hands it out again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.generation = 0
        self.accepted = 0
        self.queued: list[int] = []  # accepted, and not handled nor settled
        self.unflushed: list[int] = []  # handled or settled since the last flush
        self.rows: list[tuple[str, int | None]] = []  # entity and accepted seq of those that are flushed
        self.new_rows: list[tuple[str, int | None]] = []

    @initialize(retention_bytes=st.sampled_from([1, 4000]))
    def begin(self, retention_bytes: int) -> None:
        self.config = JournalConfig(
            write_ahead=True, retention_bytes=retention_bytes, segment_bytes=1 << 20, segment_age_s=1e6
        )
        self.open(self.folder / "journal 0")

    def open(self, path: Path) -> None:
        self.writer = JournalWriter(path, self.config)
        found = self.writer.log.recovered.summary
        if (found.next_seq, found.next_accepted) == (1, 1):  # retention had removed all segments: numbers begin again
            assert not self.queued
            self.accepted = 0

    @rule(count=st.integers(1, 3), size=st.sampled_from([0, 300]))
    def accept(self, count: int, size: int) -> None:
        for _ in range(count):
            self.accepted += 1
            assert self.writer.append_accepted(b"%d:" % self.accepted + b"x" * size) == self.accepted
            self.queued.append(self.accepted)

    @precondition(lambda self: self.queued)
    @rule(position=st.integers(0), moves=st.integers(0, 2))
    def handle(self, position: int, moves: int) -> None:
        seq = self.queued.pop(position % len(self.queued))
        write_event(self.writer, JobEvent(f"job_{seq}"), transitions=moves, accepted_seq=seq)
        self.unflushed.append(seq)
        self.new_rows.append((f"job_{seq}", seq))

    @precondition(lambda self: self.queued)
    @rule(position=st.integers(0))
    def settle(self, position: int) -> None:
        seq = self.queued.pop(position % len(self.queued))
        self.writer.settle(seq)
        self.unflushed.append(seq)

    @rule()
    def handle_one_of_no_log(self) -> None:
        write_event(self.writer, JobEvent("own"))
        self.new_rows.append(("own", None))

    @rule()
    def flush(self) -> None:
        self.writer.flush()
        self.unflushed.clear()
        self.rows += self.new_rows
        self.new_rows.clear()

    @rule()
    def roll(self) -> None:
        self.writer.roll()

    @rule()
    def close_and_start_again(self) -> None:
        self.writer.close()
        self.unflushed.clear()
        self.rows += self.new_rows
        self.new_rows.clear()
        assert verify(self.writer.path)[2:] == ((), (), ())
        self.open(self.writer.path)
        self.check_recovered()

    @rule(
        torn=st.integers(0, 200),
        twice=st.booleans(),
        amid=st.none() | st.sampled_from(["roll", "retain", "close", "reopen"]),
        changes=st.integers(0, 12),
    )
    def crash(self, torn: int, twice: bool, amid: str | None, changes: int) -> None:
        """What was not flushed is handed out again. A torn frame of garbage at the end is no matter.

        `amid`: the operation that the crash interrupts, after `changes` file operations or at its end.
        """
        if amid in ("close", "reopen"):  # both flush, so what a crash leaves would depend on its moment
            self.flush()
        self.generation += 1
        path = self.folder / f"journal {self.generation}"
        if amid is not None:
            crash_amid(getattr(self, f"_{amid}"), self.writer.path, path, changes)
        if not path.exists():
            after_a_crash(self.writer.path, path)
        self.writer.close()
        for segment in path.glob(".segment-*.open"):
            with segment.open("ab") as file:
                file.write(b"\xffDJF\r\n\x1a\n"[:torn] + bytes(torn))
        if amid is None:
            assert verify(path).problems == ()
        if twice:
            assert recover(path).losses == ()
        self.queued = sorted(self.queued + self.unflushed)
        self.unflushed.clear()
        self.new_rows.clear()
        self.open(path)
        self.check_recovered()

    def _roll(self) -> None:
        self.writer.roll()

    def _retain(self) -> None:
        self.writer.log.retain()

    def _close(self) -> None:
        self.writer.close()

    def _reopen(self) -> None:
        self.writer.close()
        self.writer = JournalWriter(self.writer.path, self.config)

    @rule()
    def retain(self) -> None:
        self.writer.log.retain()

    def check_recovered(self) -> None:
        recovered = self.writer.recovered
        assert [accepted.seq for accepted in recovered] == sorted(self.queued)
        assert all(int(accepted.line.partition(b":")[0]) == accepted.seq for accepted in recovered)
        self.queued.sort()

    @invariant()
    def readers_see_what_was_flushed(self) -> None:
        read = [(row["entity"], row.get("accepted_seq")) for row in read_rows(self.writer.path, EVENTS)]
        assert read == self.rows[len(self.rows) - len(read) :]
        if len(segments(self.writer.path)) and read and len(read) < len(self.rows):
            assert segments(self.writer.path)[0].name != "segment-00000001.journal"

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert verify(self.writer.path).problems == ()

    def teardown(self) -> None:
        self.writer.close()
        shutil.rmtree(self.folder)


TestWriteAhead = pytest.mark.slow(WriteAhead.TestCase)
TestWriteAhead.settings = settings(max_examples=tries(15), stateful_step_count=30)
