"""Rings of transitions: the process's own, and others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dispatcher.metrics.transition_ring import TransitionRing, ring


@contextmanager
def ring_of_process(most: int) -> Iterator[None]:
    """An empty ring with room for this many transitions. A door enlarges it to what it needs, and never shrinks it."""
    before = ring.most
    ring.resize(0)
    ring.resize(most)
    try:
        yield
    finally:
        ring.resize(0)
        ring.resize(before)


def new_ring(*most: int) -> TransitionRing:
    return TransitionRing(*most)


def moves_in_process(entity: str) -> list[tuple[str, str, str | None, bool]]:
    """The transitions of an entity of the machine Thing, newest first: from, event, to, and whether it is valid."""
    found = ring.history(entity, "Thing").transitions
    return [(each.from_state, each.event_type, each.to_state, each.valid) for each in found]
