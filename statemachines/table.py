"""Tables of transitions: the rows of a machine as data, each for several states and events."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any, TypeVar

from statemachines.declared import Hook
from statemachines.factory import StateMachineFactory

S = TypeVar("S", bound=Enum)
STAY = None
"""The post state of a row that leaves each of its states as it is."""
_Arc = tuple[S | Collection[S], S | Collection[S] | None, Enum | Collection[Enum]]
_HookedArc = tuple[S | Collection[S], S | Collection[S] | None, Enum | Collection[Enum], Hook]
Row = _Arc[S] | _HookedArc[S]
"""(state or states, post state, event or events, hook if any), as `StateMachineFactory.add_transition` takes them."""


def from_table(name: str, states: type[S], rows: Collection[Row[S]]) -> StateMachineFactory[S, Any]:
    """The factory of the machine `name`, which starts in the first of its `states`. The table is sorted by state."""
    factory: StateMachineFactory[S, Any] = StateMachineFactory(next(iter(states)), name)
    for state in states:
        for pre, post, events, *hook in rows:
            if state is pre or (not isinstance(pre, Enum) and state in pre):
                factory = factory.add_transition(state, state if post is STAY else post, events, *hook)
    return factory.install_topology()
