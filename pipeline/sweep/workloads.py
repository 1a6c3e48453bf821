"""The workload under other circumstances: with fewer or more nodes, or with applications that come faster.

All of it is a function of its arguments alone: the same workload and figures give the same nodes and times anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from statemachines.simulation.workload import ApplicationSpec, NodeSpec, Workload


def node_count(nodes: int, wanted: int | float) -> int:
    """How many nodes `wanted` makes of a cluster of `nodes`: a number of them, or a float, which is a factor.

    A factor is rounded to the nearest whole number, a half upwards, and never leaves a cluster without nodes.
    """
    return max(1, int(wanted * nodes + 0.5)) if isinstance(wanted, float) else wanted


def with_nodes(workload: Workload, count: int) -> Workload:
    """The workload on `count` of its nodes, in their order; beyond that, on copies of its nodes as well.

    Each kind of node (partition, GPU model, size) keeps its share of the cluster, and each rack its share of the kind,
    as far as whole nodes allow. A smaller cluster is part of a larger one. A copy is in the rack of its original and
    is called like it, with `+1`, `+2` and so on behind the name (`++1`, if a name has a plus).
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

    All times of an application are moved with its submission: what lies between them stays as it is.
    """
    if load == 1:
        return workload
    return replace(workload, applications=tuple(_sooner(each, load) for each in workload.applications))


def _copy(node: NodeSpec, mark: str, number: int) -> NodeSpec:
    return replace(node, host=f"{node.host}{mark}{number}") if number else node


def _fair_order(nodes: tuple[NodeSpec, ...]) -> list[int]:
    """Positions of the nodes, so that each beginning of the list has all kinds of nodes in their proportions."""
    kinds = _groups(range(len(nodes)), lambda i: (nodes[i].partition, nodes[i].gpu_model, nodes[i].capacity))
    return _interleaved(_interleaved(_groups(kind, lambda i: nodes[i].rack)) for kind in kinds)


def _groups(positions: Iterable[int], key: Any) -> list[list[int]]:
    """In the order of their first members."""
    groups: dict[Any, list[int]] = {}
    for position in positions:
        groups.setdefault(key(position), []).append(position)
    return list(groups.values())


def _interleaved(groups: Iterable[list[int]]) -> list[int]:
    """One list of all, with the members of each group at equal distances."""
    # Of a group of n, the i-th member comes when the share (i + 1/2) / n of all has come.
    places = [
        ((2 * index + 1) / (2 * len(group)), number, position)
        for number, group in enumerate(groups)
        for index, position in enumerate(group)
    ]
    return [position for _, _, position in sorted(places)]


def _sooner(application: ApplicationSpec, load: float) -> ApplicationSpec:
    submit_ms = int(application.submit_ms / load + 0.5)
    earlier_ms = application.submit_ms - submit_ms
    kill_ms = application.kill_ms
    return replace(
        application,
        submit_ms=submit_ms,
        kill_ms=None if kill_ms is None else kill_ms - earlier_ms,
        containers=tuple(
            replace(container, start_ms=max(0, container.start_ms - earlier_ms)) for container in application.containers
        ),
    )
