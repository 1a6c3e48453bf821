"""Transition listeners, after Hadoop's StateTransitionListener and MultiStateTransitionListener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dispatcher.util.functions import require_methods


class StateTransitionListener(Protocol):
    """Called before and after each transition, on the thread that makes it.

    An error from `pre_transition` prevents the transition. An error from `post_transition` doesn't undo it. Both
    propagate to the caller of `do_transition`. If a transition is rejected or its hook raises, `pre_transition` was
    called and `post_transition` isn't. You can also add the methods of MachineListener.
    """

    def pre_transition(self, operand: Any, before: Any, event: Any) -> None:
        """Called before a transition, which you can prevent by raising an error."""

    def post_transition(self, operand: Any, before: Any, after: Any, event: Any) -> None:
        """Called after a transition, with the machine in its new state."""


class MachineListener(StateTransitionListener, Protocol):
    """A listener also called for each new machine and each rejected event.

    Both methods are optional. An error of `machine_made` propagates to the caller of `make`. An error of
    `transition_refused` propagates to the caller of `do_transition`, in place of the InvalidStateTransitionError.
    """

    def machine_made(self, operand: Any, machine: str, state: Any) -> None:
        """Called when a machine was made for `operand`, in `state`. `machine` is the factory's name."""

    def transition_refused(self, operand: Any, error: Any) -> None:
        """Called before the machine raises `error`, an InvalidStateTransitionError. Its state is unchanged."""


class MultiStateTransitionListener:
    """Calls several listeners, in the order you added them.

    A listener that raises in `pre_transition` prevents the transition, and later listeners aren't called. After a
    transition all listeners are called, even if some raise. Then the error is raised, or an ExceptionGroup of several.
    The same applies when a machine was made and when an event was rejected.

    Add listeners at any time, but only on the machines' thread. One added during a call is first called at the next.
    """

    __slots__ = ("_after", "_before", "_made", "_refused")

    def __init__(self, *listeners: StateTransitionListener) -> None:
        self._before: tuple[Callable[[Any, Any, Any], None], ...] = ()
        self._after: tuple[Callable[[Any, Any, Any, Any], None], ...] = ()
        self._made: tuple[Callable[[Any, str, Any], None], ...] = ()
        self._refused: tuple[Callable[[Any, Any], None], ...] = ()
        for listener in listeners:
            self.add_listener(listener)

    def add_listener(self, listener: StateTransitionListener) -> None:
        # New tuples of bound methods: a loop in progress does not see the change.
        """Add a listener after the others."""
        require_methods(listener, "listener", "a StateTransitionListener", "pre_transition", "post_transition")
        self._before = (*self._before, listener.pre_transition)
        self._after = (*self._after, listener.post_transition)
        made, refused = getattr(listener, "machine_made", None), getattr(listener, "transition_refused", None)
        if made is not None:
            self._made = (*self._made, made)
        if refused is not None:
            self._refused = (*self._refused, refused)

    def pre_transition(self, operand: Any, before: Any, event: Any) -> None:
        """Call each listener."""
        for notify in self._before:
            notify(operand, before, event)

    def post_transition(self, operand: Any, before: Any, after: Any, event: Any) -> None:
        """Call each listener."""
        errors: list[BaseException] = []
        for notify in self._after:
            try:
                notify(operand, before, after, event)
            except BaseException as error:
                errors.append(error)
        if errors:
            _raise(errors, f"after {before.name} -> {after.name}")

    def machine_made(self, operand: Any, machine: str, state: Any) -> None:
        """Call each listener."""
        errors: list[BaseException] = []
        for notify in self._made:
            try:
                notify(operand, machine, state)
            except BaseException as error:
                errors.append(error)
        if errors:
            _raise(errors, f"as a machine was made in {state.name}")

    def transition_refused(self, operand: Any, error: Any) -> None:
        """Call each listener."""
        errors: list[BaseException] = []
        for notify in self._refused:
            try:
                notify(operand, error)
            except BaseException as raised:
                errors.append(raised)
        if errors:
            _raise(errors, f"as {error.state.name} rejected an event")


def _raise(errors: list[BaseException], when: str) -> None:
    if len(errors) == 1:
        raise errors[0]
    raise BaseExceptionGroup(f"{len(errors)} listeners failed {when}", errors)  # an ExceptionGroup where it can be one
