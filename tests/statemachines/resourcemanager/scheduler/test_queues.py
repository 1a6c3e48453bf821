"""The tree of queues on its own: shares, limits, users, and invalid trees."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher import ConfigError
from statemachines.resourcemanager import Resource

from ..inner import amounts_of
from .queue_cluster import limits, queue_config
from .queue_cluster import queue_tree as tree

ONE = amounts_of(Resource(1, 0))


def leaf(built: Any, name: str) -> Any:
    found = built.leaf(name)
    assert found is not None
    return found


def use(queue: Any, user: str, memory_mb: int, vcores_milli: int = 0, asks: int = 0) -> None:
    """Give `user` this much of the default partition, and `asks` pending asks."""
    queue.enter(user)
    queue.charge(user, "", amounts_of(Resource(memory_mb, vcores_milli)))
    queue.add_asks(user, asks)


# -- invalid trees ---------------------------------------------------------------------------------------------------

GPU = {"gpu": {"capacity": 100}}
LABEL = r"queues\[0\]\.accessible_node_labels"
INVALID: dict[str, tuple[list[dict[str, Any]], str]] = {
    "none": ([], r"scheduler\.queues: there must be a queue"),
    "90 % in all": ([queue_config("a", 60), queue_config("b", 30)], r"scheduler\.queues: the capacities add up to 90;"),
    "two of a name": (
        [queue_config("a", 50), queue_config("a", 50)], r"queues\[1\]\.name: scheduler\.queues\[0\] is also named a",
    ),
    "another root": ([queue_config("root")], r"scheduler\.queues\[0\]\.name: root is"),
    "99 % of a parent": (
        [queue_config("a", 40), queue_config("b", 60, queue_config("c", 99))],
        r"scheduler\.queues\[1\]\.queues: the capacities add up to 99; they must add up to 100",
    ),
    "two of a name below different parents": (
        [queue_config("a", 40), queue_config("b", 60, queue_config("a"))],
        r"scheduler\.queues\[1\]\.queues\[0\]\.name: scheduler\.queues\[0\] is also named a",
    ),
    "more than the maximum": (
        [queue_config("a", maximum_capacity=99)], r"queues\[0\]\.capacity: 100 is more than its maximum_capacity, 99",
    ),
    "more of a label than the maximum": (
        [queue_config("a", accessible_node_labels={"gpu": {"capacity": 100, "maximum_capacity": 50}})],
        LABEL + r"\.gpu\.capacity: 100 is more than",
    ),
    "70 % of a label": (
        [queue_config("a", accessible_node_labels={"gpu": {"capacity": 70}})],
        r"scheduler\.queues: the capacities of label gpu add up to 70",
    ),
    "a label without a name": (
        [queue_config("a", accessible_node_labels={"": {"capacity": 100}})],
        LABEL + ": the default partition has no label",
    ),
    "a label that the parent may not use": (
        [queue_config("a", 100, queue_config("b", accessible_node_labels=GPU))],
        r"scheduler\.queues\[0\]\.queues\[0\]\.accessible_node_labels\.gpu: the parent queue may not",
    ),
    "a label that no child may use": (
        [queue_config("a", 100, queue_config("b"), accessible_node_labels=GPU)],
        r"scheduler\.queues\[0\]\.queues: the capacities of label gpu add up to 0",
    ),
    "a default label that it may not use": (
        [queue_config("a", default_node_label="gpu")], r"queues\[0\]\.default_node_label: gpu is not one of",
    ),
    "a default lifetime beyond the maximum": (
        [queue_config("a", default_lifetime_s=9, maximum_lifetime_s=8)],
        r"queues\[0\]\.default_lifetime_s: 9 is more than its maximum_lifetime_s, 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("queues", "message"), INVALID.values(), ids=INVALID)
def test_invalid_tree_is_rejected_with_the_path_of_the_wrong_key(queues: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tree(*queues)


def test_capacities_that_were_rounded_make_100() -> None:
    assert len(tree(*({"name": name, "capacity": 33.33} for name in "abc")).leaves) == 3


# -- shares -----------------------------------------------------------------------------------------------------------

NESTED = (
    queue_config(
        "research",
        60,
        queue_config("day", 50, accessible_node_labels={"gpu": {"capacity": 25}}),
        queue_config("night", 50, maximum_capacity=50, accessible_node_labels={"gpu": {"capacity": 75}}),
        maximum_capacity=80,
        accessible_node_labels=GPU,
    ),
    queue_config("batch", 40),
)


def test_shares_are_multiplied_down_the_path() -> None:
    built = tree(*NESTED)
    shares = {
        (queue.path, partition): (float(share.capacity), float(share.maximum))
        for queue in built.queues()
        for partition, share in queue.shares.items()
    }

    assert shares == {
        ("root", ""): (1, 1),
        ("root", "gpu"): (1, 1),
        ("root.research", ""): (0.6, 0.8),
        ("root.research", "gpu"): (1, 1),
        ("root.research.day", ""): (0.3, 0.8),
        ("root.research.day", "gpu"): (0.25, 1),
        ("root.research.night", ""): (0.3, 0.4),
        ("root.research.night", "gpu"): (0.75, 1),
        ("root.batch", ""): (0.4, 1),
    }


def test_queues_are_found_by_path_and_leaves_by_name_too() -> None:
    built = tree(*NESTED)

    assert built.leaf("night") is built.leaf("root.research.night") is not None
    assert (built.find("research"), built.leaf("root.research")) == (None, None)


def test_limits_follow_the_size_of_the_partition() -> None:
    built = tree(*NESTED)
    night = leaf(built, "night")

    built.grow("", amounts_of(Resource(100, 50, gpus=1)))
    before = dict(night.share("").limit)
    built.grow("", amounts_of(Resource(60, 0)), -1)

    assert before == {"memory_mb": 40, "vcores_milli": 20, "gpu_milli": 400}
    assert night.share("").limit == {"memory_mb": 16, "vcores_milli": 20, "gpu_milli": 400}


def test_decimal_percents_are_exact() -> None:
    built = tree({"name": "a", "capacity": 0.1, "maximum_capacity": 0.3}, {"name": "b", "capacity": 99.9})

    built.grow("", amounts_of(Resource(1000, 0)))

    assert leaf(built, "a").share("").limit == {"memory_mb": 3}  # 2 with floats


def test_siblings_within_their_guarantee_come_first_then_the_urgent_then_those_that_use_least() -> None:
    built = tree(
        {"name": "over", "capacity": 10, "priority": 9},
        {"name": "full", "capacity": 30},
        {"name": "half", "capacity": 30},
        {"name": "urgent", "capacity": 30, "priority": 1},
        {"name": "nothing", "capacity": 0},
        total=Resource(100, 100),
    )
    for name, memory_mb in (("over", 20), ("full", 29), ("half", 15), ("urgent", 28)):
        use(leaf(built, name), "ann", memory_mb)

    order = sorted(built.root.children, key=lambda queue: queue.share("").find_order())

    assert [queue.config.name for queue in order] == ["urgent", "half", "full", "over", "nothing"]


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "asked", "config", "expected"),
    [
        pytest.param({"ann": 0}, 1, {}, 0.5, id="one user has the guarantee"),
        pytest.param({"ann": 0, "bob": 0}, 1, {}, 0.5, id="at a minimum of 100 percent the first takes all"),
        pytest.param({"ann": 0, "bob": 0}, 1, {"minimum_user_limit_percent": 25}, 0.25, id="equal parts"),
        pytest.param(dict.fromkeys("abcdef", 0), 1, {"minimum_user_limit_percent": 25}, 0.125, id="the minimum"),
        pytest.param({"ann": 60}, 1, {}, 0.5, id="the factor bounds it"),
        pytest.param({"ann": 60}, 1, {"user_limit_factor": 2}, 0.61, id="beyond the guarantee it grows with the use"),
        pytest.param(
            {"ann": 40, "bob": 30},
            10,
            {"user_limit_factor": 9, "minimum_user_limit_percent": 1},
            0.4,
            id="and is shared",
        ),
        pytest.param({"ann": 0}, 80, {}, 0.8, id="at least what one container needs"),
        pytest.param({"ann": 0}, 1, {"user_limit_factor": 0.1}, 0.05, id="a factor below one"),
    ],
)
def test_user_limit_equals_yarns(used: dict[str, int], asked: int, config: dict[str, Any], expected: float) -> None:
    built = tree({"name": "a", "capacity": 50, **config}, {"name": "b", "capacity": 50}, total=Resource(100, 100))
    for user, memory_mb in used.items():
        use(leaf(built, "a"), user, memory_mb, asks=1)

    limit = limits.user_limit(leaf(built, "a"), "", amounts_of(Resource(asked, 0)))

    assert limit == pytest.approx(expected)


@pytest.mark.parametrize("users", range(2, 12))
def test_user_at_its_limit_is_not_beyond_it_by_rounding(users: int) -> None:
    """The part of each user is a fraction that a float may miss either way."""
    queues = {"name": "a", "capacity": 30, "minimum_user_limit_percent": 1}, {"name": "b", "capacity": 70}
    built = tree(*queues, total=Resource(users * 1000, 1))
    queue = leaf(built, "a")
    for number in range(users):
        use(queue, f"user{number}", 300, asks=1)

    assert not limits.is_user_full(queue, "user0", "", ())


@pytest.mark.parametrize(
    ("asked", "parent", "own", "expected"),
    [
        (None, {}, {}, None),
        (70, {}, {}, 70),
        (None, {}, {"maximum_lifetime_s": 50}, 50),
        (None, {}, {"maximum_lifetime_s": 50, "default_lifetime_s": 20}, 20),
        (70, {}, {"maximum_lifetime_s": 50, "default_lifetime_s": 20}, 50),
        (30, {"maximum_lifetime_s": 50}, {}, 30),
        (70, {"maximum_lifetime_s": 50}, {"maximum_lifetime_s": 60}, 60),
        (None, {"default_lifetime_s": 50}, {"maximum_lifetime_s": 40}, 40),
    ],
)
def test_lifetime_is_bounded_by_the_queues(
    asked: int | None, parent: dict[str, int], own: dict[str, int], expected: int | None
) -> None:
    built = tree({"name": "p", "queues": [{"name": "a", **own}], **parent})

    assert leaf(built, "a").lifetime_s(asked) == expected


# -- the maximum allocation ------------------------------------------------------------------------------


def test_maximum_allocation_is_the_nearest_queue_s_or_the_scheduler_s() -> None:
    built = tree(
        {"name": "a", "capacity": 50, "maximum_allocation_mb": 80, "queues": [{"name": "b"}]},
        {"name": "c", "capacity": 50, "maximum_allocation_vcores": 2},
        maximum_allocation_mb=100,
        maximum_allocation_vcores=4,
    )

    found = [leaf(built, "b").maximum_allocation, leaf(built, "c").maximum_allocation, built.maximum_allocation]

    assert found == [(80, 4000), (100, 2000), (100, 4000)]


def test_queue_may_not_take_larger_containers_than_the_scheduler() -> None:
    queue = {"name": "a", "queues": [{"name": "b", "maximum_allocation_mb": 101}]}

    with pytest.raises(
        ConfigError,
        match=r"^scheduler\.queues\[0\]\.queues\[0\]\.maximum_allocation_mb: 101 is more than "
        r"scheduler\.maximum_allocation_mb, 100$",
    ):
        tree(queue, maximum_allocation_mb=100)


def test_queue_below_one_that_is_stopped_is_stopped() -> None:
    built = tree({"name": "p", "state": "STOPPED", "queues": [{"name": "a"}]})

    assert (leaf(built, "a").is_running, built.root.is_running) == (False, True)
