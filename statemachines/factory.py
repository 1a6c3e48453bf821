"""State machines from a table, after Hadoop's StateMachineFactory.

A factory is an immutable builder: each `add_transition` returns a new one, and a later arc for the same state and event
replaces the earlier. `install_topology` builds the table that all machines made from it share.

The table is one dict per state, keyed by the event type's name: hashing an Enum member runs Python code, hashing a
string that has been hashed before does not. An identity check then makes sure that the name is of the right Enum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from dispatcher.errors import DispatcherError

S = TypeVar("S", bound=Enum)
OPERAND = TypeVar("OPERAND")

Hook = Callable[[Any, Any], Any]
ArcKind = Literal["single", "multiple"]
_NOTHING: Any = object()
_NOTHING_CHOSEN = object()


class InvalidStateTransitionError(DispatcherError):
    """A state does not take an event, or a hook returned a state that its arc does not declare.

    The machine's state is unchanged.
    """

    def __init__(
        self,
        state: Enum,
        event: Any,
        event_type: Enum | None = None,
        *,
        about: str = "state machine",
        accepted: Iterable[str] | None = None,
        chosen: Any = _NOTHING_CHOSEN,
    ) -> None:
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
        super().__init__(f"{about}: {problem} {advice}")


class StateTransitionListener(Protocol):
    """Is told before and after each transition, on the thread that makes it."""

    def pre_transition(self, operand: Any, before: Any, event: Any) -> None: ...

    def post_transition(self, operand: Any, before: Any, after: Any, event: Any) -> None: ...


class Transition(NamedTuple):
    """One row of a factory's table."""

    from_state: Enum
    event: Enum
    to_states: tuple[Enum, ...]
    arc: ArcKind


class _Arc:
    """What a state does on an event. Shared by all machines of a factory; never changed."""

    __slots__ = ("event_type", "hook", "target", "targets")

    def __init__(self, event_type: Enum, hook: Hook | None) -> None:
        self.event_type = event_type
        self.hook = hook
        self.target: _Node | None = None  # of a single arc
        self.targets: dict[str, _Node] = {}  # of a multiple one, by the state's name


class _Node:
    """A state and its arcs, by the event type's name."""

    __slots__ = ("arcs", "state")

    def __init__(self, state: Enum) -> None:
        self.state = state
        self.arcs: dict[str, _Arc] = {}


class _Row(NamedTuple):
    pre: Enum
    post: tuple[Enum, ...]
    event_type: Enum
    hook: Hook | None
    arc: ArcKind


class StateMachineFactory(Generic[S, OPERAND]):
    """A table of transitions, and the maker of machines that follow it. Immutable, so free to share.

    A single arc goes to its one state; its hook, if any, runs first and its result is ignored. A multiple arc is
    declared with a set of states, and its hook returns the one taken.
    """

    __slots__ = ("_default_initial_state", "_nodes", "_rows", "name")

    def __init__(self, initial_state: S, name: str = "") -> None:
        self._default_initial_state = initial_state
        self._rows: tuple[_Row, ...] = ()
        self._nodes: dict[str, _Node] | None = None
        self.name = name

    @property
    def initial_state(self) -> S:
        return self._default_initial_state

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
        rows = {(row.pre, row.event_type): row for row in self._rows}
        for event_type in types:
            rows[pre, event_type] = _Row(pre, posts, event_type, hook, arc)
        return self._with(tuple(rows.values()), None)

    def install_topology(self) -> StateMachineFactory[S, OPERAND]:
        """A factory whose table is built, ready to make machines without delay."""
        return self._with(self._rows, _build(self._default_initial_state, self._rows))

    def make(
        self, operand: OPERAND, initial_state: S | None = None, listener: StateTransitionListener | None = None
    ) -> StateMachine[S, OPERAND]:
        """A machine for `operand`, in `initial_state` or the factory's own.

        Raises:
            ValueError: the table has no such state.
        """
        if self._nodes is None:
            self._nodes = _build(self._default_initial_state, self._rows)
        state = self._default_initial_state if initial_state is None else initial_state
        node = self._nodes.get(state._name_)
        if node is None or node.state is not state:
            raise ValueError(f"{self.name or 'state machine'}: {state!r} is not one of its states")
        return StateMachine(node, operand, listener, self.name)

    def transitions(self) -> Iterator[Transition]:
        """The table's rows in the order of declaration."""
        for row in self._rows:
            yield Transition(row.pre, row.event_type, row.post, row.arc)

    def _with(self, rows: tuple[_Row, ...], nodes: dict[str, _Node] | None) -> StateMachineFactory[S, OPERAND]:
        factory: StateMachineFactory[S, OPERAND] = StateMachineFactory(self._default_initial_state, self.name)
        factory._rows = rows
        factory._nodes = nodes
        return factory


class StateMachine(Generic[S, OPERAND]):
    """One machine. It belongs to the thread that handles its operand's events; nothing here takes a lock."""

    __slots__ = ("_listener", "_name", "_node", "_operand", "_previous")

    def __init__(self, node: _Node, operand: OPERAND, listener: StateTransitionListener | None, name: str) -> None:
        self._node = node
        self._previous: Enum | None = None
        self._operand = operand
        self._listener = listener
        self._name = name

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

        Raises:
            InvalidStateTransitionError: the state does not take the event, or the hook chose an undeclared state.
        """
        node = self._node
        arc = node.arcs.get(event_type._name_)
        if arc is None or arc.event_type is not event_type:
            if self._listener is not None:
                self._listener.pre_transition(self._operand, node.state, event)
            raise InvalidStateTransitionError(node.state, event, event_type, about=self._about(), accepted=node.arcs)
        listener = self._listener
        if listener is not None:
            listener.pre_transition(self._operand, node.state, event)
        target = arc.target
        if target is not None:
            if arc.hook is not None:
                arc.hook(self._operand, event)
        else:
            assert arc.hook is not None
            chosen = arc.hook(self._operand, event)
            target = arc.targets.get(getattr(chosen, "_name_", ""))
            if target is None or target.state is not chosen:
                raise InvalidStateTransitionError(node.state, event, event_type, about=self._about(), chosen=chosen)
        self._previous = node.state
        self._node = target
        if listener is not None:
            listener.post_transition(self._operand, node.state, target.state, event)
        return target.state  # type: ignore[return-value]

    def _about(self) -> str:
        entity = getattr(self._operand, "entity", None) or type(self._operand).__name__
        return f"{self._name} {entity}" if self._name else str(entity)


def _in_order(members: Iterable[Enum]) -> tuple[Enum, ...]:
    """As given, but a set in the order of its Enum, so that a table is the same in each run."""
    if not isinstance(members, (set, frozenset)):
        return tuple(members)
    return tuple(sorted(members, key=_place))


def _place(member: Any) -> tuple[str, int]:
    """Where a member stands in its Enum; the Enum's name first, for sets of several."""
    return (type(member).__qualname__, list(type(member)).index(member)) if isinstance(member, Enum) else ("", -1)


def _build(initial: Enum, rows: Iterable[_Row]) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {initial._name_: _Node(initial)}
    for row in rows:
        for state in (row.pre, *row.post):
            node = nodes.setdefault(state._name_, _Node(state))
            if node.state is not state:
                raise ValueError(f"states {node.state!r} and {state!r} are of different Enums; use one for a machine")
    for row in rows:
        arc = _Arc(row.event_type, row.hook)
        if row.arc == "single":
            arc.target = nodes[row.post[0]._name_]
        else:
            arc.targets = {state._name_: nodes[state._name_] for state in row.post}
        present = nodes[row.pre._name_].arcs.setdefault(row.event_type._name_, arc)
        if present is not arc:
            raise ValueError(
                f"{row.pre.name} has arcs for {present.event_type!r} and {row.event_type!r}: two Enums, one name"
            )
    return nodes
