"""The table of a state machine as its machines walk it: nodes, arcs, and the steps that a recorder counts.

The table is one dict per state, keyed by the event type's name: hashing an Enum member runs Python code, while a string
caches its hash. An identity check then confirms that the name belongs to the right Enum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from threading import get_ident
from typing import Any, Literal, NamedTuple, Protocol

from dispatcher.errors import InvalidValueError

Hook = Callable[[Any, Any], Any]
ArcKind = Literal["single", "multiple"]


class Transition(NamedTuple):
    """One row of a factory's table."""

    from_state: Enum
    event: Enum
    to_states: tuple[Enum, ...]
    arc: ArcKind


class Row(NamedTuple):
    transition: Transition
    hook: Hook | None


class Step:
    """One transition that machines can make, from one state by one event into one state, as one recorder counts it.

    The recorder looks up what it needs of a transition once, and then knows the transition by its step.
    """

    __slots__ = ("count", "event_type", "from_state", "is_stay", "kind", "machine", "to_state")

    def __init__(self, machine: str, from_state: Enum, event_type: Enum, to_state: Enum) -> None:
        self.machine = machine
        self.from_state: str = from_state._name_
        self.event_type: str = event_type._name_
        self.to_state: str = to_state._name_
        self.is_stay = from_state is to_state
        self.count = 0  # how often it was made; the thread of its table writes, any reads
        self.kind = -1  # its number in the recorder's journal; -1: none yet; the thread of its table


class Arc:
    """What a state does on an event. Immutable, and shared by all machines of a factory."""

    __slots__ = ("event_type", "hook", "step", "steps", "target", "targets")

    def __init__(self, event_type: Enum, hook: Hook | None) -> None:
        self.event_type = event_type
        self.hook = hook
        self.target: Node | None = None  # of a single arc
        self.targets: dict[int, Node] = {}  # of a multiple arc, by the state's id(): equal members do not count
        self.step: Step | None = None  # of a single arc that is recorded
        self.steps: dict[int, Step] = {}  # of a multiple arc that is recorded, as `targets`


class Node:
    """A state and its arcs by event type name. Holds the factory's name so that each machine need not."""

    __slots__ = ("arcs", "machine", "state", "tables", "thread")

    def __init__(self, state: Enum, machine: str) -> None:
        self.state = state
        self.machine = machine
        self.arcs: dict[str, Arc] = {}
        # Of a table whose steps are counted; set before the table is used.
        self.tables: ThreadTables | None = None
        self.thread = 0  # the one that counts


Nodes = dict[str, Node]
"""By the state's name."""


class StepRecorder(Protocol):
    """Told of each step that a machine has made, as a listener is of a transition, while it `is_following`.

    Otherwise the step's count is all that it needs. Before a step, the machine asks the `journal`, if there is one, for
    the origin of its transitions, which goes to `record`; an error prevents the step. `record` raises nothing, as the
    step is made.
    """

    is_following: bool
    journal: Any
    """A JournalWriter, a PartitionedJournal or None."""

    def add_steps(self, machine: str, steps: Sequence[Step]) -> None:
        """Sum up these as well, of one more table. Any thread."""

    def record(self, operand: Any, step: Step, event: Any, origin: Any) -> None: ...


class ThreadTables:
    """The tables of one recorded factory, one for each thread that handles events of its machines.

    So each step is counted by one thread, without a lock, and readers add the steps of all tables. A machine that meets
    another thread's table goes on in its own thread's. A thread that gets the number of one that has ended goes on with
    its table.
    """

    __slots__ = ("_by_thread", "_machine", "_make", "_recorder")

    def __init__(self, machine: str, make: Callable[[], Nodes], recorder: StepRecorder) -> None:
        self._machine = machine  # never changes
        self._make = make  # never changes
        self._recorder = recorder  # never changes
        self._by_thread: dict[int, Nodes] = {}  # each thread adds its own, and looks for no other

    def here(self) -> Nodes:
        """The table of the caller's thread."""
        thread = get_ident()
        nodes = self._by_thread.get(thread)
        if nodes is None:
            nodes = self._make()
            for node in nodes.values():
                node.tables, node.thread = self, thread
            self._recorder.add_steps(self._machine, add_steps(nodes))
            # A signal handler that has come first has a table of its own, whose steps are summed up as well.
            self._by_thread[thread] = nodes
        return nodes


def here(node: Node) -> Node:
    """The node of the same state in the table of the caller's thread, if steps are counted."""
    return node.tables.here()[node.state._name_] if node.tables is not None else node


def build(initial: Enum, machine: str, rows: Sequence[Row]) -> Nodes:
    """
    Raises:
        ValueError: two Enums share a state's or an event type's name.
    """
    nodes: Nodes = {initial._name_: Node(initial, machine)}
    for (pre, _, posts, _), _ in rows:
        for state in (pre, *posts):
            node = nodes.setdefault(state._name_, Node(state, machine))
            if node.state is not state:
                raise InvalidValueError(
                    f"states {node.state!r} and {state!r} are of different Enums; use one for a machine"
                )
    for (pre, event_type, posts, kind), hook in rows:
        arc = Arc(event_type, hook)
        if kind == "single":
            arc.target = nodes[posts[0]._name_]
        else:
            arc.targets = {id(state): nodes[state._name_] for state in posts}
        present = nodes[pre._name_].arcs.setdefault(event_type._name_, arc)
        if present is not arc:
            raise InvalidValueError(
                f"{pre.name} has arcs for {present.event_type!r} and {event_type!r}: two Enums, one name"
            )
    for state in type(initial):  # a machine can also be made in a state without arcs
        nodes.setdefault(state._name_, Node(state, machine))
    return nodes


def add_steps(nodes: Nodes) -> list[Step]:
    """Give each arc its steps; returns them all. The nodes must be of one recorder alone."""
    steps: list[Step] = []
    for node in nodes.values():
        for arc in node.arcs.values():
            if arc.target is not None:
                arc.step = Step(node.machine, node.state, arc.event_type, arc.target.state)
                steps.append(arc.step)
            else:
                arc.steps = {
                    key: Step(node.machine, node.state, arc.event_type, target.state)
                    for key, target in arc.targets.items()
                }
                steps.extend(arc.steps.values())
    return steps


def in_order(members: Iterable[Enum]) -> tuple[Enum, ...]:
    """The distinct members as given; a set in the order of its Enum, so that each run builds the same table."""
    if not isinstance(members, (set, frozenset)):
        return tuple({id(member): member for member in members}.values())
    return tuple(sorted(members, key=_place))


def _place(member: Any) -> tuple[str, int]:
    """Sort key: the Enum's name, for sets that mix Enums, then the member's position in it."""
    return (type(member).__qualname__, list(type(member)).index(member)) if isinstance(member, Enum) else ("", -1)
