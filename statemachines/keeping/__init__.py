"""What entities keep with their states: data, and timers for timeouts."""

from statemachines.keeping.data import EntityData, EntityDataError
from statemachines.keeping.machines import Keeping, KeptMachine
from statemachines.keeping.timeouts import EntityTimeouts

__all__ = ["EntityData", "EntityDataError", "EntityTimeouts", "Keeping", "KeptMachine"]
