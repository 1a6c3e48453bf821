"""Items whose keys change, or that are stopped, while they are in a heap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statemachines.heap import LazyHeap


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from(["set", "set", "grow", "discard"]))))
def test_first_is_the_least_whatever_became_of_the_keys(steps: list[tuple[int, int, str]]) -> None:
    """The heap notices by itself that a key grew."""
    keys: dict[int, tuple[int, int]] = {}
    heap: LazyHeap[int] = LazyHeap(keys.__getitem__)

    for item, key, step in steps:
        if step == "set":
            keys[item] = (key, item)
            heap.add(item)
        elif step == "grow" and item in keys:
            keys[item] = max(keys[item], (key, item))
        elif step == "discard":
            heap.discard(item)
            keys.pop(item, None)
        assert heap.first() == min(keys, key=keys.__getitem__, default=None)
        assert (len(heap), set(heap)) == (len(keys), set(keys))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans())))
def test_superseded_entries_are_dropped_in_proportion(steps: list[tuple[int, int, bool]]) -> None:
    keys: dict[int, int] = {}
    heap: LazyHeap[int] = LazyHeap(keys.__getitem__)

    for item, key, comes in steps * 20:
        keys[item] = key
        if comes:
            heap.add(item)
        else:
            heap.discard(item)

    assert len(heap._entries) <= 2 * len(heap) + 64
