"""What an arc runs beyond the one hook of a plain arc: guards, the hooks of the states that it leaves and enters, and a
seal. It looks to the machine like the hook of a multiple arc, so plain arcs cost what they did.

Threading: the steps of a table never change; a call runs on the thread of the transition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, NamedTuple, Protocol

from statemachines.declared import Hook, StateHook, TableRow, name_of


class Seal(Protocol):
    """Keeps what belongs to a machine's state, on the thread of the transition."""

    def seal(self, operand: Any, after: Enum, *, is_left: bool) -> None:
        """Called when all hooks have run, as the last step before the state changes. An error prevents that.

        `is_left`: the state before is left, also where the arc enters it again.
        """

    def undo(self, operand: Any) -> None:
        """Called if a hook raises or chooses an undeclared state: the state does not change."""


class NotTaken(NamedTuple):
    """What such a hook returns instead of a state: the event is refused. `why`: for the error."""

    why: Mapping[str, Any]


HooksOfStates = Mapping[tuple[str, Literal["entry", "exit"]], Sequence[Hook]]
"""By the state's name, in the order in which they were declared."""


def by_state(hooks: Iterable[StateHook]) -> HooksOfStates:
    """The hooks of each state."""
    found: dict[tuple[str, Literal["entry", "exit"]], list[Hook]] = {}
    for each in hooks:
        found.setdefault((each.state._name_, each.kind), []).append(each.hook)
    return found


def hook_of(rows: Sequence[TableRow], hooks: HooksOfStates, seal: Seal | None) -> ArcHook | None:
    """The hook of a state on an event that it has these rows for; None: its one arc is a plain one."""
    state = rows[0].transition.from_state
    entered = [post for row in rows for post in row.transition.to_states if post is not state or row.reenters]
    has_hooks = bool(entered) and (
        (state._name_, "exit") in hooks or any((s._name_, "entry") in hooks for s in entered)
    )
    if seal is None and not has_hooks and len(rows) == 1 and rows[0].guard is None:
        return None
    return ArcHook(sorted(rows, key=lambda row: row.guard is None), hooks, seal)


class ArcHook:
    """Chooses an arc by its guard, runs the hooks, and returns the state to enter, as the hook of a multiple arc."""

    __slots__ = ("_entries", "_exits", "_rows", "_seal", "_state")

    def __init__(self, rows: Sequence[TableRow], hooks: HooksOfStates, seal: Seal | None) -> None:
        """`rows`: of one state and event, in the order in which they are tried."""
        self._rows = tuple(rows)
        self._state = state = rows[0].transition.from_state
        self._exits = tuple(hooks.get((state._name_, "exit"), ()))
        posts = {post._name_ for row in rows for post in row.transition.to_states}
        self._entries = {name: tuple(hooks.get((name, "entry"), ())) for name in posts}
        self._seal = seal

    def __call__(self, operand: Any, event: Any) -> Any:
        """The state to enter, or NotTaken."""
        seal = self._seal
        if seal is None:
            return self._run(operand, event)
        try:
            target = self._run(operand, event)
        except BaseException:
            seal.undo(operand)
            raise
        if isinstance(target, NotTaken):
            seal.undo(operand)
        return target

    def _run(self, operand: Any, event: Any) -> Any:
        state = self._state
        for row in self._rows:
            if row.guard is None or row.guard(operand, event):
                break
        else:
            return NotTaken({"guards": [name_of(row.guard) for row in self._rows if row.guard is not None]})
        posts = row.transition.to_states
        chosen = row.hook(operand, event) if row.hook is not None else None
        target: Any = posts[0] if row.transition.arc == "single" else chosen
        if all(target is not post for post in posts):
            return NotTaken({"chosen": chosen})
        is_left = target is not state or row.reenters
        if is_left:
            for hook in self._exits:
                hook(operand, event)
            for hook in self._entries[target._name_]:
                hook(operand, event)
        if self._seal is not None:
            self._seal.seal(operand, target, is_left=is_left)
        return target
