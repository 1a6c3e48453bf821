"""Variants of a workload, with other nodes or another arrival rate of applications, and its way to Spark's workers.

The variants are pure: the same arguments give the same nodes and times in every process.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dispatcher.util.garbage import tune_garbage_collection
from statemachines.simulation.workload import ApplicationSpec, NodeSpec, Workload


def node_count(nodes: int, wanted: int | float) -> int:
    """Resolve `wanted` for a cluster of `nodes`: an int is the number of nodes, a float is a factor.

    The product is rounded to the nearest whole number, halves upwards, and is at least 1.
    """
    return max(1, int(wanted * nodes + 0.5)) if isinstance(wanted, float) else wanted


def with_nodes(workload: Workload, count: int) -> Workload:
    """The workload on `count` of its nodes, in their order; a larger count adds copies of its nodes.

    Each kind of node (partition, GPU model, size) keeps its share of the cluster, and each rack its share of the kind,
    as far as whole nodes allow. A smaller cluster is a subset of a larger one. A copy is in the rack of its original
    and has its name with a suffix `+1`, `+2` and so on (`++1` if a name contains a plus).
    """
    nodes = workload.nodes
    if count == len(nodes) or not nodes:
        return workload
    rounds, rest = divmod(count, len(nodes))
    mark = "+" * (1 + max(node.host.count("+") for node in nodes))  # so that no copy has another node's name
    kept = [_copy(node, mark, number) for number in range(rounds) for node in nodes]
    kept += [_copy(nodes[position], mark, rounds) for position in sorted(_fair_order(nodes)[:rest])]
    return replace(workload, nodes=tuple(kept))


def with_load(workload: Workload, load: float) -> Workload:
    """The workload with its applications submitted `load` times as fast.

    An application's other times shift with its submission, so that their distances do not change.
    """
    if load == 1:
        return workload
    return replace(workload, applications=tuple(_sooner(each, load) for each in workload.applications))


def pack(workload: Workload) -> bytes:
    """Serialize the workload, without its bad rows, for `unpack` in a process with the same packages."""
    # The bad rows are errors with attributes beyond their message, which cannot be unpickled.
    return zlib.compress(pickle.dumps(replace(workload, bad_rows=())))


@lru_cache(maxsize=1)
def unpack(packed: bytes) -> Workload:
    """Deserialize the workload, cached for repeated calls. Only for a process that does nothing but replay."""
    workload: Workload = pickle.loads(zlib.decompress(packed))
    # A replay makes few reference cycles, and the modules imported by now stay.
    tune_garbage_collection()
    return workload


def _copy(node: NodeSpec, mark: str, number: int) -> NodeSpec:
    return replace(node, host=f"{node.host}{mark}{number}") if number else node


def _fair_order(nodes: tuple[NodeSpec, ...]) -> list[int]:
    """Positions of the nodes in an order whose every prefix has all kinds of nodes in proportion."""
    kinds = _groups(range(len(nodes)), lambda i: (nodes[i].partition, nodes[i].gpu_model, nodes[i].capacity))
    return _interleaved(_interleaved(_groups(kind, lambda i: nodes[i].rack)) for kind in kinds)


def _groups(positions: Iterable[int], key: Any) -> list[list[int]]:
    """Group by key, in the order of the groups' first members."""
    groups: dict[Any, list[int]] = {}
    for position in positions:
        groups.setdefault(key(position), []).append(position)
    return list(groups.values())


def _interleaved(groups: Iterable[list[int]]) -> list[int]:
    """Merge the groups, with the members of each group evenly spaced."""
    # The i-th of a group's n members goes where the share (i + 1/2) / n of all is reached.
    places = [
        ((2 * index + 1) / (2 * len(group)), number, position)
        for number, group in enumerate(groups)
        for index, position in enumerate(group)
    ]
    return [position for _, _, position in sorted(places)]


def _sooner(application: ApplicationSpec, load: float) -> ApplicationSpec:
    submit_ms = int(application.submit_ms / load + 0.5)
    earlier_ms = application.submit_ms - submit_ms
    return replace(
        application,
        submit_ms=submit_ms,
        kill_ms=None if application.kill_ms is None else application.kill_ms - earlier_ms,
        containers=tuple(
            replace(container, start_ms=max(0, container.start_ms - earlier_ms)) for container in application.containers
        ),
    )
