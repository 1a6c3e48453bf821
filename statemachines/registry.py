"""Every state machine there is, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dispatcher.errors import DispatcherError
from statemachines import mapreduce, resourcemanager
from statemachines.factory import StateMachineFactory

FACTORIES: Mapping[str, StateMachineFactory[Any, Any]] = {**resourcemanager.FACTORIES, **mapreduce.FACTORIES}
"""By the machine's name, as the journal writes it."""

HADOOP_CLASSES: Mapping[str, str] = {
    "RMAppImpl": "RMApp",
    "RMAppAttemptImpl": "RMAppAttempt",
    "RMContainerImpl": "RMContainer",
    "RMNodeImpl": "RMNode",
    "JobImpl": "MRJob",
    "TaskImpl": "MRTask",
    "TaskAttemptImpl": "MRTaskAttempt",
}
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
