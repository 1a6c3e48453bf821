"""Counts and journals transitions: the listener that a daemon gives to all its machines.

Threading: only the handler thread calls it; a scrape reads the counters (invariant 11).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dispatcher.journal import JournalWriter
from dispatcher.util.histogram import snapshot
from statemachines.factory import InvalidStateTransitionError

log = logging.getLogger(__name__)


class MachineStats:
    """Counts of one kind of machine."""

    __slots__ = ("created", "forgotten", "initial_state", "invalid", "transitions")

    def __init__(self, initial_state: str) -> None:
        self.initial_state = initial_state
        self.created = 0
        self.forgotten: defaultdict[str, int] = defaultdict(int)  # by state: entities that are no longer kept
        self.transitions: defaultdict[tuple[str, str], int] = defaultdict(int)  # by (from, to)
        self.invalid = 0

    def entities(self) -> dict[str, int]:
        """Entities in each state, forgotten ones included. Derived on demand, so that transitions do not pay for it."""
        # Transitions first: a machine made and transitioned between the two reads would leave -1 in the initial state.
        transitions = snapshot(self.transitions.copy)
        result: defaultdict[str, int] = defaultdict(int)
        result[self.initial_state] = self.created
        for (from_state, to_state), count in transitions.items():
            result[from_state] -= count
            result[to_state] += count
        return dict(result)

    def kept_entities(self) -> dict[str, int]:
        """As `entities`, without forgotten entities."""
        forgotten = snapshot(self.forgotten.copy)  # before the transitions, or a state's count could be negative
        result = self.entities()
        for state, count in forgotten.items():
            result[state] = result.get(state, 0) - count
        return result


class TransitionRecorder:
    """A StateTransitionListener that counts transitions, and writes them to a journal if it has one.

    Operands have the attributes `machine` (str, the factory's name) and `entity` (str).
    """

    def __init__(self, journal: JournalWriter | None = None) -> None:
        self._journal = journal
        self.machines: dict[str, MachineStats] = {}

    def created(self, machine: str, initial_state: Enum) -> None:
        stats = self.machines.get(machine)
        if stats is None:
            stats = self.machines[machine] = MachineStats(initial_state._name_)
        stats.created += 1

    def forgotten(self, machine: str, state: Enum) -> None:
        """An entity in `state` is no longer kept."""
        self.machines[machine].forgotten[state._name_] += 1

    def pre_transition(self, operand: Any, before: Enum, event: Any) -> None:
        """Do nothing: only completed transitions count."""

    def post_transition(self, operand: Any, before: Enum, after: Enum, event: Any) -> None:
        machine = operand.machine
        self.machines[machine].transitions[before._name_, after._name_] += 1
        if self._journal is not None:
            self._journal.transition(machine, operand.entity, before, event.type, after, valid=True)

    def invalid(self, operand: Any, error: InvalidStateTransitionError) -> None:
        """Count, journal and log a refused event; the machine's state is unchanged and the daemon continues."""
        self.machines[operand.machine].invalid += 1
        if self._journal is not None:
            state = error.state
            self._journal.transition(operand.machine, operand.entity, state, error.event_type, state, valid=False)
        log.error("%s", error)

    def collect(self, dispatcher: str) -> Iterator[Metric]:
        """Yield the Prometheus metrics of all machines."""
        made = CounterMetricFamily(
            "statemachine_transitions", "Transitions made.", labels=["dispatcher", "machine", "from", "to"]
        )
        invalid = CounterMetricFamily(
            "statemachine_invalid_transitions", "Events refused by a state.", labels=["dispatcher", "machine"]
        )
        entities = GaugeMetricFamily(
            "statemachine_entities", "Machines in each state.", labels=["dispatcher", "machine", "state"]
        )
        for machine, stats in snapshot(self.machines.copy).items():
            for (from_state, to_state), count in snapshot(stats.transitions.copy).items():
                made.add_metric([dispatcher, machine, from_state, to_state], count)
            invalid.add_metric([dispatcher, machine], stats.invalid)
            for state, count in stats.kept_entities().items():
                entities.add_metric([dispatcher, machine, state], count)
        yield from (made, invalid, entities)
