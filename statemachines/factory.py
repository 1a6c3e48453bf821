"""State machines from a table, after Hadoop's StateMachineFactory.

A factory is an immutable builder: each `add_transition` returns a new factory, and a later arc for the same state and
event replaces the earlier one. `install_topology` builds the table, which all machines of the factory share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from enum import Enum
from threading import get_ident
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from dispatcher.errors import DispatcherError, InvalidTypeError, InvalidValueError
from dispatcher.queue.due import duration_ns
from dispatcher.util.foreign import id_text
from dispatcher.util.functions import require_plain
from statemachines.arc_hooks import NotTaken, Seal
from statemachines.declared import (
    ArcKind,
    MachineTable,
    StateHook,
    TableRow,
    Timeout,
    Transition,
    in_order,
    name_of,
)
from statemachines.listener import StateTransitionListener
from statemachines.topology import Node, Nodes, StepRecorder, ThreadTables, build, here

S = TypeVar("S", bound=Enum)
OPERAND = TypeVar("OPERAND")
_NOTHING_CHOSEN: Any = object()
_LEAST_TIMEOUT_NS: Final = 1_000_000


class InvalidStateTransitionError(DispatcherError):
    """Raised when a state rejects an event, no guard holds, or a hook returns a state that its arc does not declare.

    The machine's state is unchanged. `machine` is the factory's name, `entity` identifies the operand.
    """

    def __init__(
        self,
        state: Enum,
        event: Any,
        event_type: Enum | None = None,
        *,
        machine: str = "",
        entity: str = "",
        accepted: Iterable[str] | None = None,
        chosen: Any = _NOTHING_CHOSEN,
        guards: Iterable[str] = (),
    ) -> None:
        self.machine = machine
        self.entity = entity
        self.state = state
        self.event = event
        self.event_type: Any = getattr(event, "type", event) if event_type is None else event_type
        name = getattr(self.event_type, "name", self.event_type)
        if chosen is not _NOTHING_CHOSEN:
            problem = f"the hook of {state.name} on {name} chose {chosen!r}, which its arc does not declare."
            advice = "Add it to the arc's post states."
        elif guards:
            problem = f"no transition from {state.name} on {name}: no guard holds ({', '.join(guards)})."
            advice = "Add an arc without a guard for all other cases, or drop the event before sending it."
        else:
            problem = f"no transition from {state.name} on {name}"
            problem += f"; {state.name} accepts {', '.join(accepted) or 'nothing'}." if accepted is not None else "."
            advice = "Add the pair to the factory, or drop the event before sending it."
        about = f"{machine} {entity}".strip() or "state machine"
        super().__init__(f"{about}: {problem} {advice}")


class _Declaration(NamedTuple):
    """What one call declared, linked to the call before it: adding an arc copies nothing."""

    before: _Declaration | None
    declared: Sequence[TableRow | StateHook | Timeout]


class StateMachineFactory(Generic[S, OPERAND]):
    """An immutable table of transitions, which makes the machines that follow it. You can share it between threads.

    A single arc has one post state. Its optional hook runs first and its result is ignored. You declare a multiple arc
    with a set of post states, and its hook returns the one to enter. States can have hooks of their own and timeouts.
    """

    __slots__ = ("_declared", "_initial_state", "_name", "_nodes", "_recorder", "_tables")

    def __init__(self, initial_state: S, name: str = "") -> None:
        self._initial_state = initial_state
        self._name = name
        self._declared: _Declaration | None = None  # the last one
        self._nodes: Nodes | None = None  # built on first use; threads that race build equal tables
        # The StepRecorder, also a listener, to which the steps of the `_tables` belong. Both are set as it is made.
        self._recorder: Any = None
        self._tables: ThreadTables | None = None

    @property
    def name(self) -> str:
        """The machines' name, in errors, metrics and the journal."""
        return self._name

    @property
    def initial_state(self) -> S:
        """The first state of a machine."""
        return self._initial_state

    def add_transition(
        self,
        pre: S | Set[S],
        post: S | Collection[S],
        event_types: Enum | Iterable[Enum],
        hook: Callable[[OPERAND, Any], Any] | None = None,
        *,
        guard: Callable[[OPERAND, Any], object] | None = None,
        reenter: bool = False,
    ) -> StateMachineFactory[S, OPERAND]:
        """Return a new factory with one more arc for each state of `pre` and each event type.

        `pre` is a state or a set of states. `post` is a state, or a set of states. Then `hook(operand, event)` returns
        one of them.

        `guard`: the arc is taken only if `guard(operand, event)` is true. The guarded arcs of a state and an event are
            tried in the order you declared them, then the one without a guard. If none holds, the state rejects the
            event. A later arc replaces the earlier one with the same guard, or the earlier one without a guard.
        `reenter`: an arc from a state to itself leaves the state and enters it again: hooks of its exit and entry run,
            and its timeout starts over. By default, such an arc stays in the state.

        Raises:
            ValueError: no pre state, no event type, no post state, a set of post states without a hook, or `reenter` on
                an arc that never leads to the state it starts from.
            TypeError: a state or an event type isn't an Enum member, or `guard` isn't a plain function.
        """
        pres = _members(pre, Set)
        types = (event_types,) if isinstance(event_types, Enum) else in_order(event_types)
        arc: ArcKind = "single" if isinstance(post, Enum) else "multiple"
        posts = _members(post, object)
        for member in (*pres, *posts, *types):
            if not isinstance(member, Enum):
                raise InvalidTypeError(f"states and event types are Enum members, got {member!r}")
        if not pres:
            raise InvalidValueError(f"to {_names(posts)}: an arc needs at least one pre state")
        if not types or not posts:
            raise InvalidValueError(f"from {_names(pres)}: an arc needs at least one event type and one post state")
        if arc == "multiple" and hook is None:
            raise InvalidValueError(
                f"from {_names(pres)} to {{{_names(posts)}}}: an arc to a set of states needs a hook that chooses"
            )
        if guard is not None:
            guard = require_plain(guard, "guard", "takes the operand and the event", is_hot=True)
        if reenter and not any(pre is post for pre in pres for post in posts):
            raise InvalidValueError(
                f"from {_names(pres)} to {_names(posts)}: reenter=True is for an arc from a state to itself"
            )
        why = "" if guard is None else name_of(guard)
        transitions = [Transition(pre, event_type, posts, arc, why) for pre in pres for event_type in types]
        return self._and([TableRow(transition, hook, guard, reenter) for transition in transitions])

    def on_entry(self, states: S | Set[S], hook: Callable[[OPERAND, Any], Any]) -> StateMachineFactory[S, OPERAND]:
        """Return a new factory whose machines call `hook(operand, event)` as they enter one of the states.

        It's called after the arc's own hook and the exit hooks of the state that is left, before the state changes. If
        it raises, the state stays as it was. A machine made in a state doesn't enter it, and an arc from a state to
        itself only does with `reenter=True`. A state can have several, called in the order you declared them.

        Raises:
            ValueError: no state.
            TypeError: a state isn't an Enum member, or `hook` isn't a plain function.
        """
        return self._with_hook(states, "entry", hook)

    def on_exit(self, states: S | Set[S], hook: Callable[[OPERAND, Any], Any]) -> StateMachineFactory[S, OPERAND]:
        """Return a new factory whose machines call `hook(operand, event)` as they leave one of the states.

        Otherwise as `on_entry`.
        """
        return self._with_hook(states, "exit", hook)

    def _with_hook(self, states: Any, kind: Literal["entry", "exit"], hook: Any) -> StateMachineFactory[S, OPERAND]:
        members = _states(states, f"on_{kind}")
        hook = require_plain(hook, "hook", "takes the operand and the event", is_hot=True)
        return self._and([StateHook(state, kind, hook) for state in members])

    def timeout(self, states: S | Set[S], seconds: float, event_type: Enum) -> StateMachineFactory[S, OPERAND]:
        """Return a new factory whose entities get an event of this type once they've been in the state for `seconds`.

        The state needs an arc for the event type. `Entities` keeps the time on the timers of its dispatcher. A machine
        that you `make` yourself has no timers, so send it the event. A later timeout replaces the earlier one of the
        same state and event type.

        Raises:
            ValueError: no state, or `seconds` isn't a number from 0.001 to a century.
            TypeError: a state or the event type isn't an Enum member, or `seconds` isn't a number.
        """
        members = _states(states, "timeout")
        if not isinstance(event_type, Enum):
            raise InvalidTypeError(f"states and event types are Enum members, got {event_type!r}")
        if duration_ns("seconds", seconds) < _LEAST_TIMEOUT_NS:
            raise InvalidValueError(f"a timeout of {_names(members)} takes at least 0.001 seconds, not {seconds}")
        return self._and([Timeout(state, seconds, event_type) for state in members])

    def install_topology(self) -> StateMachineFactory[S, OPERAND]:
        """Return a factory with its table already built, so the first `make` doesn't wait for it.

        Raises:
            ValueError: two Enums share a state's or an event type's name, or a state doesn't accept the event of its
                timeout.
        """
        return self._with(self._declared, self._built())

    def sealed_by(self, seal: Seal) -> StateMachineFactory[S, OPERAND]:
        """Return a factory whose machines call the seal as the last step before each change of state.

        Raises:
            ValueError: as `install_topology`.
        """
        return self._with(self._declared, build(self._initial_state, self._name, self._table(), seal))

    def recorded_by(self, recorder: StepRecorder) -> StateMachineFactory[S, OPERAND]:
        """Return a factory with tables of its own, whose steps belong to the recorder.

        If the recorder is their listener, its machines count each transition in its step, at a third of the cost of a
        listener's two calls. Don't make the recorder another machine's listener there: `synchronized` machines and
        those with other listeners count nothing.

        Raises:
            ValueError: as `install_topology`.
        """
        nodes = self._built()
        factory = self._with(self._declared, nodes)
        factory._recorder, factory._tables = recorder, ThreadTables(self._name, nodes, recorder)
        return factory

    def make(
        self,
        operand: OPERAND,
        initial_state: S | None = None,
        listener: StateTransitionListener | None = None,
        *,
        synchronized: bool = False,
    ) -> StateMachine[S, OPERAND]:
        """Make a machine for `operand`, in `initial_state` or the factory's initial state.

        `initial_state` is any member of the states' Enum. A state without arcs rejects every event.

        The machine belongs to the one thread that handles the operand's events. With `synchronized` any thread can use
        it, as in Hadoop: see `SynchronizedStateMachine`.

        A listener's `machine_made` is called, and its error propagates.

        Raises:
            ValueError: `initial_state` is a member of another Enum.
        """
        nodes = self._nodes or self._built()
        if initial_state is None:
            node = nodes[self._initial_state._name_]
        else:
            found = nodes.get(initial_state._name_)
            if found is None or found.state is not initial_state:
                raise InvalidValueError(f"{self._name or 'state machine'}: {initial_state!r} is not one of its states")
            node = found
        machine: StateMachine[S, OPERAND]
        if synchronized:
            machine = SynchronizedStateMachine(node, operand, listener)
        elif listener is not None and listener is self._recorder and self._tables is not None:
            machine = RecordedStateMachine(self._tables.here()[node.state._name_], operand, listener)
        else:
            machine = StateMachine(node, operand, listener)
        if listener is not None:
            announce = getattr(listener, "machine_made", None)
            if announce is not None:
                announce(operand, self._name, node.state)
        return machine

    def transitions(self) -> Iterator[Transition]:
        """Return the table's rows in the order you declared them. A replacement keeps the position of its arc."""
        return (row.transition for row in self._table().rows)

    def hooks(self) -> Iterator[StateHook]:
        """Return the entry and exit hooks of the states in the order you declared them."""
        return iter(self._table().hooks)

    def timeouts(self) -> Iterator[Timeout]:
        """Return the timeouts of the states in the order you declared them."""
        return iter(self._table().timeouts)

    def _table(self) -> MachineTable:
        calls: list[Sequence[TableRow | StateHook | Timeout]] = []
        last = self._declared
        while last is not None:
            calls.append(last.declared)
            last = last.before
        # Keyed by identity: members of two Enums that mix in int or str can be equal.
        rows: dict[tuple[int, int, int], TableRow] = {}
        hooks: list[StateHook] = []
        timeouts: dict[tuple[int, int], Timeout] = {}
        for each in (each for declared in reversed(calls) for each in declared):
            if isinstance(each, StateHook):
                hooks.append(each)
            elif isinstance(each, Timeout):
                timeouts[id(each.state), id(each.event)] = each
            else:
                rows[id(each.transition.from_state), id(each.transition.event), id(each.guard)] = each
        for key, row in rows.items():
            timeout = timeouts.get(key[:2])
            if timeout is not None:
                rows[key] = row._replace(transition=row.transition._replace(after_s=timeout.seconds))
        return MachineTable(list(rows.values()), hooks, list(timeouts.values()))

    def _built(self) -> Nodes:
        if self._nodes is None:
            self._nodes = build(self._initial_state, self._name, self._table())
        return self._nodes

    def _and(self, declared: Sequence[TableRow | StateHook | Timeout]) -> StateMachineFactory[S, OPERAND]:
        return self._with(_Declaration(self._declared, declared), None)

    def _with(self, declared: _Declaration | None, nodes: Nodes | None) -> StateMachineFactory[S, OPERAND]:
        factory: StateMachineFactory[S, OPERAND] = StateMachineFactory(self._initial_state, self._name)
        factory._declared = declared
        factory._nodes = nodes
        return factory


def _names(states: Iterable[Enum]) -> str:
    return ", ".join(state.name for state in states)


def _members(given: Any, kind: type) -> tuple[Any, ...]:
    """A state, or each of several that are a `kind` of collection."""
    if isinstance(given, Enum) or not isinstance(given, kind):
        return (given,)
    members: Any = given
    return in_order(members)


def _states(given: Any, what: str) -> tuple[Enum, ...]:
    """The states that `what` is declared for. Raises ValueError, TypeError."""
    states = _members(given, Set)
    for member in states:
        if not isinstance(member, Enum):
            raise InvalidTypeError(f"states and event types are Enum members, got {member!r}")
    if not states:
        raise InvalidValueError(f"{what} needs at least one state")
    return states


_FIELDS: Final = ("_listener", "_node", "_operand", "_previous")


class StateMachine(Generic[S, OPERAND]):
    """One machine. It belongs to the one thread that handles its operand's events.

    It takes no lock, so of two concurrent transitions, one is lost without an error. If your events come from several
    threads, use `StateMachineFactory.make(..., synchronized=True)`.
    """

    # A daemon has one machine per entity, so whatever the machines of a kind share is in their nodes.
    __slots__ = _FIELDS

    def __init__(self, node: Node, operand: OPERAND, listener: StateTransitionListener | None) -> None:
        self._node = node
        self._previous: Enum | None = None
        self._operand: OPERAND | None = operand  # None: released
        self._listener = listener

    @property
    def current_state(self) -> S:
        """The state, a member of an Enum. Thread-safe."""
        return self._node.state  # type: ignore[return-value]

    @property
    def operand(self) -> OPERAND | None:
        """The object passed to the hooks, or None once the machine is released."""
        return self._operand

    @property
    def previous_state(self) -> S | None:
        """The state before the last transition, or None before the first."""
        return self._previous  # type: ignore[return-value]

    def do_transition(self, event_type: Enum, event: Any) -> S:
        """Make the transition of the current state on `event_type` and return the new state.

        The order is: listener's `pre_transition`, guards, the arc's hook, exit hooks of the state that is left, entry
        hooks of the one to enter, state change, listener's `post_transition`. If one of those before the state change
        raises, you get its error, the state is unchanged, and `post_transition` isn't called. If
        `post_transition` raises, you get its error, and the transition stands. For a rejected event,
        `transition_refused` is called, and the state is unchanged.

        A hook or a listener can send its own machine another event. That transition runs at once, within this one. As
        in Hadoop, a transition made by a hook starts from the state before this transition, and this transition then
        overwrites its result. To have the event handled afterwards, post it to the dispatcher.

        Raises:
            InvalidStateTransitionError: the state doesn't accept the event, no guard holds, or the hook chose an
                undeclared state.
        """
        node = self._node
        operand = self._operand
        listener = self._listener
        if listener is not None:
            listener.pre_transition(operand, node.state, event)
            node = self._node  # the listener may itself have sent the machine an event
        arc = node.arcs.get(event_type._name_)
        if arc is None or arc.event_type is not event_type:
            raise self._refusal(listener, node, operand, event_type, event, accepted=node.arcs)
        hook = arc.hook
        target = arc.target
        if target is not None:
            if hook is not None:
                hook(operand, event)
        else:
            assert hook is not None  # `add_transition` rejects a multiple arc without a hook
            chosen = hook(operand, event)
            target = arc.targets.get(id(chosen))
            if target is None:
                raise self._refusal(listener, node, operand, event_type, event, chosen=chosen)
        self._previous = node.state
        self._node = target
        if listener is not None:
            listener.post_transition(operand, node.state, target.state, event)
        return target.state  # type: ignore[return-value]

    def release(self) -> None:
        """Drop the operand and the listener after the last transition. You can still read the states.

        Operand and machine usually refer to each other, and only the cyclic garbage collector would free the pair. A
        hook can call this during the last transition. The listener still receives its `post_transition`.
        """
        self._operand = None
        self._listener = None

    def _refusal(
        self, listener: Any, node: Node, operand: Any, event_type: Enum, event: Any, **why: Any
    ) -> InvalidStateTransitionError:
        """The error of a refused event, once the listener has been called."""
        if isinstance(why.get("chosen"), NotTaken):
            why = dict(why["chosen"].why)
        entity = getattr(operand, "entity", None) or type(operand).__name__
        error = InvalidStateTransitionError(
            node.state, event, event_type, machine=node.machine, entity=id_text(entity), **why
        )
        tell = getattr(listener, "transition_refused", None)
        if tell is not None:
            tell(operand, error)
        return error


class RecordedStateMachine(StateMachine[S, OPERAND]):
    """A machine whose only listener is the recorder to which the steps of its tables belong.

    It behaves like a machine with that listener, and does the listener's commonest work itself: it counts, in the table
    of the thread that it runs on.
    """

    __slots__ = ()

    def do_transition(self, event_type: Enum, event: Any) -> S:
        node, thread = self._node, get_ident()
        if node.thread != thread:
            node = here(node)
        operand, recorder = self._operand, self._listener  # a hook may release the machine
        origin = None
        if recorder is not None:
            journal = recorder.journal  # type: ignore[attr-defined]  # a StepRecorder
            if journal is not None:  # the first check of its `origin`, without the call
                origin = journal if journal.event_thread == thread else journal.origin()
        arc = node.arcs.get(event_type._name_)
        if arc is None or arc.event_type is not event_type:
            raise self._refusal(recorder, node, operand, event_type, event, accepted=node.arcs)
        hook, target = arc.hook, arc.target
        if target is not None:
            if hook is not None:
                hook(operand, event)
            step = arc.step
        else:
            assert hook is not None  # as in `StateMachine`
            chosen = hook(operand, event)
            target = arc.targets.get(id(chosen))
            if target is None:
                raise self._refusal(recorder, node, operand, event_type, event, chosen=chosen)
            step = arc.steps[id(chosen)]
        self._previous = node.state
        self._node = target
        if recorder is not None:
            step.count += 1  # type: ignore[union-attr]  # an arc of this table has its steps
            if recorder.is_following:  # type: ignore[attr-defined]
                recorder.record(operand, step, event, origin)  # type: ignore[attr-defined]
        return target.state  # type: ignore[return-value]


class SynchronizedStateMachine(StateMachine[S, OPERAND]):
    """A machine to which any thread may send events, with the rules of Hadoop's synchronized `doTransition`.

    One transition runs at a time, including its listeners: another thread's event waits for the transition in progress
    and finds the state that it leaves behind. The lock is reentrant, like Java's monitors, so a hook or a listener may
    send its own machine an event on the same thread (see `do_transition`). A hook that waits for another thread to
    send an event deadlocks.

    Unlike Hadoop's `getCurrentState`, `current_state` and `previous_state` do not wait: during a transition they return
    the states before it. A copied or unpickled machine has its own lock.
    """

    __slots__ = ("_lock",)

    def __init__(self, node: Node, operand: OPERAND, listener: StateTransitionListener | None) -> None:
        super().__init__(node, operand, listener)
        self._lock = threading.RLock()  # any thread; held through a transition, hook and listeners included

    def do_transition(self, event_type: Enum, event: Any) -> S:
        with self._lock:
            return super().do_transition(event_type, event)

    def release(self) -> None:
        """Release the operand, once another thread's transition in progress has ended."""
        with self._lock:
            super().release()

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        with self._lock:
            return None, {name: getattr(self, name) for name in _FIELDS}

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        self._lock = threading.RLock()
        for name, value in state[1].items():
            setattr(self, name, value)
