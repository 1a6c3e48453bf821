"""Who hears of a machine's transitions, after Hadoop's StateTransitionListener and MultiStateTransitionListener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class StateTransitionListener(Protocol):
    """Is told before and after each transition, on the thread that makes it.

    An error from `pre_transition` prevents the transition; one from `post_transition` comes too late to undo it.
    Either goes to the caller of `do_transition`. A transition that is refused, or whose hook raises, has been announced
    by `pre_transition` and is not followed by `post_transition`.
    """

    def pre_transition(self, operand: Any, before: Any, event: Any) -> None: ...

    def post_transition(self, operand: Any, before: Any, after: Any, event: Any) -> None: ...


class MultiStateTransitionListener:
    """Several listeners as one: tells each, in the order in which they were added.

    One that raises before a transition prevents it, and those after it hear nothing. After a transition, which then is
    a fact, all are told whatever the others raise; afterwards the error is raised, or an ExceptionGroup of several.

    Listeners may be added at any time, by the thread of the machines; one that is added while the others are told hears
    of the next step only.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, *listeners: StateTransitionListener) -> None:
        self._before: tuple[Callable[[Any, Any, Any], None], ...] = ()
        self._after: tuple[Callable[[Any, Any, Any, Any], None], ...] = ()
        for listener in listeners:
            self.add_listener(listener)

    def add_listener(self, listener: StateTransitionListener) -> None:
        """Tell `listener` too, after those that are there already."""
        # Bound methods in tuples: telling them is one loop and one call each, and sees no change under way.
        self._before = (*self._before, listener.pre_transition)
        self._after = (*self._after, listener.post_transition)

    def pre_transition(self, operand: Any, before: Any, event: Any) -> None:
        for tell in self._before:
            tell(operand, before, event)

    def post_transition(self, operand: Any, before: Any, after: Any, event: Any) -> None:
        errors: list[Exception] = []
        for tell in self._after:
            try:
                tell(operand, before, after, event)
            except Exception as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup(f"{len(errors)} listeners failed after {before.name} -> {after.name}", errors)
