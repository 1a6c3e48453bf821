"""The journal of a MultiDispatcher: one ordinary journal for each partition, below one folder.

A start may find unhandled events whose keys another partition has now, because the number of partitions has changed.
Their order by key would be lost if two partitions handled events of one key. So before any event is handled, all
unhandled events are copied, each to the partition that has its key, and the originals are settled:

    partitions.json             the partitions' logs
    copies do not count
                                the copies are appended and synced
    originals do not count
                                the originals are settled and synced
    nothing moves

After a crash at any point, the next start settles what does not count and begins again. An event is therefore neither
lost nor redelivered twice by a move. No event is accepted before the move is done: its order among the copies would be
lost.

Entities are not moved: the partition of an entity is the one that handles its events, and the journal cannot tell which
that is now, because the key is in the events. Instead, each restore writes the states of all partitions to one file,
and a partition's snapshots have only what has changed since:

    states-Order.jsonl    all live orders at the start of the run, and where each partition's rows of it begin
    partition-0/          snapshots and rows: the orders that this partition has changed in the run, ended ones too
    partition-1/

In one run an entity belongs to one partition, so the changes of different partitions are about different entities, and
each is newer than the file. A restore takes the file, then the changes. It does not read what an earlier run has left
in another partition: that is in front of the place where the run begins.

The file is replaced in one step, so a crash leaves the states and the places of one start. Recovery has synced the rows
before these places: a power failure takes none that the file counts on.

Without the file, as before the first restore, the rows of all runs are read. Of the changes of an entity the last one
by time counts, and of equal times the one in the partition with the highest number.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from enum import Enum
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from threading import get_ident
from typing import Final

from dispatcher.config import JournalConfig
from dispatcher.errors import JournalError, JournalLossError, NoEventInHandError
from dispatcher.journal.format.event_codec import in_order_of_acceptance, with_marks
from dispatcher.journal.format.live_states import (
    ENDED,
    LastStates,
    StatesAt,
    StatesAtStart,
    decode_states_file,
    encode_states_file,
    states_file,
)
from dispatcher.journal.format.marks import Marks, is_without_event
from dispatcher.journal.format.outstanding import Loss
from dispatcher.journal.format.partitions import (
    Move,
    Partitions,
    check_no_other_files,
    holds_partitions,
    partition_folders,
    partition_path,
    read_partitions,
)
from dispatcher.journal.format.segments import holds_journal, unwritable
from dispatcher.journal.live_states import LiveStates, read_changes
from dispatcher.journal.snapshot import parts_of, unreadable
from dispatcher.journal.writer import JournalWriter, TransitionOrigin
from dispatcher.util.figures import counted
from dispatcher.util.files import Permissions, make_folder, read_file, replace_file
from dispatcher.util.foreign import tell
from dispatcher.util.functions import path_of, require_kind

log: logging.Logger = logging.getLogger(__name__)


class PartitionedJournal:
    """The journal in `path` of a MultiDispatcher, which opens it when it's created and closes it when it stops.

    The folder must be new or empty. In write-ahead mode you can also continue a partitioned journal, with any number of
    partitions. Those beyond the dispatcher's number stay as history.

    You can also pass it to a TransitionRecorder: each transition goes to its event's partition.
    """

    def __init__(self, path: Path | str, config: JournalConfig | None = None) -> None:
        self.path: Path = path_of(path).absolute()  # a daemon may change its directory later; never changes
        self.config: JournalConfig = config if config is not None else JournalConfig()  # never changes
        require_kind(self.config, "config", JournalConfig)
        self._mode = Permissions[self.config.permissions].file_mode  # never changes
        self.event_thread: Final = 0
        """Like JournalWriter.event_thread, but of no thread, so that a machine calls `origin`."""
        # Of the partitions that the dispatcher has, and of further ones. Replaced by `open`; any thread reads.
        self._writers: tuple[JournalWriter, ...] = ()
        self._left: tuple[JournalWriter, ...] = ()

    def open(self, partitions: int) -> tuple[JournalWriter, ...]:
        """Open the journals of this number of partitions, and finish a move cut short by a crash.

        Raises:
            JournalError: the folder holds the journal of one dispatcher or one not to be continued, has another writer,
                or can't be written.
            JournalLossError: accepted events of an earlier run are lost, or a partition is missing, and
                `config.on_loss` is `refuse`.
        """
        try:
            with contextlib.ExitStack() as opened:
                self._open(partitions, opened)
                opened.pop_all()
        except OSError as error:
            raise unwritable(self.path, error) from error
        return self._writers

    def _open(self, partitions: int, opened: contextlib.ExitStack) -> None:
        make_folder(self.path, Permissions[self.config.permissions])
        check_no_other_files(self.path)
        if holds_journal(self.path):
            raise JournalError(
                f"{self.path}: holds the journal of one dispatcher, which cannot be continued by partitions. Choose "
                "another folder, and let an AsyncDispatcher handle what is unhandled here."
            )
        if not holds_partitions(self.path):
            # Before the first partition: a crash in between must not leave partitions without their number.
            Partitions().write(self.path, mode=self._mode)
        elif not self.config.write_ahead:
            raise JournalError(
                f"{self.path}: holds a journal already; choose a new or an empty folder (with write_ahead, a start "
                "continues the journal that it finds)"
            )
        losses = self._missing()

        def writer_of(number: int) -> JournalWriter:
            writer = JournalWriter(partition_path(self.path, number), self.config)
            opened.callback(_close_quietly, writer)
            writer.losses += tuple(loss for loss in losses if loss.segments == writer.path.name)
            return writer

        first = writer_of(0)  # before the file is read: another process, which writes it, holds this lock
        found, problem = read_partitions(self.path)
        if problem is not None:
            tell(log, logging.WARNING, "%s: %s: the folders tell how many partitions there are", self.path, problem)
        known = found or Partitions()
        count = max(partitions, known.count, *(number + 1 for number in partition_folders(self.path)))
        writers = (first, *map(writer_of, range(1, count)))
        if known.move is not None:
            _settle_what_does_not_count(writers, known.move)
        if found != Partitions(count):
            Partitions(count).write(self.path, mode=self._mode)
        self._writers, self._left = writers[:partitions], writers[partitions:]

    def _missing(self) -> list[Loss]:
        """A loss for each missing partition. Raises JournalLossError unless they are accepted."""
        losses = [Loss(name, 1, 1, None) for name in parts_of(self.path).missing]
        if losses and self.config.on_loss != "start":
            error = JournalLossError(self.path, losses)
            tell(log, logging.ERROR, "%s", error)
            raise error
        for loss in losses:
            tell(log, logging.ERROR, "%s: %s. The journal goes on without them, as on_loss says", self.path, loss)
        return losses

    def place_recovered(self, partition_of: Callable[[bytes], int]) -> None:
        """Move the unhandled events of earlier runs to the partitions of their keys, before the start.

        Partitions no longer used are closed. `partition_of` gets an event's line. If it raises, the error is passed on
        before anything has changed.

        Raises:
            JournalError: the disk failed. The next start finishes the move or begins it again.
        """
        placed: list[list[bytes]] = [[] for _ in self._writers]
        moves = False
        for number, writer in enumerate(self._all()):
            own = number if number < len(self._writers) else 0
            for accepted, marks, _ in in_order_of_acceptance(writer.recovered):
                to = _partition_for(accepted.line, marks, partition_of, own)
                moves = moves or to != number
                placed[to].append(with_marks(accepted.line, marks._replace(replaces=0, order=0)))
        if moves:
            try:
                self._move(placed)
            except OSError as error:
                raise unwritable(self.path, error) from error
            count = sum(map(len, placed))
            what = counted(count, "unhandled event", "was")
            tell(log, logging.WARNING, "%s: %s moved to the partitions of the keys", self.path, what)
        self.close_unused()

    def restore_states(
        self, machine: str, ends: Collection[str], *, snapshot_transitions: int, snapshot_s: float
    ) -> LastStates:
        """Return the states of all partitions, for any earlier number of them. See JournalWriter.restore_states.

        Each partition counts the transitions between its snapshots separately.

        Raises:
            JournalError: as there, or no MultiDispatcher has the journal, or the file with the states of the last start
                is damaged or can't be written.
        """
        if not self._writers:
            raise JournalError(
                f"{self.path}: no MultiDispatcher has this journal yet. Make the MultiDispatcher first: it opens the "
                f"partitions from which the states of {machine} are restored."
            )
        writers, names = self._all(), frozenset(ends)
        for writer in writers:
            writer.check_restorable(machine)
        file = states_file(self.path, machine)
        _, starts, states = _read_states_file(file, machine)
        found = [
            read_changes(writer.path, machine, names, start, writer.seq + 1)
            for writer, start in zip_longest(writers, starts[: len(writers)])
        ]
        for change in heapq.merge(*found, key=attrgetter("at")):
            if change.state == ENDED:
                states.drop(change.entity)
                continue
            states[change.entity] = change.state
            if change.data is not None:
                states.data[change.entity] = change.data
        for entity in [entity for entity, state in states.items() if state in names]:
            states.drop(entity)
        places = [writer.log.position() for writer in writers]
        data = encode_states_file(StatesAtStart(machine, tuple((segment, seq) for segment, _, seq in places), states))
        try:
            replace_file(file, data, draft=file.with_name(f".{file.name}.new"), mode=self._mode)
        except OSError as error:
            raise unwritable(self.path, error) from error
        kept = frozenset(states)
        for writer, place in zip(writers, places, strict=True):
            at = StatesAt(machine, *place, LastStates())
            live = LiveStates(writer.log, at, names, every=snapshot_transitions, every_s=snapshot_s, kept=kept)
            writer.keep_states(machine, live)
        return states

    def close_unused(self) -> None:
        """Close the partitions beyond the dispatcher's. Raises JournalError as `close`."""
        with contextlib.ExitStack() as closing:
            for writer in self._left:
                closing.callback(writer.close)
            self._left = ()

    def _move(self, placed: Iterable[list[bytes]]) -> None:
        writers = self._all()
        originals = [writer.recovered for writer in writers]
        move = Move(tuple(writer.log.next_accepted for writer in writers), are_copied=False)
        partitions = Partitions(len(writers), move)
        partitions.write(self.path, mode=self._mode)
        for writer, lines in zip(self._writers, placed, strict=True):
            writer.append_copies(lines)
        move = replace(move, are_copied=True)
        replace(partitions, move=move).write(self.path, mode=self._mode)
        for writer, before in zip(writers, originals, strict=True):
            writer.settle_on_disk(accepted.seq for accepted in before)
        replace(partitions, move=None).write(self.path, mode=self._mode)

    def close(self) -> None:
        """Close the journals of all partitions. Idempotent.

        Raises:
            JournalError: the disk failed, and the policy is `stop`.
        """
        with contextlib.ExitStack() as closing:
            for writer in self._all():
                closing.callback(writer.close)

    @property
    def outstanding(self) -> int:
        """In write-ahead mode, the number of accepted events not yet recorded as handled or settled."""
        return sum(writer.outstanding for writer in self._all())

    def _all(self) -> tuple[JournalWriter, ...]:
        return self._writers + self._left

    # -- transitions: any thread -------------------------------------------------------------------------------------

    def transition(
        self, machine: str, entity: str, from_state: Enum, event_type: Enum, to_state: Enum, *, valid: bool
    ) -> None:
        """Record a transition in the partition that handles the caller's event. See JournalWriter."""
        origin = self.origin()
        origin.add_transition(machine, entity, from_state._name_, event_type._name_, to_state._name_, valid=valid)

    def origin(self, *, is_made: bool = False) -> TransitionOrigin:
        """Return the origin in the partition that handles the caller's event. See JournalWriter."""
        thread = get_ident()
        for writer in self._writers:
            if writer.event_thread == thread:
                return writer
        refusal = NoEventInHandError(str(self.path), "no dispatcher has this journal")
        for writer in self._writers:
            try:
                return writer.origin(is_made=is_made)
            except NoEventInHandError as error:
                refusal = error
        raise refusal


def _read_states_file(file: Path, machine: str) -> StatesAtStart:
    try:
        return decode_states_file(read_file(file))
    except FileNotFoundError:
        return StatesAtStart(machine, (), LastStates())
    except OSError as error:
        raise unreadable(file, error) from error
    except ValueError as error:
        raise JournalError(
            f"{file}: {error}. It has the entities of {machine} that were live when the last run began. Put back a "
            "copy of the whole journal, or remove the file: then all rows of the partitions are read, and entities "
            "whose last transitions retention has removed are lost."
        ) from error


def _partition_for(line: bytes, marks: Marks, partition_of: Callable[[bytes], int], own: int) -> int:
    if is_without_event(line):
        return own
    try:
        return partition_of(line)
    except JournalError:
        if marks.has_event:
            raise
        return own  # what is posted again and again waits until its class is declared


def _settle_what_does_not_count(writers: Iterable[JournalWriter], move: Move) -> None:
    for number, writer in enumerate(writers):
        recovered = writer.recovered
        writer.recovered = tuple(accepted for accepted in recovered if move.counts(number, accepted.seq))
        writer.settle_on_disk(accepted.seq for accepted in recovered if not move.counts(number, accepted.seq))


def _close_quietly(writer: JournalWriter) -> None:
    with contextlib.suppress(JournalError):  # the caller has another error to raise
        writer.close()
