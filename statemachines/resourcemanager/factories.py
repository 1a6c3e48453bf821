"""The tables of the resource manager's machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.machines import rmapp_table, rmappattempt_table, rmcontainer_table, rmnode_table

FACTORIES: Mapping[str, StateMachineFactory[Any, Any]] = {
    "RMApp": rmapp_table.FACTORY,
    "RMAppAttempt": rmappattempt_table.FACTORY,
    "RMContainer": rmcontainer_table.FACTORY,
    "RMNode": rmnode_table.FACTORY,
}
"""The declared tables, by the machine's name in the journal."""
