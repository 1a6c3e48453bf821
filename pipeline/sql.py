"""The differences between the SQL, the parameters and the errors of SQLite and PostgreSQL.

A statement is text with marks for its parameters. If it takes rows of parameters, it begins with them as the table
`given`; so the same statement serves any number of rows. What each database does in its own way is not here:
connections, locks, and the schema of a user's table. psycopg is imported only after it has raised. Any thread.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dispatcher.util.sqlite import Fault
from pipeline import postgres

NO_SECRETS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dialect:
    """One database's SQL."""

    mark: str
    """Stands for a parameter."""
    quoted: Callable[..., str]
    """The name of a column, or of a table with its schema before it, in a statement that has parameters."""
    octets: str
    """The type name for bytes."""
    whole: str
    """The type name for small whole numbers."""
    real: str
    """The type name for doubles."""
    given: Callable[[Mapping[str, str], int], str]
    """Makes `WITH given (..., number) AS (...)` from the number of rows and the columns' names, each with PostgreSQL's
    type for an array of its values. The column `number` counts the rows from 1."""
    is_given: Callable[[int], str]
    """Makes a condition for the right of a column's name: its value is one of this many parameters."""
    parameters: Callable[[Sequence[Sequence[Any]]], list[Any]]
    """Arranges rows of values as the parameters that `given` or `is_given` needs."""
    driving_join: str
    """The join of `given` with a table that makes the database search the table's index for each given row."""
    returning: str
    """The end of a statement that returns the digests of the rows it changed; empty if the database cannot do that."""
    error: Callable[[], type[Exception]]
    """The class of all of the driver's errors."""
    is_passing: Callable[[Any], bool]
    """Whether a retry may succeed."""
    is_of_values: Callable[[Any], bool]
    """Whether the values that a statement met, in its parameters or in rows, may be at fault."""
    message: Callable[[Any, Mapping[str, Any]], str]
    """An error's text in one line, without the secrets in a connection's settings."""
    shows_cause: bool
    """Whether the driver's own error holds no secrets, and so may be the cause of ours."""

    @contextlib.contextmanager
    def translated(
        self,
        where: str,
        passing: type[Exception],
        lasting: type[Exception],
        settings: Mapping[str, Any] = NO_SECRETS,
        of_values: type[Exception] | None = None,
    ) -> Iterator[None]:
        """Raise `passing` or `lasting` in place of the driver's errors. `where`: the beginning of the message.

        `of_values`: in place of `lasting` if the values that a statement met may be at fault.
        """
        try:
            yield
        except self.error() as error:
            kind = passing if self.is_passing(error) else lasting
            if of_values is not None and kind is lasting and self.is_of_values(error):
                kind = of_values
            raise kind(f"{where}: {self.message(error, settings)}") from (error if self.shows_cause else None)


def _quoted(*parts: str) -> str:
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


def _quoted_for_psycopg(*parts: str) -> str:
    return _quoted(*parts).replace("%", "%%")  # psycopg reads every % as a placeholder


def _given_values(columns: Mapping[str, str], rows: int) -> str:
    marks = "?, " * len(columns)
    values = ", ".join(f"({marks}{number})" for number in range(1, rows + 1))
    return f"WITH given ({', '.join(columns)}, number) AS (VALUES {values})"


def _given_arrays(columns: Mapping[str, str], rows: int) -> str:
    arrays = ", ".join(f"%s::{array}" for array in columns.values())
    return f"WITH given ({', '.join(columns)}, number) AS (SELECT * FROM unnest({arrays}) WITH ORDINALITY)"


def _row_by_row(rows: Iterable[Sequence[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(rows))


def _column_by_column(rows: Iterable[Sequence[Any]]) -> list[Any]:
    return [list(values) for values in zip(*rows, strict=True)]


def _psycopg_error() -> type[Exception]:
    import psycopg

    return psycopg.Error


SQLITE: Final = Dialect(
    mark="?",
    quoted=_quoted,
    octets="BLOB",
    whole="INTEGER",
    real="REAL",
    given=_given_values,
    is_given=lambda number: f"IN ({', '.join('?' * number)})",
    parameters=_row_by_row,
    driving_join="CROSS JOIN",
    returning="",
    error=lambda: sqlite3.Error,
    is_passing=lambda error: Fault.of(error) is Fault.LOCKED,
    is_of_values=lambda error: Fault.of(error) is Fault.STATEMENT,
    message=lambda error, _: str(error),
    shows_cause=True,
)
POSTGRESQL: Final = Dialect(
    mark="%s",
    quoted=_quoted_for_psycopg,
    octets="bytea",
    whole="smallint",
    real="double precision",
    given=_given_arrays,
    is_given=lambda _: "= ANY(%s)",
    parameters=_column_by_column,
    driving_join="JOIN",
    returning=" RETURNING kept.digest",
    error=_psycopg_error,
    is_passing=postgres.is_passing,
    is_of_values=postgres.is_of_values,
    message=postgres.safe_message,
    shows_cause=False,
)
