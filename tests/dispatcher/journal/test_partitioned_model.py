"""A partitioned journal against a model: a start that crashes anywhere loses no event, hands out none twice, and
restores each entity in its last state."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import defaultdict, deque
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher import JournalConfig, PartitionedJournal
from dispatcher.journal import recover, verify

from ...kit import tries
from ...kit.journals import after_a_crash, crash_amid
from ._orders import ENDS, State, flush, move

OPERATIONS = ("open", "rename", "replace", "unlink", "write", "fsync")
KEYS = 5

keys = st.integers(0, KEYS - 1)
partitions = st.integers(1, 4)
salts = st.integers(0, 3)
"""A run with another salt places keys differently, as after a change of the code."""
ends = st.sampled_from([State.OPEN, State.HELD, State.ENDED])


class Partitioned(RuleBasedStateMachine):
    """Accepts and handles events, makes transitions, and starts again with other partitions, orderly or after crashes.

    The events of a key are about one order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.generation = 0
        self.number = 0
        self.outstanding: dict[int, list[int]] = {key: [] for key in range(KEYS)}
        self.states: dict[str, str] = {}

    @initialize(partitions=partitions, retention_bytes=st.sampled_from([None, 1]))
    def begin(self, partitions: int, retention_bytes: int | None = None) -> None:
        self.config = JournalConfig(
            write_ahead=True, segment_bytes=1024, segment_age_s=1e6, retention_bytes=retention_bytes
        )
        self.open(self.folder / "journal 0", partitions, 0)
        self.check_restored()

    def open(self, path: Path, partitions: int, salt: int) -> None:
        self.salt = salt
        self.journal = PartitionedJournal(path, self.config)
        self.writers = self.journal.open(partitions)
        self.restored = self.journal.restore_states("Order", ENDS, snapshot_transitions=3, snapshot_s=1e6)
        self.journal.place_recovered(lambda line: self.place(int(line.split()[0])))

    def check_restored(self) -> None:
        found: defaultdict[int, list[int]] = defaultdict(list)
        self.queues: list[deque[tuple[int, int]]] = [deque() for _ in self.writers]  # accepted seqs and keys
        for partition, writer in enumerate(self.writers):
            for accepted in writer.recovered:
                key, number = map(int, accepted.line.split()[:2])
                assert self.place(key) == partition
                found[key].append(number)
                self.queues[partition].append((accepted.seq, key))
        assert found == {key: numbers for key, numbers in self.outstanding.items() if numbers}
        assert self.restored == {order: state for order, state in self.states.items() if state not in ENDS}

    def place(self, key: int) -> int:
        return (key * 7 + self.salt) % len(self.writers)

    @rule(key=keys, size=st.sampled_from([0, 600]))
    def accept(self, key: int, size: int) -> None:
        self.number += 1
        partition = self.place(key)
        seq = self.writers[partition].append_accepted(b"%d %d %s" % (key, self.number, b"x" * size))
        self.queues[partition].append((seq, key))
        self.outstanding[key].append(self.number)

    @precondition(lambda self: any(self.queues))
    @rule(choice=st.integers(0), to=ends)
    def handle(self, choice: int, to: State) -> None:
        filled = [number for number, queue in enumerate(self.queues) if queue]
        partition = filled[choice % len(filled)]
        seq, key = self.queues[partition].popleft()
        del self.outstanding[key][0]
        self.make_transition(key, to, accepted_seq=seq)

    @rule(key=keys, to=ends)
    def make_transition(self, key: int, to: State, accepted_seq: int = 0) -> None:
        writer = self.writers[self.place(key)]
        move(writer, f"order_{key}", to, accepted_seq=accepted_seq)
        flush(writer)
        self.states[f"order_{key}"] = to.name

    @rule(partitions=partitions, salt=salts, orderly=st.booleans(), changes=st.lists(st.integers(0, 60), max_size=3))
    def start_again(self, partitions: int, salt: int, orderly: bool, changes: list[int]) -> None:
        """Start after a close or a crash. `changes`: of each start that then crashes, the file operations before."""
        path = self.journal.path
        if not orderly:
            path = after_a_crash(path, self.next_path())
        self.journal.close()
        for after in changes:
            amid = self.next_path()
            crash_amid(partial(self.open, path, partitions, salt), path, amid, after, OPERATIONS)
            if not amid.exists():
                after_a_crash(path, amid)
            self.journal.close()
            path, partitions, salt = amid, partitions % 4 + 1, salt + 1
        self.open(path, partitions, salt)
        self.check_restored()

    def next_path(self) -> Path:
        self.generation += 1
        return self.folder / f"journal {self.generation}"

    @invariant()
    def nothing_moves_between_starts(self) -> None:
        found = json.loads((self.journal.path / "partitions.json").read_text())
        assert found["move"] is None
        assert found["partitions"] >= len(self.writers)
        assert verify(self.journal.path).problems == ()

    def teardown(self) -> None:
        self.journal.close()
        shutil.rmtree(self.folder)


TestPartitioned = pytest.mark.slow(Partitioned.TestCase)
TestPartitioned.settings = settings(max_examples=tries(12), stateful_step_count=25)


@pytest.mark.long
def test_a_move_that_crashes_anywhere_is_finished_or_begun_again(tmp_path: Path) -> None:
    machine = Partitioned()
    machine.begin(2)
    for number in range(3 * KEYS):
        machine.accept(number % KEYS, 0)
    path = after_a_crash(machine.journal.path, tmp_path / "crashed")
    accepted_lines = sorted(b"%d %d " % (key, number) for key, all in machine.outstanding.items() for number in all)
    machine.journal.close()

    for changes in count():
        copy = after_a_crash(path, tmp_path / f"{changes}")
        amid = tmp_path / f"amid {changes}"
        crash_amid(partial(machine.open, copy, 3, 1), copy, amid, changes, OPERATIONS)
        machine.check_restored()
        machine.journal.close()
        if not amid.exists():
            break
        assert sorted(accepted.line for accepted in recover(amid).accepted) == accepted_lines
        machine.open(amid, 3, 1)
        machine.check_restored()
        machine.journal.close()
    machine.teardown()
    assert changes > 50
