"""The lookup join as an AsyncFunction: for each input row, one output row per match, with the table's columns added."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from pipeline.lookup.answers import LookupAnswer, Packing, RowsAsColumns
from pipeline.lookup.cache import FullCache, LookupCache, TableLookups, cache_of, lookups_of
from pipeline.lookup.errors import LookupTableError
from pipeline.lookup.keys import KeyForm
from pipeline.lookup.metrics import LookupMetrics
from pipeline.lookup.queries import LookupClock, MonotonicClock, Queries, QueryRetries
from pipeline.lookup.schema import Column, LookupKey, LookupRow, LookupSchema, LookupTable, check_distinct
from pipeline.streaming.calls.functions import AsyncFunction
from pipeline.streaming.number_checks import require_number

log: logging.Logger = logging.getLogger(__name__)

On: TypeAlias = str | Sequence[str] | Mapping[str, str]
How: TypeAlias = Literal["left", "inner"]


class LookupFunction(AsyncFunction[Any, Any]):
    """Joins rows with a table's rows. Use it as the function of an asynchronous operator, preferably with batches.

    `on`: the key: a column's name, several, or {name in the input: name in the table} where they differ.
    `how`: "left" keeps a row without a match, with nulls; "inner" drops it. A null in a key matches nothing, not even
    a null. Each row of the table with that key gives one result, in the table's order.
    `input_columns`: the column names of input rows that are tuples; results are then tuples that end with the table's
    columns. None: input rows are mappings, and results are dicts.
    `suffix` is appended to a column of the table whose name the input also has. Names are compared without case.
    `cache`: "none", "partial", "full", or a NoCache, PartialCache or FullCache.
    `max_retries`: how often a query that raises TableUnavailableError is retried, first after `retry_delay_s`, then
    after twice that, and so on. The retries cover the whole batch and count against the operator's timeout, also at the
    end of the input. All other errors are left to the operator's retry strategy.

    The constructor reads the table's columns, which blocks, so that mistakes surface here and not in a worker. The
    function pickles. `open` makes the connections, the cache and `metrics` of each process; they belong to the host's
    loop thread.

    Raises:
        LookupTableError: an argument, a column or a type is wrong. TableUnavailableError: the table cannot be reached.
    """

    def __init__(
        self,
        table: LookupTable,
        on: On,
        *,
        how: How = "left",
        cache: LookupCache | str | None = None,
        input_columns: Sequence[str] | None = None,
        suffix: str | None = None,
        max_retries: int = 3,
        retry_delay_s: float = 0.5,
        clock: LookupClock | None = None,
    ) -> None:
        require_number("max_retries", max_retries, least=0, whole=True, error=LookupTableError)
        require_number("retry_delay_s", retry_delay_s, least=0, error=LookupTableError)
        if how not in ("left", "inner"):
            raise LookupTableError(f'how is {how!r}; a lookup join is "left" or "inner".')
        input_keys, table_keys = key_pairs(on)
        self.name: str = f"lookup in {table.name}"
        self._table = table
        self._cache = cache_of(cache)
        if isinstance(self._cache, FullCache) and not table.can_scan:
            raise LookupTableError(f"{table.name} cannot be scanned, which a full cache requires. Use PartialCache().")
        self._retries = QueryRetries(max_retries, retry_delay_s)
        self.input_keys = input_keys
        """The input's key columns, in the order of `schema.key`."""
        self._input_columns = None if input_columns is None else tuple(input_columns)
        self.schema: LookupSchema = table.read_schema(table_keys)
        """The columns that are read from the table."""
        self._key_form = KeyForm(self.schema.key)
        self._output_names = _output_names(table.name, self.schema, self._input_columns or input_keys, suffix)
        self._key_places = _key_places(table.name, input_keys, self._input_columns)
        nulls: LookupRow = (None,) * len(self._output_names)
        self.how = how
        self._no_match: tuple[LookupRow, ...] = (nulls,) if how == "left" else ()
        self._clock: LookupClock = clock or MonotonicClock()
        self._lookups: TableLookups | None = None  # loop thread only; None until opened
        self.metrics: LookupMetrics = LookupMetrics()
        self._earlier_retries = 0  # before the last `open`; loop thread writes, any reads

    @property
    def output_columns(self) -> tuple[Column, ...]:
        """The columns that results have after the input's columns, under their names in the output."""
        return tuple(
            Column(name, column.type, column.native)
            for name, column in zip(self._output_names, self.schema.values, strict=True)
        )

    async def open(self, packing: Packing | None = None) -> None:
        """`packing`: how a full cache stores columns, for `answer`; then `matches` cannot be called."""
        self._earlier_retries, self.metrics = self.own_retries(), LookupMetrics()
        width = len(self.schema.values)
        reader: Any = self._table.reader(self.schema)
        if not hasattr(reader, "lookup_columns"):
            reader = RowsAsColumns(reader, width)
        queries = Queries(reader, self._retries, self.metrics, self._clock)
        lookups = lookups_of(queries, self._cache, width, packing)
        await lookups.open()
        self._lookups = lookups

    async def close(self) -> None:
        lookups, self._lookups = self._lookups, None
        if lookups is not None:
            log.info("%s: %s", self.name, self.metrics)
            await lookups.close()

    def own_retries(self) -> int:
        """How many queries were repeated because the table was unavailable. Any thread."""
        return self._earlier_retries + self.metrics.retries

    async def async_invoke(self, value: Any) -> list[Any]:
        (results,) = await self.async_invoke_batch([value])
        if isinstance(results, Exception):
            raise results
        return results

    async def async_invoke_batch(self, values: Sequence[Any]) -> list[list[Any] | Exception]:
        """For each of `values`, the list of joined rows or the error of its lookup."""
        matches = await self.matches([[value[place] for value in values] for place in self._key_places])
        results: list[list[Any] | Exception] = []
        for value, rows in zip(values, matches, strict=True):
            try:
                results.append(rows if isinstance(rows, Exception) else self._join(value, rows))
            except LookupTableError as error:
                results.append(error)
        return results

    async def matches(self, columns: Sequence[Sequence[Any]]) -> list[Sequence[LookupRow] | Exception]:
        """For each row of the key's columns, the table's rows, or the error of the lookup.

        Without a match it is a row of nulls if the join is "left", else nothing.
        """
        assert self._lookups is not None, "the host opens its function before it calls it"
        wanted: list[Any] = self._key_form.of_columns(columns)
        counts = Counter([key for key in wanted if type(key) is tuple])
        answer = await self._lookups.answer(list(counts), list(counts.values()))
        found = dict(zip(counts, answer.by_place(len(counts)), strict=True))
        return [(found[key] if type(key) is tuple else key) or self._no_match for key in wanted]

    async def answer(self, columns: Sequence[Sequence[Any]], counts: Sequence[int]) -> LookupAnswer:
        """The table's rows for the rows of the key's columns, by their places, and the errors of lookups.

        `counts`: how many lookups each row stands for.
        """
        assert self._lookups is not None, "the host opens its function before it calls it"
        wanted: Sequence[Any] = self._key_form.of_columns(columns)
        kinds = set(map(type, wanted))
        if kinds <= {tuple} and len(set(wanted)) == len(wanted):
            return await self._lookups.answer(wanted, counts)
        of_keys: dict[LookupKey, int] = {}
        for key, count in zip(wanted, counts, strict=True):
            if type(key) is tuple:
                of_keys[key] = of_keys.get(key, 0) + count
        answer = await self._lookups.answer(list(of_keys), list(of_keys.values()))
        places = {key: place for place, key in enumerate(of_keys)}
        answer = answer.of_places([places.get(key, -1) if type(key) is tuple else -1 for key in wanted])
        errors = {number: error for number, error in enumerate(wanted) if isinstance(error, Exception)}
        return replace(answer, errors={**answer.errors, **errors})

    def _join(self, value: Any, rows: Sequence[LookupRow]) -> list[Any]:
        if self._input_columns is not None:
            cells = tuple(value)
            return [cells + row for row in rows]
        names = self._output_names
        if not value.keys().isdisjoint(names):
            raise LookupTableError(
                f"{self._table.name}: the input {value!r} has a column of the same name. Give a suffix, or choose the "
                "table's columns with columns=[...]."
            )
        return [{**value, **dict(zip(names, row, strict=True))} for row in rows]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._table!r} on {', '.join(self.input_keys)}>"


def key_pairs(on: On) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the key columns in the input, and their names in the table."""
    if isinstance(on, str):
        pairs = [(on, on)]
    elif isinstance(on, Mapping):
        pairs = list(on.items())
    else:
        pairs = [(name, name) for name in on]
    if not pairs or not all(isinstance(name, str) for pair in pairs for name in pair):
        raise LookupTableError(
            f"on is {on!r}; give the key as a column name, a list of names, or {{input column: table column}}."
        )
    check_distinct((name for name, _ in pairs), "on")
    return tuple(name for name, _ in pairs), tuple(name for _, name in pairs)


def _key_places(table: str, keys: tuple[str, ...], columns: tuple[str, ...] | None) -> Sequence[int | str]:
    """Where an input row has the key's values: the names in a mapping, or the positions in a tuple."""
    if columns is None:
        return keys
    for name in keys:
        if name not in columns:
            raise LookupTableError(f"{table}: the input has no column {name!r}; it has {', '.join(columns)}.")
    return [columns.index(name) for name in keys]


def _output_names(table: str, schema: LookupSchema, taken: Sequence[str], suffix: str | None) -> tuple[str, ...]:
    used = {name.lower() for name in taken}
    names = []
    for column in schema.values:
        name = column.name
        if name.lower() in used and suffix:
            name += suffix
        if name.lower() in used:
            raise LookupTableError(
                f"{table}: its column {column.name!r} would duplicate {name!r} in the result. Give a suffix, as in "
                f"suffix=\"_right\", choose the table's columns with columns=[...], or rename the input's."
            )
        used.add(name.lower())
        names.append(name)
    return tuple(names)
