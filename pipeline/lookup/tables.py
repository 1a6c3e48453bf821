"""The protocols of a lookup table: a description that pickles, and a reader that holds the connections.

A table is made on the driver and pickled to the workers; it holds no connection. Its reader is made in a worker. All of
the reader's methods are called on the asyncio loop of the function's host, so it needs no locks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from pipeline.lookup.schema import Key, LookupSchema, Row


class LookupReader(Protocol):
    """Reads one table, by one schema. Host's loop only."""

    @property
    def parallelism(self) -> int | None:
        """The most concurrent lookups; keys beyond it wait and are joined. None: each lookup starts at once."""

    async def open(self) -> None:
        """Prepare to read. An error keeps the task from starting."""

    async def lookup(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row] | Exception]:
        """The rows, or the error, of each of the distinct `keys`; a key without rows may be left out.

        Several lookups may be under way at once. Cancelling one releases its connection.

        Raises:
            TableUnavailableError: no key could be looked up; worth a retry. LookupTableError: a retry does not help.
        """

    def scan(self) -> AsyncIterator[Sequence[tuple[Key, Row]]]:
        """All rows of the table with their keys, in chunks; rows with a null in the key may be left out."""

    async def close(self) -> None:
        """Close the connections; lookups under way fail. Called once, after the last lookup."""


class LookupTable(Protocol):
    """A table to look up in. It pickles, and its repr and errors never show a password."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def can_scan(self) -> bool:
        """Whether a reader can `scan`, which a full cache needs."""

    def read_schema(self, key_columns: Sequence[str]) -> LookupSchema:
        """Read the table's columns, with `key_columns` as the key. Any thread; blocks, on its own connection.

        Raises:
            LookupTableError: the table or a column does not exist, or a column's type is unknown.
            TableUnavailableError: the database cannot be reached.
        """

    def reader(self, schema: LookupSchema) -> LookupReader:
        """A reader for the schema that `read_schema` returned. Opens nothing yet."""
