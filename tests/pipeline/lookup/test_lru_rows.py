"""The partial cache, compared with a model that searches all its keys on every call."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.lookup import FullCache, LookupMetrics, LookupTableError, PartialCache
from pipeline.lookup.cache import LruRows, NoCache, cache_of

from .fakes import LookupKey, LookupRow


class ShownRows(LruRows):
    """Exposes its content."""

    def rows(self) -> int:
        return self._rows

    def keys(self) -> list[LookupKey]:
        """From the least to the most recently used, including expired keys not evicted yet."""
        return list(self._entries)


@dataclass
class Kept:
    rows: list[LookupRow]
    written_s: float
    accessed_s: float
    used: int

    @property
    def weight(self) -> int:
        return max(1, len(self.rows))


class Model:
    """A partial cache that searches all its keys on every call."""

    def __init__(self, options: PartialCache) -> None:
        self.options = options
        self.kept: dict[int, Kept] = {}
        self.uses = 0

    def expire(self, now_s: float) -> None:
        access, write = self.options.expire_after_access_s, self.options.expire_after_write_s
        for key, kept in list(self.kept.items()):
            if (access is not None and now_s - kept.accessed_s >= access) or (
                write is not None and now_s - kept.written_s >= write
            ):
                del self.kept[key]

    def get(self, key: int, now_s: float) -> list[LookupRow] | None:
        self.expire(now_s)
        kept = self.kept.get(key)
        if kept is None:
            return None
        self.uses += 1
        kept.accessed_s, kept.used = now_s, self.uses
        return kept.rows

    def put(self, key: int, rows: list[LookupRow], now_s: float) -> None:
        self.expire(now_s)
        self.kept.pop(key, None)
        self.uses += 1
        kept = Kept(rows, now_s, now_s, self.uses)
        most = self.options.max_rows
        if (not rows and not self.options.cache_missing_key) or (most is not None and kept.weight > most):
            return
        self.kept[key] = kept
        while most is not None and sum(each.weight for each in self.kept.values()) > most:
            del self.kept[min(self.kept, key=lambda each: self.kept[each].used)]


BOUND = st.none() | st.integers(1, 5)
OPTIONS = st.builds(
    lambda rows, access, write, missing: PartialCache(
        max_rows=rows if rows or access or write else 3,
        expire_after_access_s=access,
        expire_after_write_s=write,
        cache_missing_key=missing,
    ),
    BOUND,
    BOUND,
    BOUND,
    st.booleans(),
)
STEPS = st.lists(
    st.tuples(st.just("get"), st.integers(0, 5))
    | st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 4))
    | st.tuples(st.just("wait"), st.integers(1, 3)),
    max_size=60,
)


@given(options=OPTIONS, steps=STEPS)
def test_every_answer_equals_the_model(options: PartialCache, steps: list[tuple[str, int, int]]) -> None:
    metrics = LookupMetrics()
    cache, model, now_s = ShownRows(options, metrics), Model(options), 0.0

    for version, (what, *numbers) in enumerate(steps):
        if what == "wait":
            now_s += numbers[0]
        elif what == "get":
            assert cache.get((numbers[0],), now_s) == model.get(numbers[0], now_s)
        else:
            rows: list[LookupRow] = [(version, at) for at in range(numbers[1])]
            cache.put((numbers[0],), rows, now_s)
            model.put(numbers[0], rows, now_s)
        model.expire(now_s)
        assert options.max_rows is None or cache.rows() <= options.max_rows
        if what != "wait":
            assert cache.keys() == [(key,) for key in sorted(model.kept, key=lambda each: model.kept[each].used)]
            assert metrics.cached_rows == cache.rows() == sum(kept.weight for kept in model.kept.values())


def test_the_next_call_evicts_all_expired_keys() -> None:
    metrics = LookupMetrics()
    cache = ShownRows(PartialCache(expire_after_write_s=10), metrics)
    for number in range(100):
        cache.put((number,), [("x",)], 0.0)

    assert cache.get((100,), 10.0) is None

    assert (cache.keys(), metrics.cached_rows, metrics.evictions) == ([], 0, 100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "without a bound"),
        ({"max_rows": 0}, "max_rows is 0"),
        ({"expire_after_access_s": 0}, "expire_after_access_s is 0"),
        ({"expire_after_write_s": -1}, "expire_after_write_s is -1"),
    ],
)
def test_an_impossible_partial_cache_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(LookupTableError, match=message):
        PartialCache(**arguments)  # type: ignore[arg-type]


def test_an_impossible_full_cache_is_refused() -> None:
    with pytest.raises(LookupTableError, match="reload_interval_s is 0"):
        FullCache(reload_interval_s=0)
    with pytest.raises(LookupTableError, match="schedule_mode is 'hourly'"):
        FullCache(schedule_mode="hourly")  # type: ignore[arg-type]


def test_a_cache_may_be_named() -> None:
    assert cache_of(None) == cache_of("none") == cache_of("NONE") == NoCache()
    assert cache_of("partial") == PartialCache(max_rows=10_000)
    assert cache_of("full") == FullCache()
    assert cache_of(PartialCache(max_rows=1)) == PartialCache(max_rows=1)
    with pytest.raises(LookupTableError, match="cache is 'lru'"):
        cache_of("lru")
