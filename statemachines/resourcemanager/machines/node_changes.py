"""The changes of nodes that masters hear of with their next heartbeat: one log for all of them.

Each master's session refers to the last change that it has heard, and each change to the next one. So noting a change
costs the same with any number of applications, and Python frees a change once no session refers to it or to an earlier
one. YARN sends each change to each application as a NODE_UPDATE instead.

Threading: handler thread only (invariant 1).
"""

from __future__ import annotations

from statemachines.resourcemanager.events.services import NodesListManagerEventType

NodeUpdate = tuple[str, NodesListManagerEventType]
"""The node's id, and what it became."""


class NodeChange:
    """One change, and a position in the log: after this change."""

    __slots__ = ("following", "update")

    def __init__(self, update: NodeUpdate | None) -> None:
        """`update` None: the start of a log, which is no change."""
        self.update: NodeUpdate | None = update
        self.following: NodeChange | None = None


class NodeChangeLog:
    """All changes, from the earliest that some master has not heard yet."""

    def __init__(self) -> None:
        self.latest: NodeChange = NodeChange(None)
        """The present position, where a new session begins."""

    def note(self, node_id: str, type: NodesListManagerEventType) -> None:
        """Append a change."""
        change = NodeChange((node_id, type))
        self.latest.following = change
        self.latest = change

    def since(self, position: NodeChange) -> list[NodeUpdate]:
        """The changes after `position`, in order."""
        updates: list[NodeUpdate] = []
        following = position.following
        while following is not None:
            assert following.update is not None  # only the start of a log has none
            updates.append(following.update)
            following = following.following
        return updates
