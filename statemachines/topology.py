"""The table of a state machine as its machines walk it: nodes, arcs, and the steps that a recorder counts.

The table is one dict per state, keyed by the event type's name: hashing an Enum member runs Python code, while a string
caches its hash. An identity check then confirms that the name belongs to the right Enum.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from threading import get_ident
from typing import Any, Protocol

from dispatcher.errors import InvalidValueError
from statemachines.arc_hooks import HooksOfStates, Seal, by_state, hook_of
from statemachines.declared import Hook, MachineTable, TableRow


class Step:
    """One transition that machines can make, from one state by one event into one state, as one recorder counts it.

    The recorder looks up what it needs of a transition once, and then knows the transition by its step.
    """

    __slots__ = ("count", "event_type", "from_state", "is_stay", "kind", "machine", "to_state", "type")

    def __init__(self, machine: str, from_state: Enum, event_type: Enum, to_state: Enum) -> None:
        self.machine: str = machine
        self.from_state: str = from_state._name_
        self.type: Enum = event_type
        self.event_type: str = event_type._name_
        self.to_state: str = to_state._name_
        self.is_stay: bool = from_state is to_state
        self.count: int = 0  # how often it was made; the thread of its table writes, any reads
        self.kind: int = -1  # its number in the recorder's journal; -1: none yet; the thread of its table


class Arc:
    """What a state does on an event. Immutable, and shared by all machines of a factory."""

    __slots__ = ("event_type", "hook", "step", "steps", "target", "targets")

    def __init__(self, event_type: Enum, hook: Hook | None) -> None:
        self.event_type: Enum = event_type
        self.hook: Hook | None = hook
        self.target: Node | None = None  # of a single arc
        self.targets: dict[int, Node] = {}  # of a multiple arc, by the state's id(): equal members do not count
        self.step: Step | None = None  # of a single arc that is recorded
        self.steps: dict[int, Step] = {}  # of a multiple arc that is recorded, as `targets`


class Node:
    """A state and its arcs by event type name. Holds the factory's name so that each machine need not."""

    __slots__ = ("arcs", "machine", "state", "tables", "thread")

    def __init__(self, state: Enum, machine: str) -> None:
        self.state: Enum = state
        self.machine: str = machine
        self.arcs: dict[str, Arc] = {}
        # Of a table whose steps are counted; set before the table is used.
        self.tables: ThreadTables | None = None
        self.thread: int = 0  # the one that counts


Nodes = dict[str, Node]
"""By the state's name."""


class StepRecorder(Protocol):
    """Called with each step that a machine has made, as a listener is of a transition, while it `is_following`.

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

    __slots__ = ("_by_thread", "_machine", "_pattern", "_recorder")

    def __init__(self, machine: str, pattern: Nodes, recorder: StepRecorder) -> None:
        self._machine = machine  # never changes
        self._pattern = pattern  # never changes
        self._recorder = recorder  # never changes
        self._by_thread: dict[int, Nodes] = {}  # each thread adds its own, and looks for no other

    def here(self) -> Nodes:
        """The table of the caller's thread."""
        thread = get_ident()
        nodes = self._by_thread.get(thread)
        if nodes is None:
            nodes, steps = with_steps(self._pattern)
            for node in nodes.values():
                node.tables, node.thread = self, thread
            self._recorder.add_steps(self._machine, steps)
            # A signal handler that has come first has a table of its own, whose steps are summed up as well.
            self._by_thread[thread] = nodes
        return nodes


def here(node: Node) -> Node:
    """The node of the same state in the table of the caller's thread, if steps are counted."""
    return node.tables.here()[node.state._name_] if node.tables is not None else node


def build(initial: Enum, machine: str, table: MachineTable, seal: Seal | None = None) -> Nodes:
    """
    Raises:
        ValueError: two Enums share a state's or an event type's name, or a state has a timeout whose event it does not
            accept.
    """
    nodes: Nodes = {initial._name_: Node(initial, machine)}
    named = [state for row in table.rows for state in (row.transition.from_state, *row.transition.to_states)]
    named += [each.state for each in table.hooks]
    for state in (*named, *type(initial)):  # a machine can also be made in a state without arcs
        node = nodes.setdefault(state._name_, Node(state, machine))
        if node.state is not state:
            raise InvalidValueError(
                f"states {node.state!r} and {state!r} are of different Enums; use one for a machine"
            )
    of_states = by_state(table.hooks)
    pairs: dict[tuple[str, int], list[TableRow]] = {}
    for row in table.rows:
        pairs.setdefault((row.transition.from_state._name_, id(row.transition.event)), []).append(row)
    for rows in pairs.values():
        arc = _arc(nodes, rows, of_states, seal)
        pre = rows[0].transition.from_state
        present = nodes[pre._name_].arcs.setdefault(arc.event_type._name_, arc)
        if present is not arc:
            raise InvalidValueError(
                f"{pre.name} has arcs for {present.event_type!r} and {arc.event_type!r}: two Enums, one name"
            )
    for state, seconds, event in table.timeouts:
        if (state._name_, id(event)) not in pairs:
            raise InvalidValueError(
                f"{state.name} has a timeout of {seconds:g} s with {event.name}, which it does not accept; add the arc"
            )
    return nodes


def _arc(nodes: Nodes, rows: Sequence[TableRow], hooks: HooksOfStates, seal: Seal | None) -> Arc:
    """What a state does on an event that it has these rows for."""
    transition, hook = rows[0].transition, hook_of(rows, hooks, seal)
    arc = Arc(transition.event, rows[0].hook if hook is None else hook)
    if hook is None and transition.arc == "single":
        arc.target = nodes[transition.to_states[0]._name_]
    else:
        arc.targets = {id(state): nodes[state._name_] for row in rows for state in row.transition.to_states}
    return arc


def with_steps(nodes: Nodes) -> tuple[Nodes, list[Step]]:
    """A table of the same arcs, with the steps of each, and all its steps. The nodes must have none."""
    copies = {name: Node(node.state, node.machine) for name, node in nodes.items()}
    steps: list[Step] = []
    for name, node in nodes.items():
        for event_type, arc in node.arcs.items():
            copies[name].arcs[event_type] = copy = Arc(arc.event_type, arc.hook)
            if arc.target is not None:
                copy.target = copies[arc.target.state._name_]
                copy.step = Step(node.machine, node.state, arc.event_type, arc.target.state)
                steps.append(copy.step)
            for key, target in arc.targets.items():
                copy.targets[key] = copies[target.state._name_]
                copy.steps[key] = Step(node.machine, node.state, arc.event_type, target.state)
            steps += copy.steps.values()
    return copies, steps
