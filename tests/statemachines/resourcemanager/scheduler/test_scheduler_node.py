"""The books of one node."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines.resourcemanager import Resource
from statemachines.resourcemanager.records.resource import named
from statemachines.resourcemanager.scheduler.core.node import SchedulerNode
from statemachines.simulation.workload import NodeSpec


def node(
    memory_mb: int = 8192,
    vcores_milli: int = 8000,
    gpus: int = 0,
    model: str | None = None,
    others: dict[str, int] | None = None,
) -> SchedulerNode:
    capacity = Resource(memory_mb, vcores_milli, gpus, others=named(others or {}))
    return SchedulerNode("node1:45454", NodeSpec("node1", capacity, gpu_model=model))


def gpu(gpus: int, milli: int = 1000) -> Resource:
    return Resource(1, 1, gpus, milli)


def books(node: SchedulerNode) -> tuple[Any, ...]:
    return (node.free(), dict(node.containers), dict(node.devices), set(node.launched))


@pytest.mark.parametrize(
    ("resource", "fits"),
    [
        (Resource(8192, 8000), True),
        (Resource(8193, 1), False),
        (Resource(1, 8001), False),
        (Resource(0, 0), True),
        (Resource(1, 1, gpus=1, gpu_milli=1), False),
        (Resource(1, 1, gpus=0, gpu_milli=500), True),
    ],
)
def test_node_without_gpus_has_room_up_to_its_memory_and_vcores(resource: Resource, fits: bool) -> None:
    assert node().fits(resource) is fits


@pytest.mark.parametrize(
    ("resource", "fits"), [(gpu(1), True), (gpu(2), True), (gpu(3), False), (gpu(2, 500), True), (gpu(3, 1), False)]
)
def test_each_gpu_asked_for_is_another_device(resource: Resource, fits: bool) -> None:
    assert node(gpus=2).fits(resource) is fits


@pytest.mark.parametrize(("models", "fits"), [(set(), True), ({"T4"}, True), ({"T4", "V100"}, True), ({"V100"}, False)])
@pytest.mark.parametrize("gpus", [0, 1])
def test_node_of_another_gpu_model_does_not_fit(models: set[str], fits: bool, gpus: int) -> None:
    assert node(gpus=1, model="T4").fits(gpu(gpus), frozenset(models)) is fits


def test_node_without_a_gpu_model_does_not_fit_an_ask_that_names_one() -> None:
    assert not node().fits(Resource(1, 1), frozenset({"T4"}))


def test_taken_resources_are_no_longer_free() -> None:
    one = node(gpus=2)

    devices = one.take("c1", Resource(8000, 7000, gpus=1, gpu_milli=300))

    assert devices == (0,)
    assert (one.free_memory_mb, one.free_vcores_milli, one.free_gpu_milli) == (192, 1000, [700, 1000])
    assert (one.containers, one.devices) == ({"c1": Resource(8000, 7000, 1, 300)}, {"c1": (0,)})
    assert one.fits(Resource(192, 1000))
    assert not one.fits(Resource(193, 1000))
    assert not one.fits(Resource(192, 1001))


def test_returned_resources_are_free_again() -> None:
    one = node(gpus=2)
    before = books(one)
    one.take("c1", Resource(100, 200, gpus=2, gpu_milli=300))

    one.give_back("c1")

    assert books(one) == before


def test_returning_an_unknown_container_changes_nothing() -> None:
    one = node(gpus=1)
    one.take("c1", gpu(1, 400))
    before = books(one)

    one.give_back("c2")

    assert books(one) == before


@pytest.mark.parametrize("resource", [Resource(8193, 1), Resource(1, 1, gpus=1)])
def test_container_without_room_is_refused_and_the_books_stay(resource: Resource) -> None:
    one = node()
    before = books(one)

    with pytest.raises(ValueError, match="node1:45454: no room for <memory:"):
        one.take("c1", resource)

    assert books(one) == before


def test_container_cannot_be_booked_twice() -> None:
    one = node()
    one.take("c1", Resource(1, 1))
    before = books(one)

    with pytest.raises(ValueError, match="is already booked"):
        one.take("c1", Resource(1, 1))

    assert books(one) == before


def test_shares_of_one_gpu_add_up_to_a_whole_one() -> None:
    one = node(gpus=1)

    devices = [one.take(f"c{number}", gpu(1, share)) for number, share in enumerate((460, 460, 80))]

    assert devices == [(0,)] * 3
    assert one.free_gpu_milli == [0]
    assert not one.fits(gpu(1, 1))


def test_two_halves_of_different_gpus_do_not_make_a_whole_one() -> None:
    one = node(gpus=2)
    one.take("c1", gpu(2, 500))

    assert one.free_gpu_milli == [500, 500]
    assert not one.fits(gpu(1))
    assert not one.fits(gpu(1, 501))
    assert one.fits(gpu(2, 500))


def test_gpu_with_the_least_room_that_is_enough_is_taken_so_that_whole_ones_stay_whole() -> None:
    one = node(gpus=3)
    one.take("c1", gpu(1, 300))
    one.take("c2", gpu(1, 900))

    devices = one.take("c3", gpu(1, 500))

    assert devices == (0,)
    assert one.free_gpu_milli == [200, 100, 1000]


def test_devices_come_in_the_order_of_their_numbers() -> None:
    one = node(gpus=3)
    one.take("c1", gpu(1, 400))
    one.take("c2", gpu(2, 700))

    assert one.devices["c2"] == (1, 2)
    assert one.take("c3", gpu(3, 100)) == (0, 1, 2)


@pytest.mark.parametrize(("gpus", "has_gpus"), [(0, False), (1, True)])
def test_node_says_whether_it_has_gpus_even_if_they_are_taken(gpus: int, has_gpus: bool) -> None:
    one = node(gpus=gpus)
    one.take("c1", gpu(gpus))

    assert one.has_gpus is has_gpus


# -- custom resource types, resized containers and changed capacities --------------------------------------------------


def test_further_resource_types_are_kept_by_name() -> None:
    one = node(others={"fpga": 3, "disk": 10})

    one.take("c1", Resource(1, 1, others=named({"fpga": 2, "disk": 10})))

    assert one.free_others == {"fpga": 1, "disk": 0}
    assert one.fits(Resource(1, 1, others=named({"fpga": 1})))
    assert not one.fits(Resource(1, 1, others=named({"fpga": 2})))
    assert not one.fits(Resource(1, 1, others=named({"other": 1})))
    assert one.could_fit(Resource(1, 1, others=named({"fpga": 3})))
    assert not one.could_fit(Resource(1, 1, others=named({"fpga": 4})))


def test_size_changes_where_there_is_room_and_the_gpus_stay() -> None:
    one = node(gpus=1, others={"fpga": 1})
    one.take("c1", Resource(100, 100, 1, 400))

    assert one.resize("c1", Resource(8192, 50, 1, 400, named({"fpga": 1})))

    assert (one.containers["c1"], one.devices["c1"]) == (Resource(8192, 50, 1, 400, named({"fpga": 1})), (0,))
    assert one.free() == (0, 7950, (600,), {"fpga": 0})


@pytest.mark.parametrize(
    "size",
    [Resource(8193, 1, 1), Resource(1, 8001, 1), Resource(1, 1, 1, others=named({"fpga": 1})), Resource(1, 1, 2)],
)
def test_size_without_room_is_refused_and_the_books_stay(size: Resource) -> None:
    one = node(gpus=2)
    one.take("c1", Resource(100, 100, 1))
    before = books(one)

    assert not one.resize("c1", size)

    assert books(one) == before


def test_less_is_always_possible_even_if_the_node_has_too_little() -> None:
    one = node()
    one.take("c1", Resource(8000, 8000))
    one.set_capacity(Resource(100, 100))

    assert one.resize("c1", Resource(7000, 8000))

    assert (one.free_memory_mb, one.free_vcores_milli) == (-6900, -7900)


def test_capacity_may_shrink_below_the_usage() -> None:
    one = node(gpus=2, others={"fpga": 2})
    one.take("c1", Resource(8000, 8000, 2, 600, named({"fpga": 2})))

    one.set_capacity(Resource(1000, 9000, 1))

    assert one.free() == (-7000, 1000, (400, -600), {"fpga": -2})
    assert not one.fits(Resource(0, 0))
    assert one.capacity == Resource(1000, 9000, 1)


def test_resources_returned_beyond_a_reduced_capacity_are_not_free() -> None:
    one = node(gpus=2)
    one.take("c1", Resource(8192, 8000, 2))
    one.set_capacity(Resource(8000, 8000))

    one.give_back("c1")

    assert (one.free_memory_mb, one.free_vcores_milli) == (8000, 8000)
    assert not one.fits(gpu(1, 1))


def test_container_that_was_there_is_noted_whether_there_is_room_or_not() -> None:
    one = node(memory_mb=100, gpus=1)

    one.recover("c1", Resource(200, 1, 2, 300, named({"fpga": 1})), (0, 3))

    assert one.free() == (-100, 7999, (700, 0, 0, -300), {"fpga": -1})
    assert one.launched == {"c1"}
    one.give_back("c1")
    assert (one.free_memory_mb, one.free_gpu_milli, one.launched) == (100, [1000, 0, 0, 0], set())


@pytest.mark.parametrize(
    ("capacity", "has_more"),
    [
        (Resource(8192, 8000, 1, others=named({"fpga": 1})), False),
        (Resource(1, 1), False),
        (Resource(8193, 1), True),
        (Resource(1, 8001), True),
        (Resource(1, 1, 2), True),
        (Resource(1, 1, others=named({"fpga": 2})), True),
        (Resource(1, 1, others=named({"disk": 1})), True),
    ],
)
def test_node_reports_whether_more_of_any_type_is_free(capacity: Resource, has_more: bool) -> None:
    one = node(gpus=1, others={"fpga": 1})
    before = one.free()

    one.set_capacity(capacity)

    assert one.has_more_than(before) is has_more


resources = st.builds(Resource, st.integers(0, 50), st.integers(0, 50), st.integers(0, 4), st.integers(1, 1000))


@pytest.mark.long
@given(st.lists(st.one_of(resources, st.integers(0, 30)), max_size=40))
def test_books_are_right_after_any_takes_and_returns(steps: list[Resource | int]) -> None:
    """A number releases the container of that number."""
    one = node(100, 100, gpus=3)
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
