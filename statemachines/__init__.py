"""State machines on the dispatcher, after Hadoop's StateMachineFactory."""

from statemachines.factory import (
    InvalidStateTransitionError,
    StateMachine,
    StateMachineFactory,
    StateTransitionListener,
    Transition,
)
from statemachines.recorder import MachineStats, TransitionRecorder

__all__ = [
    "InvalidStateTransitionError",
    "MachineStats",
    "StateMachine",
    "StateMachineFactory",
    "StateTransitionListener",
    "Transition",
    "TransitionRecorder",
]
