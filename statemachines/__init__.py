"""State machines on the dispatcher, after Hadoop's StateMachineFactory."""

from statemachines.entities import Entities, UnknownEntityError
from statemachines.factory import InvalidStateTransitionError, StateMachine, StateMachineFactory
from statemachines.listener import MachineListener, MultiStateTransitionListener, StateTransitionListener
from statemachines.recorder import MachineStats, TransitionRecorder
from statemachines.topology import Transition

__all__ = [
    "Entities",
    "InvalidStateTransitionError",
    "MachineListener",
    "MachineStats",
    "MultiStateTransitionListener",
    "StateMachine",
    "StateMachineFactory",
    "StateTransitionListener",
    "Transition",
    "TransitionRecorder",
    "UnknownEntityError",
]
