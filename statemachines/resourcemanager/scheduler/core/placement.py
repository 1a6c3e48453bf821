"""Why no node takes an ask that the limits allow: one look at each node of its partition.

Threading: under the scheduler's lock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import attrgetter

from statemachines.resourcemanager.scheduler.core.application import AppPlacementAllocator, SchedulingOpportunity
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, SchedulerNode
from statemachines.resourcemanager.scheduler.wait_reasons import (
    GPUS,
    WaitCause,
    WaitReason,
    device_share,
    quantities,
    quantity,
)

MOST_LOOKS = 5
"""How often one report looks at each node. A look at 10,000 nodes takes a millisecond or two."""
_BY_PREFERENCE = frozenset({WaitCause.HEARTBEAT, WaitCause.LOCALITY})
"""Found for asks that may prefer other nodes than the next ones with the same requirements."""
_MOST_REFUSED = 64
"""Nodes with room that an ask may refuse for another node before the search for one that it accepts ends."""

KnownNode = tuple[str, str]
"""A node's state, by its name in YARN, and its partition."""
_STATE_WORDS = {"new": "registering", "running": "registering", "shutdown": "shut down"}
"""The others are words already."""

_Need = tuple[str, int, Callable[[SchedulerNode], int], Callable[[SchedulerNode], int]]
"""A resource type, the amount needed, and what a node has of it: free, and when empty."""


def why_unplaced(
    nodes: Iterable[SchedulerNode],
    known: Iterable[KnownNode],
    requirements: NodeRequirements,
    allocator: AppPlacementAllocator | None = None,
    opportunity: SchedulingOpportunity | None = None,
) -> WaitReason:
    """`known`: all nodes, in use or not. `allocator` has the asks, if they are pending.

    `opportunity`: only on heartbeats.
    """
    partition = requirements.partition
    here = [node for node in nodes if node.partition == partition]
    if not here:
        return _no_nodes(partition, known)
    if requirements.host is not None or requirements.rack is not None or requirements.blacklist:
        here = [node for node in here if requirements.allows(node)]
        if not here:
            return _no_allowed(requirements)
    return _PlacementSearch(requirements, here).reason(allocator, opportunity)


def _no_nodes(partition: str, known: Iterable[KnownNode]) -> WaitReason:
    """No node of the partition is in use: they are lost, decommissioned or the like, or it never had any."""
    known = list(known)
    states = Counter(state.lower() for state, where in known if where == partition)
    what = f"partition {partition}"
    if not partition:
        what = "the default partition" if any(where for _, where in known) else "the cluster"
    sentence = f"{what} has no nodes"
    if states:
        counts = [f"{count:,} {_STATE_WORDS.get(state, state)}" for state, count in sorted(states.items())]
        sentence = f"{what} has no nodes in use: {', '.join(counts)}"
    return WaitReason(WaitCause.NO_NODES, sentence, partition=partition)


def why_reserved(node: SchedulerNode, requirements: NodeRequirements) -> WaitReason:
    """The node is reserved for the ask, and has not enough room yet."""
    short = [(type_, need, free(node)) for type_, need, free, _ in _needs(requirements) if free(node) < need]
    sentence = f"node {node.node_id} is reserved for it"
    if not short:
        sentence += " and has room now: it gets its container with the node's next heartbeat"
        return WaitReason(WaitCause.RESERVED, sentence, node=node.node_id, partition=requirements.partition)
    type_, need, has = short[0]
    sentence += f" and has {quantity(type_, has)} of the {quantity(type_, need)} that it needs"
    return WaitReason(
        WaitCause.RESERVED,
        sentence,
        node=node.node_id,
        partition=requirements.partition,
        resource=type_,
        needed=need,
        available=has,
    )


def _no_allowed(requirements: NodeRequirements) -> WaitReason:
    if requirements.host is not None:
        where = f"host {requirements.host}"
    elif requirements.rack is not None:
        where = f"rack {requirements.rack}"
    else:
        return WaitReason(
            WaitCause.PLACEMENT,
            f"it has blacklisted all hosts{_in(requirements.partition)}",
            partition=requirements.partition,
        )
    sentence = f"it accepts no node but those of {where}, which has none{_in(requirements.partition)}"
    if requirements.host in requirements.blacklist:
        sentence = f"it accepts no node but those of {where}, which it has blacklisted"
    return WaitReason(WaitCause.PLACEMENT, sentence, partition=requirements.partition)


class NodeLooks:
    """The reasons found so far for one report, by requirements, with a maximum of looks."""

    def __init__(self, most: int = MOST_LOOKS) -> None:
        self._reasons: dict[NodeRequirements, WaitReason] = {}
        self._most = most
        self._looks = 0

    def why_unplaced(
        self,
        nodes: Iterable[SchedulerNode],
        known: Iterable[KnownNode],
        requirements: NodeRequirements,
        allocator: AppPlacementAllocator,
        opportunity: SchedulingOpportunity | None,
    ) -> WaitReason:
        reason = self._reasons.get(requirements)
        if reason is not None:
            return reason
        if self._looks >= self._most:
            needs = quantities((type_, need) for type_, need, *_ in _needs(requirements) if need)
            sentence = f"it waits for a node{_in(requirements.partition)} with {needs} free"
            return WaitReason(WaitCause.NODE, sentence, partition=requirements.partition)
        self._looks += 1
        reason = why_unplaced(nodes, known, requirements, allocator, opportunity)
        if opportunity is None or reason.cause not in _BY_PREFERENCE:
            self._reasons[requirements] = reason
        return reason


class KnownCauses:
    """The causes found so far for one answer about thousands of applications, most of which share a few causes."""

    def __init__(self) -> None:
        self.looks: NodeLooks = NodeLooks()
        self._found: dict[tuple[Hashable, NodeRequirements], WaitCause] = {}

    def get(self, place: Hashable, requirements: NodeRequirements) -> WaitCause | None:
        """`place`: the policy's `place_of` the attempt."""
        return self._found.get((place, requirements))

    def put(self, place: Hashable, requirements: NodeRequirements, cause: WaitCause) -> None:
        """Keep a cause for all asks like this one, unless it depends on the ask itself or was not determined."""
        if cause is not WaitCause.NODE and cause not in _BY_PREFERENCE:
            self._found[place, requirements] = cause


class _PlacementSearch:
    """The nodes that an ask accepts, by how near they come to what it needs."""

    def __init__(self, requirements: NodeRequirements, nodes: Sequence[SchedulerNode]) -> None:
        self._requirements = requirements
        self._nodes = nodes
        self._needs = _needs(requirements)
        self._unable: dict[object, SchedulerNode] = {}  # by capacity and GPU model: those too small when empty
        self._closest: SchedulerNode | None = None
        self._draining: SchedulerNode | None = None
        self._reserved: SchedulerNode | None = None
        self._refused: SchedulerNode | None = None  # has room, but the ask waits for another node

    def reason(self, allocator: AppPlacementAllocator | None, opportunity: SchedulingOpportunity | None) -> WaitReason:
        with_room = self._with_room(allocator, opportunity)
        if with_room is not None:
            sentence = f"node {with_room.node_id} has room: it gets its container with the node's next heartbeat"
            return self._about(WaitCause.HEARTBEAT, sentence, with_room)
        if self._refused is not None and allocator is not None and opportunity is not None:
            return self._about(WaitCause.LOCALITY, _for_locality(self._refused, allocator, opportunity), self._refused)
        if self._closest is not None:
            return self._too_full(self._closest)
        if self._reserved is not None:
            holder = self._reserved.reserved_container
            assert holder is not None  # otherwise not noted
            sentence = f"node {self._reserved.node_id} is reserved for {holder.application}, and no other could take it"
            return self._about(WaitCause.RESERVED, sentence, self._reserved)
        if self._draining is not None:
            sentence = f"all nodes that could take it are being decommissioned, such as {self._draining.node_id}"
            return self._about(WaitCause.DRAINING, sentence, self._draining)
        return self._too_small()

    def _with_room(
        self, allocator: AppPlacementAllocator | None, opportunity: SchedulingOpportunity | None
    ) -> SchedulerNode | None:
        """The first node that could take an ask now; notes the others."""
        requirements, needs, is_plain = self._requirements, self._needs[2:], self._requirements.is_plain
        memory_mb, vcores_milli = requirements.memory_mb, requirements.vcores_milli
        per_mb, per_milli = 1 / max(1, memory_mb), 1 / max(1, vcores_milli)
        unable = self._unable
        least, refused = math.inf, 0
        for node in self._nodes:
            short = (memory_mb - node.free_memory_mb) * per_mb
            other = (vcores_milli - node.free_vcores_milli) * per_milli
            if other > short:
                short = other
            if not is_plain:
                for _, need, free, _ in needs:
                    short = max(short, (need - free(node)) / need)
            if short >= least:
                continue
            kind = node.capacity, node.gpu_model
            if kind in unable:
                continue
            if not node.could_fit(requirements.resource, requirements.gpu_models):
                unable[kind] = node
            elif node.is_draining:
                self._draining = node
            elif node.reserved_container is not None:
                self._reserved = node
            elif short > 0:
                least, self._closest = short, node
            elif allocator is None or opportunity is None or allocator.find(node, opportunity) is not None:
                return node
            else:
                self._refused = node
                refused += 1
                if refused == _MOST_REFUSED:
                    return None
        return None

    def _too_full(self, node: SchedulerNode) -> WaitReason:
        short = [(type_, need, free) for type_, need, free, _ in self._needs if free(node) < need]
        nowhere = [(type_, need) for type_, need, free in short if max(map(free, self._nodes)) < need]
        what = nowhere or [(type_, need) for type_, need, *_ in self._needs if need]
        together = "" if nowhere else " at once"
        has = quantities((type_, free(node)) for type_, _, free in short)
        sentence = (
            f"no node{_among(self._requirements)} has {quantities(what)}{self._share(what)} free{together}; "
            f"the closest, {node.node_id}, has {has}"
        )
        type_, need, free = short[0]
        return self._about(WaitCause.NO_ROOM, sentence, node)._replace(
            resource=type_, needed=need, available=free(node)
        )

    def _too_small(self) -> WaitReason:
        where, cause = _among(self._requirements), WaitCause.NEVER_FITS
        for type_, need, _, whole in self._needs:
            largest = max(self._unable.values(), key=whole)
            if whole(largest) < need:
                sentence = (
                    f"no node{where} could ever take it: it needs {quantity(type_, need)}, and the largest, "
                    f"{largest.node_id}, has {quantity(type_, whole(largest))} in all"
                )
                return self._about(cause, sentence, largest)._replace(
                    resource=type_, needed=need, available=whole(largest)
                )
        needs = quantities((type_, need) for type_, need, *_ in self._needs if need)
        models = " or ".join(sorted(self._requirements.gpu_models))
        sentence = f"no node{where} could ever take it: none has {needs}" + (f" of model {models}" if models else "")
        return WaitReason(cause, sentence, partition=self._requirements.partition)

    def _share(self, what: Iterable[tuple[str, int]]) -> str:
        return device_share(self._requirements.resource) if GPUS in dict(what) else ""

    def _about(self, cause: WaitCause, sentence: str, node: SchedulerNode) -> WaitReason:
        return WaitReason(cause, sentence, node=node.node_id, partition=self._requirements.partition)


def _needs(requirements: NodeRequirements) -> list[_Need]:
    """Memory and vcores first, whether needed or not; then what else is needed."""
    resource = requirements.resource
    needs: list[_Need] = [
        ("memory_mb", resource.memory_mb, attrgetter("free_memory_mb"), attrgetter("capacity.memory_mb")),
        ("vcores_milli", resource.vcores_milli, attrgetter("free_vcores_milli"), attrgetter("capacity.vcores_milli")),
    ]
    if resource.gpus:
        milli = resource.gpu_milli
        needs.append(
            (
                GPUS,
                resource.gpus,
                lambda node: sum(free >= milli for free in node.free_gpu_milli),
                lambda node: node.capacity.gpus,
            )
        )
    for name, amount in resource.others:
        needs.append((name, amount, *_of_other(name)))
    return needs


def _of_other(name: str) -> tuple[Callable[[SchedulerNode], int], Callable[[SchedulerNode], int]]:
    return lambda node: node.free_others.get(name, 0), lambda node: node.capacity.other(name)


def _for_locality(node: SchedulerNode, allocator: AppPlacementAllocator, opportunity: SchedulingOpportunity) -> str:
    """How far the ask is in its locality delay: first it waits for the rack, then for any node."""
    first, missed = allocator.first, allocator.missed_opportunities
    preferred = f"host {first.request.host}" if first.request.host is not None else f"rack {first.rack}"
    delay, then = opportunity.off_switch_delay, "any node"
    if first.request.host is not None and missed < opportunity.node_locality_delay and first.rack is not None:
        delay, then = opportunity.node_locality_delay, f"other nodes of rack {first.rack}"
    return (
        f"it prefers {preferred}, and has let {missed} of {delay} heartbeats pass before it accepts {then}, though "
        f"node {node.node_id} has room"
    )


def _among(requirements: NodeRequirements) -> str:
    """Which nodes are meant: those that the ask accepts."""
    return _in(requirements.partition) + (" that it hasn't blacklisted" if requirements.blacklist else "")


def _in(partition: str) -> str:
    return f" of partition {partition}" if partition else ""
