"""State machines on the dispatcher, after Hadoop's StateMachineFactory."""

from statemachines.factory import InvalidStateTransitionError, StateMachine, StateMachineFactory, Transition
from statemachines.listener import MultiStateTransitionListener, StateTransitionListener
from statemachines.recorder import MachineStats, TransitionRecorder

__all__ = [
    "InvalidStateTransitionError",
    "MachineStats",
    "MultiStateTransitionListener",
    "StateMachine",
    "StateMachineFactory",
    "StateTransitionListener",
    "Transition",
    "TransitionRecorder",
]
