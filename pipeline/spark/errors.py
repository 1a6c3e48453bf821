"""Errors of Async I/O inside Spark.

DispatcherError
  AsyncIOError            catch this for all of them
    UnsupportedTypeError  user: a column cannot be passed to Python (also a TypeError)
    ResultSchemaError     user's function: a result does not fit the schema (also a ValueError)
    AsyncTaskError        a task failed; defined in `pipeline.spark.failures`, which searches texts for its name
"""

from __future__ import annotations

from dispatcher.errors import DispatcherError


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
