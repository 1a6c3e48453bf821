"""The books of one node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import NodeSpec

from ....kit.scenarios import play
from ..inner import SchedulerNode
from .stage import size_of


class NodeStage:
    """One node: "node 10g2 | take c1 4x3g1:300 -> free 6 7 700 1000 ; c1 0 | return c1".

    `free` shows the memory, the vcores, what is left of each GPU, and the FPGAs of a node that has some. A container
    shows its devices. What has no room is `refused`, and the books then stay.
    """

    def __init__(self) -> None:
        self.node: Any = None
        self.answers: list[str] = []

    def play(self, verb: str, *words: str) -> None:
        if verb == "node":
            model = words[1] if len(words) > 1 else None
            self.node = SchedulerNode("node1:45454", NodeSpec("node1", size_of(words[0]), gpu_model=model))
            return
        before, self.answers = self.books(), []
        node, name = self.node, words[0]
        match verb:
            case "take":
                try:
                    node.take(name, size_of(words[1]))
                except ValueError as error:
                    self.answers = ["yes" if "node1:45454: no room for <memory:" in str(error) else str(error)]
                    assert self.books() == before
            case "return":
                node.give_back(name)
            case "resize":
                self.answers = [str(node.resize(name, size_of(words[1])))]
                assert self.answers == ["True"] or self.books() == before
            case "recover":
                node.recover(name, size_of(words[1]), tuple(map(int, words[2:])))
            case "size":
                before_free = node.free()
                node.set_capacity(size_of(name))
                self.answers = [str(node.has_more_than(before_free))]

    def books(self) -> tuple[Any, ...]:
        node = self.node
        return node.free(), dict(node.containers), dict(node.devices), set(node.launched)

    def look(self, what: str) -> Iterable[object]:
        node = self.node
        if what == "free":
            fpgas = [node.free_others["fpga"]] if "fpga" in node.free_others else []
            return [node.free_memory_mb, node.free_vcores_milli, *node.free_gpu_milli, *fpgas]
        if what in ("refused", "resized", "has_more"):
            return self.answers
        kind, _, size = what.partition(":")
        if kind in ("fits", "could"):
            resource, _, models = size.partition("~")
            arguments = (size_of(resource), frozenset(models.split("+"))) if models else (size_of(resource),)
            return [node.fits(*arguments) if kind == "fits" else node.could_fit(*arguments)]
        if what == "has_gpus":
            return [node.has_gpus]
        return node.devices.get(what, ()) if what in node.containers else ["-"]


SCENARIOS = {
    "a node without GPUs has room up to its memory and vcores": (
        "node 8192x8000 -> fits:8192x8000 True ; fits:8193x1 False ; fits:1x8001 False ; fits:0 True ; fits:1g1:1 False"
    ),
    "each GPU that is asked for is another device": (
        "node 9g2 -> fits:1g1 True ; fits:1g2 True ; fits:1g3 False ; fits:1g2:500 True ; fits:1g3:1 False"
    ),
    "a node of another GPU model does not fit": (
        "node 9g1 T4 -> fits:1g1 True ; fits:1g1~T4 True ; fits:1g1~T4+V100 True ; fits:1g1~V100 False"
        "; fits:1~T4 True ; fits:1~V100 False"
    ),
    "a node without a GPU model does not fit an ask that names one": "node 9 -> fits:1~T4 False",
    "what is taken is no longer free": (
        "node 8192x8000g2 | take c1 8000x7000g1:300 -> c1 0 ; free 192 1000 700 1000 ; fits:192x1000 True"
        "; fits:193x1000 False ; fits:192x1001 False"
    ),
    "a container without room is refused": "node 8192x8000 | take c1 8193x1 -> refused yes",
    "a container without a GPU is refused": "node 9 | take c1 1g1 -> refused yes",
    "a container cannot be booked twice": "node 9 | take c1 1 | take c1 1 -> refused yes",
    "shares of one GPU add up to a whole one": (
        "node 9g1 | take c1 1g1:460 | take c2 1g1:460 | take c3 1g1:80 -> free 6 6 0 ; c3 0 ; fits:1g1:1 False"
    ),
    "two halves of different GPUs do not make a whole one": (
        "node 9g2 | take c1 1g2:500 -> free 8 8 500 500 ; fits:1g1 False ; fits:1g1:501 False ; fits:1g2:500 True"
    ),
    "the GPU with the least room that is enough is taken, so that whole ones stay whole": (
        "node 9g3 | take c1 1g1:300 | take c2 1g1:900 | take c3 1g1:500 -> c3 0 ; free 6 6 200 100 1000"
    ),
    "devices come in the order of their numbers": (
        "node 9g3 | take c1 1g1:400 | take c2 1g2:700 -> c2 1 2 | take c3 1g3:100 -> c3 0 1 2"
    ),
    "a node has GPUs even if they are taken": "node 9g1 | take c1 1g1 -> has_gpus True",
    "a node has none": "node 9 | take c1 1 -> has_gpus False",
    "further resource types are kept by name": (
        "node 9f3 | take c1 1f2 -> free 8 8 1 ; fits:1f1 True ; fits:1f2 False ; could:1f3 True ; could:1f4 False"
    ),
    "a type that the node lacks does not fit": "node 9 -> fits:1f1 False ; could:1f1 False",
    "a size changes where there is room, and the GPUs stay": (
        "node 8192x8000g1f1 | take c1 100g1:400 | resize c1 8192x50g1:400f1 -> resized True ; c1 0 ; free 0 7950 600 0"
    ),
    **{
        f"a size of {size} without room is refused": (
            f"node 8192x8000g2 | take c1 100g1 | resize c1 {size} -> resized False"
        )
        for size in ("8193x1g1", "1x8001g1", "1g1f1", "1g2")
    },
    "less is always possible even if the node has too little": (
        "node 8192x8000 | take c1 8000 | size 100 | resize c1 7000x8000 -> resized True ; free -6900 -7900"
    ),
    "a capacity may shrink below the usage": (
        "node 8192x8000g2f2 | take c1 8000g2:600f2 | size 1000x9000g1 -> free -7000 1000 400 -600 -2 ; fits:0 False"
    ),
    "what is returned beyond a reduced capacity is not free": (
        "node 8192x8000g2 | take c1 8192x8000g2 | size 8000 | return c1 -> free 8000 8000 0 0 ; fits:1g1:1 False"
    ),
    "a container that was there is noted whether there is room or not": (
        "node 100x8000g1 | recover c1 200x1g2:300f1 0 3 -> free -100 7999 700 0 0 -300 -1 ; c1 0 3"
        "| return c1 -> free 100 8000 1000 0 0 0 0 ; c1 -"
    ),
    **{
        f"a node of 8192x8000g1f1 {'has' if more else 'does not have'} more when it has {size}": (
            f"node 8192x8000g1f1 | size {size} -> has_more {more}"
        )
        for size, more in (
            ("8192x8000g1f1", False), ("1", False), ("8193x1", True), ("1x8001", True), ("1g2", True), ("1f2", True),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_node(script: str) -> None:
    play(NodeStage(), script)


resources = st.builds(Resource, st.integers(0, 50), st.integers(0, 50), st.integers(0, 4), st.integers(1, 1000))


@pytest.mark.long
@given(st.lists(st.one_of(resources, st.integers(0, 30)), max_size=40))
def test_books_are_right_after_any_takes_and_returns(steps: list[Resource | int]) -> None:
    """A number releases the container of that number."""
    one = SchedulerNode("node1:45454", NodeSpec("node1", Resource(100, 100, gpus=3)))
    held: dict[str, tuple[Resource, tuple[int, ...]]] = {}

    for number, step in enumerate(steps):
        if isinstance(step, int):
            held.pop(f"c{step}", None)
            one.give_back(f"c{step}")
        elif one.fits(step):
            devices = one.take(f"c{number}", step)
            assert len(set(devices)) == step.gpus
            held[f"c{number}"] = (step, devices)

    used = [0, 0, 0]
    for resource, devices in held.values():
        for device in devices:
            used[device] += resource.gpu_milli
    assert one.containers == {container: resource for container, (resource, _) in held.items()}
    assert one.devices == {container: devices for container, (_, devices) in held.items() if devices}
    assert one.free_memory_mb == 100 - sum(resource.memory_mb for resource, _ in held.values()) >= 0
    assert one.free_vcores_milli == 100 - sum(resource.vcores_milli for resource, _ in held.values()) >= 0
    assert one.free_gpu_milli == [1000 - milli for milli in used]
    assert min(one.free_gpu_milli) >= 0
