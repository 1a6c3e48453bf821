"""What each queue should have of a partition, and what it gives back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemachines.resourcemanager.scheduler.capacity.ideal_shares import QueueDemand

TOTAL = {"memory_mb": 100}


def queue(name: str, guaranteed: int, used: int, wanted: int = 0, **more: Any) -> QueueDemand:
    """A leaf; amounts of memory. Its maximum is all unless `maximum` says otherwise."""
    maximum = more.pop("maximum", 100)
    amounts: list[dict[str, int]] = [{"memory_mb": n} for n in (guaranteed, maximum, used, wanted)]
    return QueueDemand(name, *amounts, **more)


def parent(name: str, guaranteed: int, *children: QueueDemand) -> QueueDemand:
    used, wanted = (sum(getattr(c, key)["memory_mb"] for c in children) for key in ("used", "wanted"))
    return queue(name, guaranteed, used, wanted, children=children)


def given_back(*queues: QueueDemand, allowed: int = 100, total: int = 100) -> dict[str, int]:
    """What the leaves give back, once the root of these queues is balanced."""
    whole = {"memory_mb": total}
    parent("root", total, *queues).balance(whole, {"memory_mb": allowed})
    leaves = [leaf for each in queues for leaf in (each.children or (each,))]
    return {leaf.path: n for leaf in leaves if (n := leaf.give_back.get("memory_mb", 0))}


SHARES: dict[str, tuple[list[QueueDemand], dict[str, int]]] = {  # queues, and what each gives back
    "nobody waits": ([queue("a", 50, 100), queue("b", 50, 0)], {}),
    "what the starved queue wants": ([queue("a", 50, 100), queue("b", 50, 0, 20)], {"a": 20}),
    "at most its guarantee": ([queue("a", 50, 100), queue("b", 50, 0, 90)], {"a": 50}),
    "free room comes first": ([queue("a", 50, 60), queue("b", 50, 0, 90)], {"a": 10}),
    "both have their guarantee": ([queue("a", 50, 50, 50), queue("b", 50, 50, 50)], {}),
    "not to balance the excess": ([queue("a", 20, 60, 50), queue("b", 20, 40, 50), queue("c", 60, 0)], {}),
    "nothing of a protected queue": ([queue("a", 50, 100, is_protected=True), queue("b", 50, 0, 50)], {}),
    "the others give what a protected queue does not": (
        [queue("a", 25, 60, is_protected=True), queue("b", 25, 40), queue("c", 50, 0, 50)], {"b": 15},
    ),
    "at most the maximum of the starved": ([queue("a", 50, 100), queue("b", 50, 0, 50, maximum=10)], {"a": 10}),
    "no guarantee, nothing kept": ([queue("a", 0, 30), queue("b", 100, 70, 30)], {"a": 30}),
    "each what it has beyond its own": (
        [queue("a", 30, 60), queue("b", 30, 40), queue("c", 40, 0, 40)], {"a": 30, "b": 10},
    ),
    "within a parent that has its guarantee": (
        [parent("p", 50, queue("a", 25, 50), queue("b", 25, 0, 25)), queue("c", 50, 50)], {"a": 25},
    ),
    "a leaf beyond its guarantee whose parent is within its own": (
        [parent("p", 50, queue("a", 25, 40), queue("b", 25, 10)), queue("c", 50, 50, 50)], {},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("queues", "expected"), SHARES.values(), ids=SHARES)
def test_queues_give_back_what_starved_ones_are_due(queues: list[QueueDemand], expected: dict[str, int]) -> None:
    assert given_back(*queues) == expected


def test_round_gives_back_no_more_than_is_allowed() -> None:
    queues = queue("a", 30, 60), queue("b", 30, 40), queue("c", 40, 0, 40)

    assert given_back(*queues, allowed=10) == {"a": 8, "b": 3}  # a quarter of each, rounded up


def test_only_the_types_that_are_wanted_are_given_back() -> None:
    total = {"memory_mb": 100, "vcores_milli": 100}
    half = {"memory_mb": 50, "vcores_milli": 50}
    rich = QueueDemand("a", half, total, {"memory_mb": 100, "vcores_milli": 60}, {})
    starved = QueueDemand("b", half, total, {}, {"memory_mb": 30, "vcores_milli": 10})
    root = QueueDemand("root", total, total, rich.used, starved.wanted, children=[rich, starved])

    root.balance(total, total)

    assert {type_: n for type_, n in rich.give_back.items() if n} == {"memory_mb": 30}


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 200), st.booleans()), min_size=1),
)
def test_nobody_gives_what_it_is_guaranteed_or_more_than_the_starved_want(
    rows: list[tuple[int, int, int, bool]],
) -> None:
    total = max(sum(row[0] for row in rows), sum(row[1] for row in rows), 1)
    queues = [queue(f"q{i}", g, u, w, maximum=total, is_protected=keeps) for i, (g, u, w, keeps) in enumerate(rows)]

    back = given_back(*queues, total=total, allowed=total)

    for each in queues:
        assert back.get(each.path, 0) <= max(0, each.used["memory_mb"] - each.guaranteed["memory_mb"])
        assert not (each.is_protected and each.path in back)
    starved = sum(min(w, max(0, g - u)) for g, u, w, _ in rows)
    assert sum(back.values()) <= starved
