"""The payload of SNAPSHOT frames: the live entities of one kind of machine, each with its state.

It is lines of JSON. The first is an object with

    machine            the name of the kind
    segment, offset    where the first frame begins whose transitions are not in the snapshot
    seq                of the first event whose row is not before that
    entities           how many there are

Each further line is an object with some of the entities: from the id to the name of the state, or to an array of that
and the text of the entity's data. An entity that has reached a state in which it ends is not in a snapshot.

The folder of a partitioned journal has a file for each kind of machine, with the live entities of all partitions at the
start of the last run. It has the same lines, but instead of one place the first line has

    starts             by partition, the segment and the seq with which the rows of that run begin

and a last line the checksum of the others. Snapshots of a partition then have the entities that changed in the run. One
that was live at its start and has ended since has the state "".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from zlib import crc32

from dispatcher.journal.format.columns import RowsPayload
from dispatcher.journal.format.schema import TRANSITIONS, Kind, Row

ENDED: Final = ""
"""Stands for the state of an entity that has ended."""
STATES_FILES: Final = "states-*.jsonl"
_ENTITIES_OF_A_LINE: Final = 4096
"""Entities encoded at a time, which takes less than a millisecond."""
[_ENTITY, _AT] = [column for column in TRANSITIONS.columns if column.name in ("entity", "at")]


class LastStates(dict[str, str]):
    """By entity, the name of its state."""

    __slots__ = ("data",)

    def __init__(self, states: Mapping[str, str] = MappingProxyType({}), data: Mapping[str, str] | None = None) -> None:
        super().__init__(states)
        self.data: dict[str, str] = dict(data or {})
        """By entity, the text of its data, of those that have any."""

    def copy(self) -> LastStates:
        return LastStates(self, self.data)

    def drop(self, entity: str) -> None:
        """The entity has ended."""
        self.pop(entity, None)
        self.data.pop(entity, None)


class StatesAt(NamedTuple):
    """The live entities of one kind of machine, after all frames before a position."""

    machine: str
    segment: int
    offset: int
    """In that segment, in bytes."""
    seq: int
    """Of the first event whose row is not before the position."""
    states: LastStates


class StatesAtStart(NamedTuple):
    """The live entities of one kind of machine, of all partitions of a journal at the start of a run."""

    machine: str
    starts: tuple[tuple[int, int], ...]
    """By partition, where the rows of the run begin: the number of the segment, and the seq."""
    states: LastStates


class StateChange(NamedTuple):
    """A change of an entity."""

    at: int
    """Unix ns on the run's clock; 0: a snapshot has it, without its time."""
    entity: str
    state: str
    """After it, or ENDED."""
    data: str | None = None
    """The text of the entity's data, if that changed."""


def encode_states(at: StatesAt | StatesAtStart, pause: Callable[[], None] = lambda: None) -> bytes:
    """The payload of a snapshot. `pause` is called after each piece of work, which takes less than a millisecond."""
    about = {**at._asdict(), "entities": len(at.states)}
    del about["states"]
    lines = [json.dumps(about)]
    states, data = at.states, at.states.data
    rest = iter(states.items() if not data else ((each, _with_data(states[each], data.get(each))) for each in states))
    while some := dict(islice(rest, _ENTITIES_OF_A_LINE)):
        lines.append(json.dumps(some, separators=(",", ":")))
        pause()
    return "\n".join(lines).encode("ascii")


def _with_data(state: str, data: str | None) -> str | list[str]:
    return state if data is None else [state, data]


def machine_of(payload: bytes) -> str:
    """The kind of machine of a snapshot. Raises as `decode_states`."""
    return str(json.loads(payload.partition(b"\n")[0])["machine"])


def decode_states(payload: bytes) -> StatesAt:
    """Read a snapshot.

    Raises:
        ValueError, KeyError, TypeError: not a payload of a snapshot; impossible for one that passed its checksum.
    """
    about, states = _decode(payload)
    return StatesAt(about["machine"], about["segment"], about["offset"], about["seq"], states)


def _decode(payload: bytes) -> tuple[dict[str, Any], LastStates]:
    first, *lines = payload.split(b"\n")
    about = json.loads(first)
    states = LastStates()
    for line in lines:
        for entity, found in json.loads(line).items():
            if isinstance(found, str):
                states[entity] = found
            else:
                states[entity], states.data[entity] = found
    if len(states) != about["entities"]:
        raise ValueError(f"has {len(states)} entities, but its first line says {about['entities']}")
    return about, states


def states_file(journal: Path, machine: str) -> Path:
    """The file of this kind of machine in the folder of a partitioned journal."""
    return journal / STATES_FILES.replace("*", quote(machine, safe=""))


def encode_states_file(states: StatesAtStart) -> bytes:
    payload = encode_states(states)
    return payload + b'\n{"check": "%08x"}\n' % crc32(payload)


def decode_states_file(data: bytes) -> StatesAtStart:
    """Read such a file. Raises ValueError: it is damaged."""
    payload, _, check = data.removesuffix(b"\n").rpartition(b"\n")
    if check != b'{"check": "%08x"}' % crc32(payload):
        raise ValueError("is damaged")
    about, states = _decode(payload)
    return StatesAtStart(about["machine"], tuple((segment, seq) for segment, seq in about["starts"]), states)


def target_of(kind: Kind, machine: str, ends: frozenset[str]) -> str | None:
    """The state to which a transition of this kind leads a machine, or ENDED; None: another's, or it was refused."""
    of, _, _, to_state, is_valid = kind
    if of != machine or not is_valid:
        return None
    return ENDED if to_state in ends else str(to_state)


def follow(
    states: LastStates,
    transitions: Iterable[Row],
    targets: Sequence[str | None],
    kept: Container[str] = frozenset(),
) -> None:
    """Bring the states up to date with transitions, in order. `targets`: by kind, its `target_of`. An entity that ends
    is ENDED if it is one of the `kept`, and removed if not."""
    for kind, _, entity, _, data in transitions:
        target = targets[kind]
        if target:
            states[entity] = target
            if data is not None:
                states.data[entity] = data
        elif target is not None:
            states.drop(entity)
            if entity in kept:
                states[entity] = ENDED


def follow_frame(states: LastStates, rows: RowsPayload, machine: str, ends: frozenset[str]) -> None:
    """Bring the states up to date with the transitions of a frame. No entity that ends is kept."""
    targets = _targets(rows, machine, ends)
    if targets.count(None) < len(targets):
        follow(states, _transitions(rows), targets)


def changes_in(rows: RowsPayload, machine: str, ends: frozenset[str]) -> Iterator[StateChange]:
    """The changes of the machine's entities that the transitions of a frame make, in order."""
    targets = _targets(rows, machine, ends)
    if targets.count(None) < len(targets):
        for kind, _, entity, at, data in _transitions(rows):
            target = targets[kind]
            if target is not None:
                yield StateChange(at, entity, target, data)


def _targets(rows: RowsPayload, machine: str, ends: frozenset[str]) -> list[str | None]:
    return [target_of(tuple(kind), machine, ends) for kind in rows.kinds[TRANSITIONS.name]]


def _transitions(rows: RowsPayload) -> Iterator[Row]:
    """The transitions of a frame, without their seqs."""
    pieces = rows.text_pieces(TRANSITIONS.stored_name(_ENTITY))
    entities = (text.decode() for _, lengths, texts in pieces for text in map(BytesIO(texts).read, lengths))
    kinds, at = rows.numbers(f"{TRANSITIONS.prefix}kind"), rows.numbers(TRANSITIONS.stored_name(_AT))
    return ((kind, 0, *each) for kind, *each in zip(kinds, entities, at, rows.data(), strict=True))
