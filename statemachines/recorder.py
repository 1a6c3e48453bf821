"""Counts, journals and publishes transitions: the listener that a daemon gives to all its machines.

Threading: a machine calls it on the thread that handles its event: a dispatcher's handler thread or, for an `async def`
handler, the thread of the event loop. Each thread counts in a `_Tally` of its own, and each table's steps are
counted by one thread (see ThreadTables), so no count needs a lock. What threads share otherwise are lists, dicts and
sets with one call for each change. A scrape adds the counts up (invariant 11), and any thread lists the entities that
it has published.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from threading import get_ident
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dispatcher.journal import JournalWriter, PartitionedJournal
from dispatcher.metrics import DeclaredTransition, EntityNow, EntityPage, MachineNow, register_entities
from dispatcher.metrics.transition_ring import TransitionRing, ring
from dispatcher.util.foreign import class_name, cut_text, id_text, reraise_interrupt, tell, type_name, type_of
from dispatcher.util.functions import require_methods
from statemachines.changes import GONE, ChangedEntities, ChangeLog
from statemachines.entity_tables import EntityTables
from statemachines.factory import OPERAND, InvalidStateTransitionError, S, StateMachineFactory
from statemachines.keeping import EntityData
from statemachines.topology import Step

log: logging.Logger = logging.getLogger(__name__)


_LOOKS: Final = 10
"""Readings of counts that move, until two are equal."""


class _ThreadCounts:
    """What one thread has counted of one kind of machine. That thread alone writes, and any thread reads.

    No call comes between the load and the store of a count: a signal handler that counts could run there.
    """

    __slots__ = ("created", "forgotten", "invalid", "others", "restored")

    def __init__(self) -> None:
        self.created: int = 0
        # By state: those made in another than the initial one; its thread writes, any copies.
        self.restored: defaultdict[str, int] = defaultdict(int)
        # By state: entities that are no longer kept; its thread writes, any copies.
        self.forgotten: defaultdict[str, int] = defaultdict(int)
        # By (from, to): transitions of other machines; its thread writes, any copies.
        self.others: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.invalid: int = 0


class MachineStats:
    """Counts of one kind of machine. You can read them from any thread."""

    __slots__ = ("_by_thread", "_steps", "initial_state")

    def __init__(self, initial_state: str, steps: list[Step] | None = None) -> None:
        self.initial_state: str = initial_state  # never changes
        # Of machines that count them themselves. Any thread extends it, any copies it.
        self._steps: list[Step] = steps if steps is not None else []
        self._by_thread: dict[int, _ThreadCounts] = {}  # each thread adds its own, any reads a copy

    def here(self) -> _ThreadCounts:
        """What the caller's thread has counted."""
        thread = get_ident()
        return self._by_thread.get(thread) or self._by_thread.setdefault(thread, _ThreadCounts())

    def _tallies(self) -> Collection[_ThreadCounts]:
        return self._by_thread.copy().values()

    @property
    def created(self) -> int:
        """Machines made so far."""
        return sum(tally.created for tally in self._tallies())

    @property
    def invalid(self) -> int:
        """Events that a state rejected so far."""
        return sum(tally.invalid for tally in self._tallies())

    @property
    def forgotten(self) -> dict[str, int]:
        """Entities that are no longer kept, by state."""
        return _sum(tally.forgotten.copy() for tally in self._tallies())

    @property
    def transitions(self) -> dict[tuple[str, str], int]:
        """Return the transitions so far by (from, to). Thread-safe."""
        result: defaultdict[tuple[str, str], int] = defaultdict(int)
        for tally in self._tallies():
            for states, count in tally.others.copy().items():
                result[states] += count
        for step in self._steps.copy():
            if count := step.count:
                result[step.from_state, step.to_state] += count
        return dict(result)

    def tell(self, before: str, after: str) -> None:
        """Count a transition of a machine that doesn't count its transitions itself."""
        self.here().others[before, after] += 1

    def entities(self) -> dict[str, int]:
        """Count the entities in each state, including forgotten ones. Derived on demand, so transitions stay cheap.

        While machines make transitions, one that moves may be counted in two states, but never in none.
        """
        # An entity leaves a state after it has entered it. So what has left is read first, and nothing is below zero.
        # Machines are counted last: one made and moved between the two readings would leave -1 in the initial state.
        left = entered = self.transitions
        for _ in range(_LOOKS):
            left, entered = entered, self.transitions
            if left == entered:
                break
        tallies = self._tallies()
        result = _sum(tally.restored.copy() for tally in tallies)
        result[self.initial_state] += sum(tally.created for tally in tallies) - sum(result.values())
        for (_, to_state), count in entered.items():
            result[to_state] += count
        for (from_state, _), count in left.items():
            result[from_state] -= count
        return dict(result)

    def kept_entities(self) -> dict[str, int]:
        """Count the entities in each state, without forgotten ones."""
        forgotten = self.forgotten  # before the transitions, or a state's count could be negative
        result = self.entities()
        for state, count in forgotten.items():
            result[state] = result.get(state, 0) - count
        return result


def _sum(counts: Iterable[Mapping[str, int]]) -> defaultdict[str, int]:
    result: defaultdict[str, int] = defaultdict(int)
    for each in counts:
        for state, count in each.items():
            result[state] += count
    return result


class TransitionRecorder:
    """A StateTransitionListener that counts transitions, and writes them to a journal if it has one.

    Your operands need the attributes `machine` (str, the factory's name) and `entity` (str).

    `ends`: by machine, the states that end an entity, without a call of `forgotten`.
    `lists_entities`: if False, you save 200 bytes for each entity and half a microsecond for each transition, and no
        entity is listed.
    `clock_ns`: the run's clock, in Unix ns.

    It's a MetricsSource and an EntitySource, so any thread can list the entities with their states. Without a journal
    it also adds the transitions to the ring of the process, if an ops server has switched that on.
    """

    def __init__(
        self,
        journal: JournalWriter | PartitionedJournal | None = None,
        *,
        lists_entities: bool = True,
        ends: Mapping[str, Collection[Enum]] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        if ends is not None:
            require_methods(ends, "ends", "a mapping of machines to states", "items")
        self.journal = journal  # never changes
        self._clock_ns = clock_ns
        self.machines: dict[str, MachineStats] = {}  # machines' threads add, any reads
        self._log = ChangeLog()
        self._ring = ring if journal is None and lists_entities else TransitionRing()  # else one that is off
        self._entities: EntityTables | None = None
        self._steps: dict[str, list[Step]] = {}  # by machine; any thread adds and extends, with one call
        self._initial_states: dict[str, str] = {}  # by machine, of recorded factories; handler thread
        self._factories: dict[str, StateMachineFactory[Any, Any]] = {}  # by machine; handler thread writes, any reads
        self._declared: dict[str, Sequence[DeclaredTransition]] = {}  # by machine; any thread, all write the same
        self._data: dict[str, EntityData] = {}  # by machine; handler thread writes, any reads
        if lists_entities:
            names = {machine: frozenset(state.name for state in states) for machine, states in (ends or {}).items()}
            self._entities = EntityTables(self._log, names)
            self._log.row_followers = self._entities, self._ring
            register_entities(self)
        self.is_following: bool = journal is not None or lists_entities  # beside counting; handler thread

    def recorded(self, factory: StateMachineFactory[S, OPERAND]) -> StateMachineFactory[S, OPERAND]:
        """Return a factory for machines with this recorder as their listener, which count their own transitions.

        If your subclass overrides transition methods, it gets the factory unchanged, so they're called. Call this on
        the handler thread, or before it starts.

        Raises:
            ValueError: two Enums of the factory share a state's or an event type's name.
        """
        self._initial_states[factory.name] = factory.initial_state._name_
        self._factories[factory.name] = factory
        kind = type(self)
        if kind.pre_transition is not _PRE_TRANSITION or kind.post_transition is not _POST_TRANSITION:
            return factory
        return factory.recorded_by(self)

    def keep(self, factory: StateMachineFactory[S, OPERAND], data: EntityData | None) -> None:
        """Journal and list the data of the factory's entities, for `Entities`. As `recorded`, on the same threads."""
        self._initial_states[factory.name] = factory.initial_state._name_
        self._factories[factory.name] = factory
        if data is not None:
            self._data[factory.name] = data

    def add_steps(self, machine: str, steps: Sequence[Step]) -> None:
        """Sum up these as well, of one more thread's table. Any thread."""
        self._steps_of(machine).extend(steps)

    def _steps_of(self, machine: str) -> list[Step]:
        return self._steps.setdefault(machine, [])

    def machine_made(self, operand: Any, machine: str, state: Enum) -> None:
        """List the operand's entity from now on, not only from its first transition on, as a MachineListener."""
        machine = getattr(operand, "machine", machine)
        stats = self._stats(machine, state)
        tally = stats.here()
        tally.created += 1
        if state._name_ != stats.initial_state:  # after the machine: readers subtract it
            tally.restored[state._name_] += 1
        entity = getattr(operand, "entity", None)
        if self._entities is not None and entity is not None:
            self._add(cut_text(lambda: id_text(entity)), machine, "", "", state._name_)

    def _stats(self, machine: str, state: Enum) -> MachineStats:
        """The machine's counts. If there are none, they begin, with `state` as the initial one of an unknown table."""
        stats = self.machines.get(machine)
        if stats is None:
            initial_state = self._initial_states.get(machine, state._name_)
            stats = self.machines.setdefault(machine, MachineStats(initial_state, self._steps_of(machine)))
        return stats

    def created(self, machine: str, initial_state: Enum, entity: str | None = None) -> None:
        """Do nothing: machines announce themselves. Kept for programs written before they did."""

    def forgotten(self, machine: str, state: Enum, entity: str | None = None) -> None:
        """Stop keeping an entity in `state`. With None, it stays listed."""
        self._stats(machine, state).here().forgotten[state._name_] += 1
        if entity is None:
            return
        if self._log.is_followed:
            self._log.forgotten.append((machine, entity))
        if self._entities is not None:
            self._add(id_text(entity), machine, state._name_, "", GONE)

    def pre_transition(self, operand: Any, before: Enum, event: Any) -> None:
        """Prevent a transition if the journal couldn't record it under its event.

        Raises:
            NoEventInHandError: the caller isn't handling an event of the journal's dispatcher.
        """
        if self.journal is not None:
            self.journal.origin()

    def record(self, operand: Any, step: Step, event: Any, origin: Any) -> None:
        """The `post_transition` of machines that count their transitions. See StepRecorder."""
        log = self._log
        try:
            entity = operand.entity
            if type(entity) is not str:
                entity = id_text(entity)
        except BaseException as error:
            _, entity = _about(operand, error)
        if origin is not None:
            journal: Any = self.journal
            if origin is journal:
                kind = step.kind
                if kind < 0:
                    kind = step.kind = journal.transition_kind(
                        step.machine, step.from_state, step.event_type, step.to_state, valid=True
                    )
                journal.transitions.append((kind, journal.seq, entity, journal.at, None))
            else:
                origin.add_transition(step.machine, entity, step.from_state, step.event_type, step.to_state, valid=True)
        is_routine = step.is_stay and step.type is log.routine_type
        if log.is_followed:
            changed = log.routine if is_routine else log.operands
            changed.append(operand)
            if len(changed) >= log.look_at:
                log.look()
        if self._entities is not None and (not step.is_stay or (self._ring.most and not is_routine)):
            rows = log.rows
            rows.append((entity, step.machine, step.from_state, step.event_type, step.to_state, self._clock_ns()))
            if len(rows) >= log.look_at:
                log.look()

    def post_transition(self, operand: Any, before: Enum, after: Enum, event: Any) -> None:
        """Count, journal and publish a transition. Since the machine has already changed, this raises nothing."""
        machine, entity = _about(operand)
        type = type_of(event)
        from_state, event_type, to_state = before._name_, type_name(type), after._name_
        self._stats(machine, before).tell(from_state, to_state)
        if self.journal is not None:
            origin = self.journal.origin(is_made=True)
            data = self._data[machine].change_of(entity) if machine in self._data else None
            origin.add_transition(machine, entity, from_state, event_type, to_state, valid=True, data=data)
        # None is the type of an event without one, and the routine type where there is none.
        is_routine = before is after and type is not None and type is self._log.routine_type
        self._changed(operand, self._log.routine if is_routine else self._log.operands)
        if self._entities is not None and not is_routine:
            self._add(entity, machine, from_state, event_type, to_state)

    def transition_refused(self, operand: Any, error: InvalidStateTransitionError) -> None:
        """Count, journal and log a rejected event, as a MachineListener."""
        machine, entity = _about(operand)
        stats, state, event_type = self._stats(machine, error.state), error.state._name_, type_name(error.event_type)
        stats.here().invalid += 1
        if self.journal is not None:
            origin = self.journal.origin(is_made=True)
            origin.add_transition(machine, entity, state, event_type, state, valid=False)
        if self._entities is not None:
            self._add(entity, machine, state, event_type, None)
        self.changed(operand)
        tell(log, logging.ERROR, "%s", error)

    def invalid(self, operand: Any, error: InvalidStateTransitionError) -> None:
        """Do nothing: machines report rejected events. Kept, like `created`, for older programs."""

    # -- changes: the handler thread -------------------------------------------------------------------------------

    def follow(self, routine: Enum | None = None) -> ChangedEntities:
        """Collect changes from now on. Each transition then costs another 0.1 µs, and 50 ns for each further follower.

        `routine`: an event type whose self-transitions are kept apart, such as a heartbeat's. The ring of the process
            doesn't keep them, since they'd soon fill it.

        Raises:
            ValueError: other followers have another `routine`.
        """
        changes = self._log.follow(routine)
        self.is_following = True
        return changes

    def unfollow(self, changes: ChangedEntities) -> None:
        """Stop collecting for this follower. Has no effect if it doesn't follow."""
        self._log.unfollow(changes)
        self.is_following = self.journal is not None or self._entities is not None or self._log.is_followed

    def changed(self, operand: Any) -> None:
        """Note that something shown in reports has changed for an entity without a transition."""
        self._changed(operand, self._log.operands)

    def _changed(self, operand: Any, among: list[Any]) -> None:
        if self._log.is_followed:
            among.append(operand)
            if len(among) >= self._log.look_at:
                self._log.look()

    def _add(self, entity: str, machine: str, before: str, event_type: str, after: str | None) -> None:
        log = self._log
        log.rows.append((entity, machine, before, event_type, after, self._clock_ns()))
        if len(log.rows) >= log.look_at:
            log.look()

    # -- entities: any thread --------------------------------------------------------------------------------------

    def machine_numbers(self) -> list[MachineNow]:
        """See EntitySource."""
        entities = self._entities.counts() if self._entities is not None else {}
        return [
            MachineNow(
                machine,
                entities.get(machine, {}),
                sum(stats.transitions.values()),
                stats.invalid,
            )
            for machine, stats in self.machines.copy().items()
        ]

    def entities(
        self, machine: str, *, state: str | None = None, prefix: str = "", after: str = "", limit: int = 100
    ) -> EntityPage:
        """See EntitySource."""
        if self._entities is None:
            return EntityPage((), False, 0)
        return self._entities.page(machine, state, prefix, after, limit)

    def find_entity(self, entity: str, machine: str | None = None) -> list[EntityNow]:
        """See EntitySource."""
        found = [] if self._entities is None else self._entities.find(entity, machine)
        return [
            replace(each, data=self._data[each.machine].fields_text(entity)) if each.machine in self._data else each
            for each in found
        ]

    def initial_state(self, machine: str) -> str | None:
        """See EntitySource."""
        stats = self.machines.get(machine)
        return None if stats is None else stats.initial_state

    def declared_transitions(self, machine: str) -> Sequence[DeclaredTransition]:
        """See DeclaringSource. Of the factories that were `recorded`."""
        factory = self._factories.get(machine)
        if factory is None:
            return ()
        found = self._declared.get(machine)
        if found is None:
            rows = [
                DeclaredTransition(each.from_state.name, each.event.name, to.name)
                for each in factory.transitions()
                for to in each.to_states
            ]
            found = self._declared[machine] = tuple(dict.fromkeys(rows))
        return found

    # -- metrics: any thread ---------------------------------------------------------------------------------------

    def collect(self, dispatcher: str) -> Iterator[Metric]:
        """Yield the Prometheus metrics of all machines."""
        made = CounterMetricFamily(
            "statemachine_transitions", "Transitions made.", labels=["dispatcher", "machine", "from", "to"]
        )
        invalid = CounterMetricFamily(
            "statemachine_invalid_transitions", "Events that a state rejected.", labels=["dispatcher", "machine"]
        )
        entities = GaugeMetricFamily(
            "statemachine_entities", "Machines in each state.", labels=["dispatcher", "machine", "state"]
        )
        for machine, stats in self.machines.copy().items():
            for (from_state, to_state), count in stats.transitions.items():
                made.add_metric([dispatcher, machine, from_state, to_state], count)
            invalid.add_metric([dispatcher, machine], stats.invalid)
            for state, count in stats.kept_entities().items():
                entities.add_metric([dispatcher, machine, state], count)
        yield from (made, invalid, entities)


def _about(operand: Any, error: BaseException | None = None) -> tuple[str, str]:
    """The operand's machine and entity, whatever it does when it is asked; `error` is what it has done already."""
    try:
        if error is not None:
            raise error
        entity = operand.entity
        return operand.machine, entity if type(entity) is str else id_text(entity)
    except BaseException as raised:
        reraise_interrupt(raised)
        name = class_name(operand)
        tell(
            log,
            logging.ERROR,
            "%s has no `machine` or no `entity` that can be read: its transitions are recorded "
            "under the name of its class",
            name,
            error=raised,
        )
        return name, name


# As they are here: a subclass may have its own.
_PRE_TRANSITION: Final = TransitionRecorder.pre_transition
_POST_TRANSITION: Final = TransitionRecorder.post_transition
