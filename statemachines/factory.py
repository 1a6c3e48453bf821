"""State machines from a table, after Hadoop's StateMachineFactory.

A factory is an immutable builder: each `add_transition` returns a new one, and a later arc for the same state and event
replaces the earlier. `install_topology` builds the table that all machines made from it share.

The table is one dict per state, keyed by the event type's name: hashing an Enum member runs Python code, hashing a
string that has been hashed before does not. An identity check then makes sure that the name is of the right Enum.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from dispatcher.errors import DispatcherError
from statemachines.listener import StateTransitionListener

S = TypeVar("S", bound=Enum)
OPERAND = TypeVar("OPERAND")

Hook = Callable[[Any, Any], Any]
ArcKind = Literal["single", "multiple"]
_NOTHING_CHOSEN: Any = object()


class InvalidStateTransitionError(DispatcherError):
    """A state does not take an event, or a hook returned a state that its arc does not declare.

    The machine's state is unchanged. `machine` is the factory's name, `entity` says whose machine it is.
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
        else:
            problem = f"no transition from {state.name} on {name}"
            problem += f"; {state.name} accepts {', '.join(accepted) or 'nothing'}." if accepted is not None else "."
            advice = "Add the pair to the factory, or drop the event before sending it."
        about = f"{machine} {entity}".strip() or "state machine"
        super().__init__(f"{about}: {problem} {advice}")


class Transition(NamedTuple):
    """One row of a factory's table."""

    from_state: Enum
    event: Enum
    to_states: tuple[Enum, ...]
    arc: ArcKind


class _Declaration(NamedTuple):
    """What one `add_transition` said, and the ones before it: adding copies nothing, so a table costs its length."""

    before: _Declaration | None
    pre: Enum
    posts: tuple[Enum, ...]
    event_types: tuple[Enum, ...]
    hook: Hook | None
    arc: ArcKind


class _Row(NamedTuple):
    transition: Transition
    hook: Hook | None


class _Arc:
    """What a state does on an event. Shared by all machines of a factory; never changed."""

    __slots__ = ("event_type", "hook", "target", "targets")

    def __init__(self, event_type: Enum, hook: Hook | None) -> None:
        self.event_type = event_type
        self.hook = hook
        self.target: _Node | None = None  # of a single arc
        self.targets: dict[int, _Node] = {}  # of a multiple one, by the state's id(): nothing else will do as a choice


class _Node:
    """A state and its arcs, by the event type's name. It knows the factory's name so that machines need not."""

    __slots__ = ("arcs", "machine", "state")

    def __init__(self, state: Enum, machine: str) -> None:
        self.state = state
        self.machine = machine
        self.arcs: dict[str, _Arc] = {}


class StateMachineFactory(Generic[S, OPERAND]):
    """A table of transitions, and the maker of machines that follow it. Immutable, so free to share.

    A single arc goes to its one state; its hook, if any, runs first and its result is ignored. A multiple arc is
    declared with a set of states, and its hook returns the one taken.
    """

    __slots__ = ("_declared", "_initial_state", "_name", "_nodes")

    def __init__(self, initial_state: S, name: str = "") -> None:
        self._initial_state = initial_state
        self._name = name
        self._declared: _Declaration | None = None  # the last one
        self._nodes: dict[str, _Node] | None = None  # built when first needed; two threads that both build it agree

    @property
    def name(self) -> str:
        return self._name

    @property
    def initial_state(self) -> S:
        return self._initial_state

    def add_transition(
        self,
        pre: S,
        post: S | Collection[S],
        event_types: Enum | Iterable[Enum],
        hook: Hook | None = None,
    ) -> StateMachineFactory[S, OPERAND]:
        """A new factory with an arc more, or with several if several event types are given.

        `post` is a state, or a set of states, of which `hook(operand, event)` returns the one taken.

        Raises:
            ValueError: no event type, no post state, or a set of states without a hook to choose.
            TypeError: a state or an event type is not an Enum member.
        """
        types = (event_types,) if isinstance(event_types, Enum) else _in_order(event_types)
        arc: ArcKind = "single" if isinstance(post, Enum) else "multiple"
        posts: tuple[Enum, ...] = (post,) if isinstance(post, Enum) else _in_order(post)
        for member in (pre, *posts, *types):
            if not isinstance(member, Enum):
                raise TypeError(f"states and event types are Enum members, got {member!r}")
        if not types or not posts:
            raise ValueError(f"from {pre.name}: an arc needs at least one event type and one post state")
        if arc == "multiple" and hook is None:
            names = ", ".join(state.name for state in posts)
            raise ValueError(f"from {pre.name} to {{{names}}}: an arc to a set of states needs a hook that chooses")
        return self._with(_Declaration(self._declared, pre, posts, types, hook, arc), None)

    def install_topology(self) -> StateMachineFactory[S, OPERAND]:
        """A factory whose table is built, ready to make machines without delay.

        Raises:
            ValueError: states, or event types, of two Enums share a name.
        """
        return self._with(self._declared, self._table())

    def make(
        self,
        operand: OPERAND,
        initial_state: S | None = None,
        listener: StateTransitionListener | None = None,
        *,
        synchronized: bool = False,
    ) -> StateMachine[S, OPERAND]:
        """A machine for `operand`, in `initial_state` or the factory's own.

        `initial_state` is any member of the states' Enum; one without arcs refuses every event.

        The machine belongs to one thread, which handles the operand's events. With `synchronized` it is safe from any
        thread, as Hadoop's is: see `SynchronizedStateMachine`.

        Raises:
            ValueError: `initial_state` is of another Enum.
        """
        nodes = self._nodes or self._table()
        if initial_state is None:
            node = nodes[self._initial_state._name_]
        else:
            found = nodes.get(initial_state._name_)
            if found is None or found.state is not initial_state:
                raise ValueError(f"{self._name or 'state machine'}: {initial_state!r} is not one of its states")
            node = found
        if synchronized:
            return SynchronizedStateMachine(node, operand, listener)
        return StateMachine(node, operand, listener)

    def transitions(self) -> Iterator[Transition]:
        """The table's rows in the order of declaration; a replaced arc has the place of the first."""
        return (row.transition for row in self._rows())

    def _rows(self) -> Iterable[_Row]:
        declarations: list[_Declaration] = []
        declared = self._declared
        while declared is not None:
            declarations.append(declared)
            declared = declared.before
        # By identity, here and below: members of two Enums that mix in int or str can be equal.
        rows: dict[tuple[int, int], _Row] = {}
        for _, pre, posts, event_types, hook, arc in reversed(declarations):
            for event_type in event_types:
                rows[id(pre), id(event_type)] = _Row(Transition(pre, event_type, posts, arc), hook)
        return rows.values()

    def _table(self) -> dict[str, _Node]:
        if self._nodes is None:
            self._nodes = _build(self._initial_state, self._name, list(self._rows()))
        return self._nodes

    def _with(self, declared: _Declaration | None, nodes: dict[str, _Node] | None) -> StateMachineFactory[S, OPERAND]:
        factory: StateMachineFactory[S, OPERAND] = StateMachineFactory(self._initial_state, self._name)
        factory._declared = declared
        factory._nodes = nodes
        return factory


class StateMachine(Generic[S, OPERAND]):
    """One machine. It belongs to one thread, the one that handles its operand's events.

    It takes no lock: two threads that make transitions at a time lose one of them without an error. For events from
    several threads, `StateMachineFactory.make(..., synchronized=True)`.
    """

    # A daemon has one for each of its entities: what all of a kind have in common is in their nodes.
    __slots__ = ("_listener", "_node", "_operand", "_previous")

    def __init__(self, node: _Node, operand: OPERAND, listener: StateTransitionListener | None) -> None:
        self._node = node
        self._previous: Enum | None = None
        self._operand: OPERAND | None = operand  # None: released
        self._listener = listener

    @property
    def current_state(self) -> S:
        return self._node.state  # type: ignore[return-value]

    @property
    def previous_state(self) -> S | None:
        """The state before the last transition; None before the first."""
        return self._previous  # type: ignore[return-value]

    def do_transition(self, event_type: Enum, event: Any) -> S:
        """Make the transition of the current state on `event_type` and return the new state.

        First the listener hears of it, then the hook runs, then the state changes, then the listener hears again. If
        the hook raises, its error comes through, the state is unchanged, and the listener is not called a second time.

        A hook or a listener may send its own machine another event; that transition runs at once, within this one. As
        in Hadoop, one that a hook makes starts from the state before this transition, and its result is overwritten
        by the state to which this transition leads. Post the event to the dispatcher to have it handled afterwards.

        Raises:
            InvalidStateTransitionError: the state does not take the event, or the hook chose an undeclared state.
        """
        node = self._node
        operand = self._operand
        listener = self._listener
        if listener is not None:
            listener.pre_transition(operand, node.state, event)
            node = self._node  # an event of the listener's own may have moved the machine
        arc = node.arcs.get(event_type._name_)
        if arc is None or arc.event_type is not event_type:
            raise self._refusal(node, event_type, event, accepted=node.arcs)
        hook = arc.hook
        target = arc.target
        if target is not None:
            if hook is not None:
                hook(operand, event)
        else:
            assert hook is not None  # a multiple arc is not declared without
            chosen = hook(operand, event)
            target = arc.targets.get(id(chosen))
            if target is None:
                raise self._refusal(node, event_type, event, chosen=chosen)
        self._previous = node.state
        self._node = target
        if listener is not None:
            listener.post_transition(operand, node.state, target.state, event)
        return target.state  # type: ignore[return-value]

    def release(self) -> None:
        """There will be no more transitions: let go of the operand, which very likely refers to this machine.

        Two that refer to each other are freed by the collector of cycles alone, some time. A hook may call this, in
        the last transition; the listener still hears of that. The states can still be read.
        """
        self._operand = None
        self._listener = None

    def _refusal(self, node: _Node, event_type: Enum, event: Any, **why: Any) -> InvalidStateTransitionError:
        entity = getattr(self._operand, "entity", None) or type(self._operand).__name__
        return InvalidStateTransitionError(
            node.state, event, event_type, machine=node.machine, entity=str(entity), **why
        )


class SynchronizedStateMachine(StateMachine[S, OPERAND]):
    """A machine that any thread may send events, with the rules of Hadoop's synchronized `doTransition`.

    One transition runs at a time, its listeners included: another thread's event waits for the transition in progress
    and meets the state to which it leads. The lock is reentrant, as Java's monitors are. So a hook or a listener may
    send its own machine an event on the thread that runs it (`do_transition` says what comes of that). A hook that
    waits for another thread to send the event waits for ever.

    `current_state` and `previous_state` do not wait, unlike Hadoop's `getCurrentState`: during a transition they are
    those before it. A copy, or one from a pickle, has a lock of its own.
    """

    __slots__ = ("_lock",)

    _lock: threading.RLock  # held through a transition, hook and listeners included

    def __new__(cls, *_: Any) -> SynchronizedStateMachine[S, OPERAND]:
        machine = super().__new__(cls)
        machine._lock = threading.RLock()
        return machine

    def do_transition(self, event_type: Enum, event: Any) -> S:
        with self._lock:
            return super().do_transition(event_type, event)

    def release(self) -> None:
        """As `StateMachine.release`, after the transition in progress, if another thread makes one."""
        with self._lock:
            super().release()

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        with self._lock:
            return None, {name: getattr(self, name) for name in StateMachine.__slots__}


def _in_order(members: Iterable[Enum]) -> tuple[Enum, ...]:
    """As given and each once, but a set in the order of its Enum, so that a table is the same in each run."""
    if not isinstance(members, (set, frozenset)):
        return tuple({id(member): member for member in members}.values())
    return tuple(sorted(members, key=_place))


def _place(member: Any) -> tuple[str, int]:
    """Where a member stands in its Enum; the Enum's name first, for sets of several."""
    return (type(member).__qualname__, list(type(member)).index(member)) if isinstance(member, Enum) else ("", -1)


def _build(initial: Enum, machine: str, rows: Sequence[_Row]) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {initial._name_: _Node(initial, machine)}
    for (pre, _, posts, _), _ in rows:
        for state in (pre, *posts):
            node = nodes.setdefault(state._name_, _Node(state, machine))
            if node.state is not state:
                raise ValueError(f"states {node.state!r} and {state!r} are of different Enums; use one for a machine")
    for (pre, event_type, posts, kind), hook in rows:
        arc = _Arc(event_type, hook)
        if kind == "single":
            arc.target = nodes[posts[0]._name_]
        else:
            arc.targets = {id(state): nodes[state._name_] for state in posts}
        present = nodes[pre._name_].arcs.setdefault(event_type._name_, arc)
        if present is not arc:
            raise ValueError(f"{pre.name} has arcs for {present.event_type!r} and {event_type!r}: two Enums, one name")
    for state in type(initial):  # those in no row: a machine can be made in them
        nodes.setdefault(state._name_, _Node(state, machine))
    return nodes
