"""What a factory declares of a kind of machine: the rows of its table, the hooks and the timeouts of its states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple

Hook = Callable[[Any, Any], Any]
ArcKind = Literal["single", "multiple"]


class Transition(NamedTuple):
    """One row of a factory's table."""

    from_state: Enum
    event: Enum
    to_states: tuple[Enum, ...]
    arc: ArcKind
    guard: str = ""
    """The name of its guard. The state's rows for the event are tried in order, the one without a guard last."""
    after_s: float | None = None
    """The state's timeout with this event, in seconds, if it has one."""


class StateHook(NamedTuple):
    """A hook of a state. `kind`: "entry" or "exit"."""

    state: Enum
    kind: Literal["entry", "exit"]
    hook: Hook

    @property
    def name(self) -> str:
        """The function's name."""
        return name_of(self.hook)


class Timeout(NamedTuple):
    """An entity that has been in `state` for `seconds` gets an event of the type `event`."""

    state: Enum
    seconds: float
    event: Enum


class TableRow(NamedTuple):
    transition: Transition
    hook: Hook | None
    guard: Hook | None = None
    reenters: bool = False


class MachineTable(NamedTuple):
    """All that was declared of a kind of machine."""

    rows: Sequence[TableRow]
    hooks: Sequence[StateHook] = ()
    timeouts: Sequence[Timeout] = ()


def name_of(function: Hook) -> str:
    """A function's name, for a reader of the table."""
    name = getattr(function, "__name__", None)
    return str(name).strip("<>") if name else type(function).__name__


def in_order(members: Iterable[Enum]) -> tuple[Enum, ...]:
    """The distinct members as given; a set in the order of its Enum, so that each run builds the same table."""
    if not isinstance(members, (set, frozenset)):
        return tuple({id(member): member for member in members}.values())
    return tuple(sorted(members, key=_place))


def _place(member: Any) -> tuple[str, int]:
    """Sort key: the Enum's name, for sets that mix Enums, then the member's position in it."""
    return (type(member).__qualname__, list(type(member)).index(member)) if isinstance(member, Enum) else ("", -1)
