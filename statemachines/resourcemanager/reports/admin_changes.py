"""What administrators have changed of queues, nodes and hosts, and what the configuration says instead."""

from __future__ import annotations

from typing import NamedTuple

from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.records.stored_state import Origin, QueueValue


class QueueChangeReport(NamedTuple):
    """A change of a queue, and what it replaces."""

    queue: str
    """Its path."""
    key: str
    """`queue`: the queue itself was added or removed."""
    value: QueueValue
    configured: QueueValue
    """In the configuration; None also if the configuration has no such queue."""
    origin: Origin
    problem: str = ""
    """Why it is set aside: it has no effect."""


class NodeChangeReport(NamedTuple):
    """A change of a node, or of the hosts that may have nodes."""

    name: str
    """The node's id, or for `decommissioned` its host; empty for `included`."""
    key: str
    """`capacity`, `label`, `decommissioned` or `included`."""
    value: Resource | str | tuple[str, ...]
    """Of `decommissioned`: `gracefully` or `at once`."""
    origin: Origin | None
    """None: the store of an older version didn't keep it."""


class ChangeReports(NamedTuple):
    """All changes that count over the configuration and over what nodes say."""

    queues: tuple[QueueChangeReport, ...] = ()
    nodes: tuple[NodeChangeReport, ...] = ()
