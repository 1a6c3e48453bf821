"""State machines on the dispatcher, after Hadoop's StateMachineFactory."""

try:
    import dispatcher.errors as _  # noqa: F401 - whether it is ours
except ModuleNotFoundError as error:
    if error.name != "dispatcher.errors":  # a dependency of it
        raise
    import dispatcher

    raise ImportError(
        f"{__name__} needs the package dispatcher of central-dispatcher, but Python finds another dispatcher at "
        f"{dispatcher.__file__}: rename or remove that one, or take it off PYTHONPATH",
        name="dispatcher",
        path=dispatcher.__file__,
    ) from error

from statemachines.declared import StateHook, Timeout, Transition
from statemachines.entities import Entities, HasEntity, UnknownEntityError
from statemachines.factory import InvalidStateTransitionError, StateMachine, StateMachineFactory
from statemachines.keeping import EntityDataError
from statemachines.listener import MachineListener, MultiStateTransitionListener, StateTransitionListener
from statemachines.recorder import MachineStats, TransitionRecorder

__all__ = [
    "Entities",
    "EntityDataError",
    "HasEntity",
    "InvalidStateTransitionError",
    "MachineListener",
    "MachineStats",
    "MultiStateTransitionListener",
    "StateHook",
    "StateMachine",
    "StateMachineFactory",
    "StateTransitionListener",
    "Timeout",
    "Transition",
    "TransitionRecorder",
    "UnknownEntityError",
]
