"""All state machines, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dispatcher.errors import DispatcherError
from statemachines.factory import StateMachineFactory
from statemachines.mapreduce import mrjob, mrtask, mrtaskattempt
from statemachines.nodemanager.machines import localizedresource_table, nmapplication_table, nmcontainer_table
from statemachines.resourcemanager.machines import rmapp_table, rmappattempt_table, rmcontainer, rmnode_table


class Machine(NamedTuple):
    """A machine's table, and the Hadoop class that logs its transitions."""

    factory: StateMachineFactory[Any, Any]
    hadoop_class: str
    older_class: str | None = None
    """The name under which older releases of Hadoop log them: the interface's."""


MACHINES = (
    Machine(rmapp_table.FACTORY, "RMAppImpl"),
    Machine(rmappattempt_table.FACTORY, "RMAppAttemptImpl"),
    Machine(rmcontainer.FACTORY, "RMContainerImpl"),
    Machine(rmnode_table.FACTORY, "RMNodeImpl"),
    Machine(mrjob.FACTORY, "JobImpl"),
    Machine(mrtask.FACTORY, "TaskImpl"),
    Machine(mrtaskattempt.FACTORY, "TaskAttemptImpl"),
    Machine(nmapplication_table.FACTORY, "ApplicationImpl", "Application"),
    Machine(nmcontainer_table.FACTORY, "ContainerImpl", "Container"),
    Machine(localizedresource_table.FACTORY, "LocalizedResource"),
)
"""The one list of machines, from which commands, reports, log reading and time travel take theirs."""

FACTORIES: Mapping[str, StateMachineFactory[Any, Any]] = {machine.factory.name: machine.factory for machine in MACHINES}
"""By the machine's name in the journal."""

HADOOP_CLASSES: Mapping[str, str] = {
    name: machine.factory.name
    for machine in MACHINES
    for name in (machine.hadoop_class, machine.older_class)
    if name is not None
}
"""The machine's name, by the Hadoop class that logs its transitions."""

_BY_LOWER_NAME = {name.lower(): factory for name, factory in FACTORIES.items()}


class UnknownMachineError(DispatcherError):
    """No state machine has this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        super().__init__(f"no state machine {name!r}; expected one of {', '.join(known)}")


def factory_of(name: str) -> StateMachineFactory[Any, Any]:
    """The factory with this case-insensitive name.

    Raises:
        UnknownMachineError: no machine has this name.
    """
    factory = _BY_LOWER_NAME.get(name.lower())
    if factory is None:
        raise UnknownMachineError(name, _BY_LOWER_NAME)
    return factory
