"""The arguments of an asynchronous column on their way from Spark, and the rows that are not called for.

One row is a tuple with one value per argument. Spark hands a column to Python without its type, so values are read by
their Arrow types: as in `pipeline.spark.async_io.spark_types`, a struct is a Row and a TIMESTAMP an aware datetime.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from pipeline.spark.async_io.arrow_values import Reader
from pipeline.spark.async_io.rows import read_values
from pipeline.spark.async_io.spark_types import reader_of
from pipeline.streaming.elements import UnreadableValue

Arguments = tuple[Any, ...]

_NULLS_AT_ONCE: Final = 10_000


def read_arguments(batches: Iterable[Any]) -> Iterator[list[Arguments | UnreadableValue]]:
    """The rows of each batch: `batches` has an Array for one argument, and a tuple of Arrays for several.

    A row with an argument that Python cannot hold is an UnreadableValue.
    """
    readers: list[Reader] = []
    for batch in batches:
        columns = batch if isinstance(batch, tuple) else (batch,)
        readers = readers or [reader_of(column.type) for column in columns]
        what = [f"the argument {place}" for place in range(1, len(columns) + 1)]
        yield read_values(columns, readers, what, tuple)


class NullsAside:
    """Keeps the rows with a null among their arguments from being called, and puts nulls in their places in the output.

    One thread reads the input and writes the output, so that the two sides of an object take turns.
    """

    def __init__(self) -> None:
        # In the order of the rows: how many were called and are not in the output yet, and how many nulls follow them.
        self._runs: deque[list[int]] = deque([[0, 0]])

    def without_nulls(self, batches: Iterable[list[Any]]) -> Iterator[list[Any]]:
        """The rows of each batch that are to be called."""
        runs = self._runs
        for rows in batches:
            called = []
            for row in rows:
                arguments: Any = row.value if type(row) is UnreadableValue else row
                if None in arguments:
                    runs[-1][1] += 1
                    continue
                if runs[-1][1]:
                    runs.append([0, 0])
                runs[-1][0] += 1
                called.append(row)
            yield called

    def with_nulls(self, arrays: Iterable[Any], kind: pa.DataType) -> Iterator[Any]:
        """The results, Arrays of the type `kind` with one value per row that was called, and the nulls between them."""
        for array in arrays:
            places = self._places(len(array))
            yield array if len(places) == len(array) else array.take(pa.array(places, pa.int64()))
        [[called, nulls]] = self._runs
        assert not called
        for start in range(0, nulls, _NULLS_AT_ONCE):
            yield pa.nulls(min(_NULLS_AT_ONCE, nulls - start), kind)

    def _places(self, results: int) -> list[int | None]:
        """The place of each output row among that many results; None for a null."""
        runs = self._runs
        places: list[int | None] = []
        taken = 0
        while True:
            run = runs[0]
            step = min(run[0], results - taken)
            places.extend(range(taken, taken + step))
            taken += step
            run[0] -= step
            if run[0]:
                return places
            if len(runs) == 1:
                # Further nulls may join this run, and follow with the next results, or at the end.
                return places
            places.extend([None] * run[1])
            runs.popleft()
