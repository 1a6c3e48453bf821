"""What a table is that can be looked up in: a description that travels, and a reader that holds the connections.

A table is made on the driver and pickled to the workers; it holds no connection. Its reader is made in a worker and
lives on the asyncio loop of the host that runs the calls: all its methods are called there, so it needs no locks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from pipeline.lookup.schema import Key, LookupSchema, Row


class LookupReader(Protocol):
    """The live side of a table, for one schema. On the host's loop only."""

    @property
    def parallelism(self) -> int | None:
        """Lookups that it makes at the same time; keys of further ones wait, and go together in few.

        None: it takes each as it comes.
        """

    async def open(self) -> None:
        """Get ready to read. What it raises keeps the task from starting."""

    async def lookup(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row] | Exception]:
        """The rows of each of the distinct `keys`; a key without rows may be missing, one that failed has its error.

        Several lookups may be under way at once. Cancelling one gives its connection free.

        Raises:
            TableUnavailableError: for all of the keys, and worth a retry.
            LookupTableError: for all of the keys.
        """

    def scan(self) -> AsyncIterator[Sequence[tuple[Key, Row]]]:
        """All rows of the table with their keys, in pieces; those with a null in their key may be left out."""

    async def close(self) -> None:
        """Close the connections; lookups under way fail. Called once, after the last lookup."""


class LookupTable(Protocol):
    """A table to look up in. It pickles, and its repr and errors never show a password."""

    @property
    def name(self) -> str:
        """How messages call it."""

    @property
    def can_scan(self) -> bool:
        """Whether a reader can `scan`, which a full cache needs."""

    def read_schema(self, key_columns: Sequence[str]) -> LookupSchema:
        """Ask the table for its columns, with these as the key. Any thread; blocks, on a connection of its own.

        Raises:
            LookupTableError: there is no such table or column, or a column's type cannot be told.
            TableUnavailableError: the database cannot be reached.
        """

    def reader(self, schema: LookupSchema) -> LookupReader:
        """A reader for what `read_schema` returned. Opens nothing yet."""
