"""Every state machine there is, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dispatcher.errors import DispatcherError
from statemachines.factory import StateMachineFactory
from statemachines.mapreduce import mrjob, mrtask, mrtaskattempt
from statemachines.resourcemanager.machines import rmapp_table, rmappattempt_table, rmcontainer_table, rmnode_table


class Machine(NamedTuple):
    """A machine's table, and the class of Hadoop that logs the transitions of such machines."""

    factory: StateMachineFactory[Any, Any]
    hadoop_class: str


MACHINES = (
    Machine(rmapp_table.FACTORY, "RMAppImpl"),
    Machine(rmappattempt_table.FACTORY, "RMAppAttemptImpl"),
    Machine(rmcontainer_table.FACTORY, "RMContainerImpl"),
    Machine(rmnode_table.FACTORY, "RMNodeImpl"),
    Machine(mrjob.FACTORY, "JobImpl"),
    Machine(mrtask.FACTORY, "TaskImpl"),
    Machine(mrtaskattempt.FACTORY, "TaskAttemptImpl"),
)
"""The one list of machines: commands, reports, log reading and time travel know those that are here."""

FACTORIES: Mapping[str, StateMachineFactory[Any, Any]] = {machine.factory.name: machine.factory for machine in MACHINES}
"""By the machine's name, as the journal writes it."""

HADOOP_CLASSES: Mapping[str, str] = {machine.hadoop_class: machine.factory.name for machine in MACHINES}
"""The machine whose transitions a class of Hadoop logs."""

_BY_LOWER_NAME = {name.lower(): factory for name, factory in FACTORIES.items()}


class UnknownMachineError(DispatcherError):
    """There is no state machine of that name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        super().__init__(f"no state machine {name!r}; there are {', '.join(known)}")


def factory_of(name: str) -> StateMachineFactory[Any, Any]:
    """The factory of that name, in upper or lower case.

    Raises:
        UnknownMachineError: there is none.
    """
    factory = _BY_LOWER_NAME.get(name.lower())
    if factory is None:
        raise UnknownMachineError(name, _BY_LOWER_NAME)
    return factory
