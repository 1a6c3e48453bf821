"""The live entities of a partitioned journal: read from all partitions at a start.

The partition of an entity is the one that handles its events. With another number of partitions it may be another one,
and the journal cannot tell which: the key is in the events. So states are not moved from partition to partition. Each
restore writes the states of all partitions to one file, and a partition's snapshots have only what has changed since:

    states-Order.jsonl    all live orders at the start of the run, and where each partition's rows of it begin
    partition-0/          snapshots and rows: the orders that this partition has changed in the run, ended ones too
    partition-1/

In one run an entity belongs to one partition. So the changes of different partitions are about different entities, and
each is newer than the file. A restore takes the file, then the changes. What an earlier run has left in the partition
that an entity had then is in front of the place where the run begins, and is not read.

The file is replaced in one step, so a crash leaves the states and the places of one start. Recovery has synced the rows
before these places: a power failure takes none that the file counts on.

Without the file, as before the first restore, the rows of all runs are read. Of the changes of an entity the last one
by time counts, and of equal times the one in the partition with the highest number.

Threads: as a journal's start, all on one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from dispatcher.errors import JournalError
from dispatcher.journal.format.live_states import (
    ENDED,
    Change,
    LastStates,
    StatesAt,
    StatesAtStart,
    decode_states_file,
    encode_states_file,
    states_file,
)
from dispatcher.journal.live_states import LiveStates, read_changes
from dispatcher.journal.snapshot import unreadable
from dispatcher.journal.writer import JournalWriter
from dispatcher.util.files import read_file, replace_file


def restore_partitions(
    journal: Path,
    writers: Sequence[JournalWriter],
    machine: str,
    ends: Collection[str],
    *,
    every: int,
    every_s: float,
    mode: int,
) -> LastStates:
    """Restore the states of all partitions; see JournalWriter.restore_states. `mode`: of the file.

    Raises:
        JournalError: JournalWriter.restore_states raises it, or the file of the states is damaged.
        OSError: that file cannot be written.
    """
    for writer in writers:
        writer.check_restorable(machine)
    names = frozenset(ends)
    file = states_file(journal, machine)
    before = _read(file, machine)
    changes: dict[str, Change] = {}
    for number, writer in enumerate(writers):
        start = before.starts[number] if number < len(before.starts) else None
        for entity, change in read_changes(writer.path, machine, names, start, writer.seq + 1).items():
            known = changes.get(entity)
            if known is None or known.at <= change.at:
                changes[entity] = change.with_data_of(known)
            else:
                changes[entity] = known.with_data_of(change)
    states = before.states
    for entity, change in changes.items():
        states[entity] = change.state
        if change.data is not None:
            states.data[entity] = change.data
    for entity in [entity for entity, state in states.items() if state == ENDED or state in names]:
        states.drop(entity)
    places = [writer.log.position() for writer in writers]
    starts = tuple((segment, seq) for segment, _, seq in places)
    data = encode_states_file(StatesAtStart(machine, starts, states))
    replace_file(file, data, draft=file.with_name(f".{file.name}.new"), mode=mode)
    kept = frozenset(states)
    for writer, place in zip(writers, places, strict=True):
        at = StatesAt(machine, *place, LastStates())
        writer.keep_states(machine, LiveStates(writer.log, at, names, every=every, every_s=every_s, kept=kept))
    return states


def _read(file: Path, machine: str) -> StatesAtStart:
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
