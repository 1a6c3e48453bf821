from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pipeline.spark.async_io.column.arguments import NullsAside
from pipeline.spark.async_io.column.calls import column_function
from pipeline.streaming import AsyncFunction

from ...streaming.calls.harness import make_host


@pytest.mark.parametrize("seed", range(20))
def test_nulls_return_to_their_places(seed: int) -> None:
    randomly = random.Random(seed)
    share = randomly.choice([0.0, 0.1, 0.5, 0.9, 1.0])
    rows = [(None if randomly.random() < share else place,) for place in range(300)]
    batches = [rows[start : start + 30] for start in range(0, len(rows), 30)]
    nulls = NullsAside()

    def results() -> Iterator[Any]:
        """In order, a few at a time, some of them only when later batches have been read."""
        waiting: list[int] = []
        for batch in nulls.without_nulls(batches):
            waiting += [row[0] for row in batch]
            size = randomly.randrange(0, 40)
            if waiting[:size]:
                yield pa.array(waiting[:size], pa.int64())
                del waiting[:size]
        if waiting:
            yield pa.array(waiting, pa.int64())

    found = [value for array in nulls.with_nulls(results(), pa.int64()) for value in array.to_pylist()]

    assert found == [row[0] for row in rows]


def test_many_nulls_come_in_many_arrays() -> None:
    nulls = NullsAside()

    def results() -> Iterator[Any]:
        assert list(nulls.without_nulls([[(None,)] * 25_000])) == [[]]
        yield from ()

    assert [len(array) for array in nulls.with_nulls(results(), pa.string())] == [10_000, 10_000, 5_000]


def test_repetitions_that_the_function_makes_itself_are_counted() -> None:
    """A column's function lost them."""

    class Repeats(AsyncFunction[int, int]):
        repeated = 0

        async def async_invoke(self, value: int) -> int:
            return value

        def own_retries(self) -> int:
            return self.repeated

    function = Repeats()
    host = make_host(column_function(function, captures=False))
    function.repeated = 3

    assert host.take_own_retries() == 3
