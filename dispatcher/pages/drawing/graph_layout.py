"""A layered layout of a directed graph: positions of its nodes, and routes of its edges.

Four steps, each the simplest that looks good for some dozens of nodes: reverse the edges that close a cycle; put each
node into the layer below its last predecessor; order each layer by the mean of its neighbours until few edges cross;
and spread the nodes until none overlap.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import NamedTuple

LONGEST_LABEL = 21
"""Characters of a node's name that fit into its box."""

_LAYER_HEIGHT = 72.0
_GAP = 24.0
_THREAD_WIDTH = 12.0
_CHARACTER = 7.7
_PADDING = 18.0
_BESIDE = 15.0
_SWEEPS = 12
_FIRST = "NEW"

Pair = tuple[str, str]


class Point(NamedTuple):
    """In pixels, rightwards and downwards."""

    x: float
    y: float


class PlacedNode(NamedTuple):
    """Centre and width."""

    x: float
    y: float
    width: float


class Layout(NamedTuple):
    """`routes`: for each edge the points from the centre of its source to the centre of its target."""

    placed: Mapping[str, PlacedNode]
    routes: Mapping[Pair, Sequence[Point]]
    width: float
    height: float


class _LayerCell(NamedTuple):
    """A place in a layer, occupied by a node or, if `edge` is set, by an edge that crosses the layer."""

    name: str
    layer: int
    edge: Pair | None = None

    @property
    def width(self) -> float:
        return _THREAD_WIDTH if self.edge else _PADDING + _CHARACTER * min(len(self.name), LONGEST_LABEL)


_Links = dict[_LayerCell, list[_LayerCell]]


def lay_out(nodes: Sequence[str], edges: Iterable[Pair]) -> Layout:
    """Lay out the graph. Every edge must connect two different members of `nodes`."""
    pairs = list(dict.fromkeys(edges))
    turned = _turned(nodes, pairs)
    down = {pair: (pair[1], pair[0]) if pair in turned else pair for pair in pairs}
    levels = _levels(nodes, down.values())
    chains = {
        pair: [
            _LayerCell(upper, levels[upper]),
            *(_LayerCell("", layer, pair) for layer in range(levels[upper] + 1, levels[lower])),
            _LayerCell(lower, levels[lower]),
        ]
        for pair, (upper, lower) in down.items()
    }
    x = _columns(_ordered([_LayerCell(node, levels[node]) for node in nodes], chains.values()), chains.values())
    left = min((x[cell] - cell.width / 2 for cell in x), default=0.0)
    right = max((x[cell] + cell.width / 2 for cell in x), default=0.0)
    placed = {
        cell.name: PlacedNode(x[cell] - left, cell.layer * _LAYER_HEIGHT, cell.width) for cell in x if cell.edge is None
    }
    routes = {}
    for pair, chain in chains.items():
        # Off centre, so that an edge and its reverse do not overlap.
        aside = _BESIDE if pair in turned else 0.0
        points = [
            Point(x[cell] - left + (aside if cell.edge is None else 0.0), cell.layer * _LAYER_HEIGHT) for cell in chain
        ]
        routes[pair] = points[::-1] if pair in turned else points
    return Layout(placed, routes, right - left, max(levels.values(), default=0) * _LAYER_HEIGHT)


def _turned(nodes: Sequence[str], pairs: Iterable[Pair]) -> set[Pair]:
    """The back edges of a depth-first search from the first node; without them the graph has no cycle."""
    following: dict[str, list[str]] = defaultdict(list)
    for source, target in pairs:
        following[source].append(target)
    targets = {target for _, target in pairs}
    turned: set[Pair] = set()
    done: set[str] = set()

    def search(node: str, path: frozenset[str]) -> None:
        for target in following[node]:
            if target in path:
                turned.add((node, target))
            elif target not in done:
                search(target, path | {target})
        done.add(node)

    for root in sorted(nodes, key=lambda node: (node != _FIRST, node in targets)):
        if root not in done:
            search(root, frozenset({root}))
    return turned


def _levels(nodes: Iterable[str], down: Iterable[Pair]) -> dict[str, int]:
    """For each node, the number of edges on the longest path to it."""
    above: dict[str, list[str]] = {node: [] for node in nodes}
    for upper, lower in down:
        above[lower].append(upper)
    levels: dict[str, int] = {}
    for node in TopologicalSorter(above).static_order():
        levels[node] = max((levels[upper] + 1 for upper in above[node]), default=0)
    return levels


def _ordered(nodes: Iterable[_LayerCell], chains: Iterable[Sequence[_LayerCell]]) -> list[list[_LayerCell]]:
    """The layers, each from left to right, after repeatedly sorting each by the mean rank of its neighbours."""
    cells = list(dict.fromkeys([*nodes, *(cell for chain in chains for cell in chain)]))
    layers: list[list[_LayerCell]] = [[] for _ in range(1 + max((cell.layer for cell in cells), default=0))]
    for cell in cells:
        layers[cell.layer].append(cell)
    above, below = _links(chains)
    rank = {cell: float(position) for layer in layers for position, cell in enumerate(layer)}
    for sweep in range(_SWEEPS):
        neighbours, walk = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        for layer in walk:
            middle = {cell: _mean([rank[other] for other in neighbours.get(cell, ())], rank[cell]) for cell in layer}
            layer.sort(key=middle.__getitem__)
            # As shares of the layer's width, because layers differ in their number of cells.
            rank |= {cell: (position + 0.5) / len(layer) for position, cell in enumerate(layer)}
    return layers


def _columns(layers: Sequence[Sequence[_LayerCell]], chains: Iterable[Sequence[_LayerCell]]) -> dict[_LayerCell, float]:
    """The x of each cell's centre: close to its neighbours, in the layer's order and without overlap."""
    above, below = _links(chains)
    x: dict[_LayerCell, float] = {}
    for layer in layers:
        x |= _spread(layer, [0.0] * len(layer))
    for sweep in range(2 * _SWEEPS):
        neighbours, walk = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        for layer in walk:
            wanted = [_mean([x[other] for other in neighbours.get(cell, ())], x[cell]) for cell in layer]
            x |= _spread(layer, wanted)
    return x


def _spread(layer: Sequence[_LayerCell], wanted: Sequence[float]) -> dict[_LayerCell, float]:
    """The wanted positions, or the nearest ones without overlap: cells that touch move together as one block."""
    # Sum of wanted starts, width, cells with offsets.
    blocks: list[tuple[float, float, list[tuple[_LayerCell, float]]]] = []
    for cell, middle in zip(layer, wanted, strict=True):
        starts, width, members = middle - cell.width / 2, cell.width + _GAP, [(cell, 0.0)]
        while blocks and blocks[-1][0] / len(blocks[-1][2]) + blocks[-1][1] > starts / len(members):
            before_starts, before_width, before = blocks.pop()
            starts = before_starts + starts - len(members) * before_width
            members = before + [(other, offset + before_width) for other, offset in members]
            width += before_width
        blocks.append((starts, width, members))
    return {
        cell: starts / len(members) + offset + cell.width / 2
        for starts, _, members in blocks
        for cell, offset in members
    }


def _links(chains: Iterable[Sequence[_LayerCell]]) -> tuple[_Links, _Links]:
    above: _Links = defaultdict(list)
    below: _Links = defaultdict(list)
    for chain in chains:
        for upper, lower in itertools.pairwise(chain):
            above[lower].append(upper)
            below[upper].append(lower)
    return above, below


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
