"""Errors of Spark's executors, and of Async I/O inside Spark.

DispatcherError
  ExecutorError             administrator: executors lack a Python, a package, or a path that they share with the driver
  AsyncIOError            catch this for all of them
    UnsupportedTypeError  user: a column cannot be passed to Python (also a TypeError)
    InputValueError       user's data: Python cannot hold a value of the input (also a ValueError)
    ResultSchemaError     user's function: a result does not fit the schema (also a ValueError)
    UnknownColumnError    user's function: a row has no column of the name (also an AttributeError and a KeyError)
    ResultTypeError       user: no schema can be taken from a return type (also a TypeError)
    AsyncTaskError        a task failed; defined in `pipeline.spark.failures`, which searches texts for its name
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from typing import Final

from dispatcher.errors import DispatcherError
from dispatcher.util.foreign import describe

_VERSION: Final = f"{sys.version_info[0]}.{sys.version_info[1]}"
PYTHON_ADVICE: Final = (
    f"Set PYSPARK_PYTHON to the path of a Python {_VERSION}, on all executors, that has central-dispatcher[spark]."
)
PACKAGE_ADVICE: Final = (
    "Run there: pip install 'central-dispatcher[spark]'. Or set PYSPARK_PYTHON to the path of a Python, on all "
    "executors, that has it."
)


class ExecutorError(DispatcherError):
    """Raised when executors lack a suitable Python, a package or a shared path. The message is one line."""


class AsyncIOError(DispatcherError):
    """Base class of the errors of Async I/O inside Spark."""


class UnsupportedTypeError(AsyncIOError, TypeError):
    """A column has a type that Python or Arrow cannot represent."""

    def __init__(self, what: str, column: str, data_type: str) -> None:
        self.what = what
        self.column = column
        self.data_type = data_type
        super().__init__(what, column, data_type)

    def __str__(self) -> str:
        return (
            f"{self.what}: the column {self.column} has the type {self.data_type}, which cannot be passed to Python. "
            "Cast it first, for example to a string or a number, or leave it out."
        )


class InputValueError(AsyncIOError, ValueError):
    """A row has a value that Python cannot hold, such as a date of the year 10000. Its call is not made.

    `what`: the value and its column. `cause`: what Python said.
    """

    def __init__(self, what: str, cause: Exception) -> None:
        self.what = what
        self.cause = cause
        super().__init__(what, cause)

    def __str__(self) -> str:
        return (
            f"{self.what}, which Python cannot hold ({describe(self.cause)}). Cast the column, for example to a "
            "string, or a string to binary, or filter such rows."
        )


class ResultSchemaError(AsyncIOError, ValueError):
    """A result of the user's function does not fit the schema. `column` is the path to the value, or "" for the row."""

    wants_retry = False
    """Whether `retry_on_result` asked for another attempt."""

    def __init__(self, column: str, reason: str) -> None:
        self.column = column
        self.reason = reason
        super().__init__(column, reason)

    def __str__(self) -> str:
        where = f"the column {self.column} of the result" if self.column else "the result"
        return f"{where} does not fit the schema: {self.reason}"


class UnknownColumnError(AsyncIOError, AttributeError, KeyError, ValueError):
    """A function asked a row for a column that it does not have, as `row.idd` or `row["idd"]`.

    It is also the errors that an object and a dict raise, and the ValueError of PySpark's own rows.
    """

    def __init__(self, column: str, columns: Sequence[str]) -> None:
        self.column = column
        self.columns: tuple[str, ...] = tuple(columns)
        super().__init__(column, self.columns)

    def __str__(self) -> str:
        similar = difflib.get_close_matches(self.column, self.columns, 1)
        hint = f" Did you mean {similar[0]!r}?" if similar else ""
        return f"the row has no column {self.column!r}; its columns are {', '.join(self.columns)}.{hint}"


class ResultTypeError(AsyncIOError, TypeError):
    """No schema can be taken from a type. `name`: the function's or the type's; `path`: to the field, or ""."""

    def __init__(self, name: str, path: str, reason: str) -> None:
        self.name = name
        self.path = path
        self.reason = reason
        super().__init__(name, path, reason)

    def __str__(self) -> str:
        where = f"{self.name}, field {self.path}" if self.path else self.name
        return f"{where}: no schema can be taken from the type: {self.reason}"
