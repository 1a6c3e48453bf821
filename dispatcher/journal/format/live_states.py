"""The payload of SNAPSHOT frames: the live entities of one kind of machine, each with its state.

It is lines of JSON. The first is an object with

    machine            the name of the kind
    segment, offset    where the first frame begins whose transitions are not in the snapshot
    seq                of the first event whose row is not before that
    entities           how many there are

Each further line is an object with some of the entities: from the id to the name of the state. An entity that has
reached a state in which it ends is not in a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from itertools import islice
from typing import Final, NamedTuple

from dispatcher.journal.format.columns import RowsPayload
from dispatcher.journal.format.schema import TRANSITIONS, Kind, Row

ENDED: Final = ""
"""Stands for the state of an entity that has ended."""
_ENTITIES_OF_A_LINE: Final = 4096
"""Encoding them takes less than a millisecond."""
[_ENTITY] = [column for column in TRANSITIONS.columns if column.name == "entity"]


class StatesAt(NamedTuple):
    """The live entities of one kind of machine, after all frames before a position."""

    machine: str
    segment: int
    offset: int
    """In that segment, in bytes."""
    seq: int
    """Of the first event whose row is not before the position."""
    states: dict[str, str]
    """By entity."""


def encode_states(at: StatesAt, pause: Callable[[], None] = lambda: None) -> bytes:
    """The payload of a snapshot. `pause` is called after each piece of work, which takes less than a millisecond."""
    about = {**at._asdict(), "entities": len(at.states)}
    del about["states"]
    lines = [json.dumps(about)]
    rest = iter(at.states.items())
    while some := dict(islice(rest, _ENTITIES_OF_A_LINE)):
        lines.append(json.dumps(some, separators=(",", ":")))
        pause()
    return "\n".join(lines).encode("ascii")


def machine_of(payload: bytes) -> str:
    """The kind of machine of a snapshot. Raises as `decode_states`."""
    return str(json.loads(payload.partition(b"\n")[0])["machine"])


def decode_states(payload: bytes) -> StatesAt:
    """Read a snapshot.

    Raises:
        ValueError, KeyError, TypeError: not a payload of a snapshot; impossible for one that passed its checksum.
    """
    first, *lines = payload.split(b"\n")
    about = json.loads(first)
    states: dict[str, str] = {}
    for line in lines:
        states.update(json.loads(line))
    if len(states) != about["entities"]:
        raise ValueError(f"has {len(states)} entities, but its first line says {about['entities']}")
    return StatesAt(about["machine"], about["segment"], about["offset"], about["seq"], states)


def target_of(kind: Kind, machine: str, ends: frozenset[str]) -> str | None:
    """The state to which a transition of this kind leads a machine, or ENDED; None: another's, or it was refused."""
    of, _, _, to_state, is_valid = kind
    if of != machine or not is_valid:
        return None
    return ENDED if to_state in ends else str(to_state)


def follow(states: dict[str, str], transitions: Iterable[Row], targets: Sequence[str | None]) -> None:
    """Bring the states up to date with transitions, in order. `targets`: by kind, its `target_of`."""
    for kind, _, entity, _ in transitions:
        target = targets[kind]
        if target:
            states[entity] = target
        elif target is not None:
            states.pop(entity, None)


def follow_frame(states: dict[str, str], rows: RowsPayload, machine: str, ends: frozenset[str]) -> None:
    """As `follow`, with the transitions of a frame."""
    targets = [target_of(tuple(kind), machine, ends) for kind in rows.kinds[TRANSITIONS.name]]
    if targets.count(None) < len(targets):
        pieces = rows.text_pieces(TRANSITIONS.stored_name(_ENTITY))
        entities = (text.decode() for _, lengths, texts in pieces for text in map(BytesIO(texts).read, lengths))
        kinds = rows.numbers(f"{TRANSITIONS.prefix}kind")
        follow(states, ((kind, 0, entity, 0) for kind, entity in zip(kinds, entities, strict=True)), targets)
