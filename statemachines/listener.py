"""Transition listeners, after Hadoop's StateTransitionListener and MultiStateTransitionListener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class StateTransitionListener(Protocol):
    """Called before and after each transition, on the thread that makes it.

    An error from `pre_transition` prevents the transition; an error from `post_transition` does not undo it. Both
    propagate to the caller of `do_transition`. A transition that is refused, or whose hook raises, has a
    `pre_transition` call but no `post_transition` call.
    """

    def pre_transition(self, operand: Any, before: Any, event: Any) -> None: ...

    def post_transition(self, operand: Any, before: Any, after: Any, event: Any) -> None: ...


class MultiStateTransitionListener:
    """Calls several listeners, in the order in which they were added.

    A listener that raises in `pre_transition` prevents the transition, and later listeners are not called. After a
    transition all listeners are called, whatever they raise; then the error is raised, or an ExceptionGroup of several.

    Only the machines' thread may add listeners, at any time; one added during a call is first called at the next.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, *listeners: StateTransitionListener) -> None:
        self._before: tuple[Callable[[Any, Any, Any], None], ...] = ()
        self._after: tuple[Callable[[Any, Any, Any, Any], None], ...] = ()
        for listener in listeners:
            self.add_listener(listener)

    def add_listener(self, listener: StateTransitionListener) -> None:
        # New tuples of bound methods: a loop in progress does not see the change.
        self._before = (*self._before, listener.pre_transition)
        self._after = (*self._after, listener.post_transition)

    def pre_transition(self, operand: Any, before: Any, event: Any) -> None:
        for notify in self._before:
            notify(operand, before, event)

    def post_transition(self, operand: Any, before: Any, after: Any, event: Any) -> None:
        errors: list[Exception] = []
        for notify in self._after:
            try:
                notify(operand, before, after, event)
            except Exception as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup(f"{len(errors)} listeners failed after {before.name} -> {after.name}", errors)
