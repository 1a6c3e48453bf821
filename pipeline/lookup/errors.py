"""Errors of lookups. None holds a password; errors of a user's own function pass unchanged.

DispatcherError
  LookupTableError          user: a table, a column, a type, an option or a key is wrong; one line
    TableUnavailableError   service: the database cannot be reached or does not answer; worth a retry
    FailedQueryError        data: the database cannot answer a query, maybe because of some of its keys only
"""

from __future__ import annotations

from dispatcher.errors import DispatcherError


class LookupTableError(DispatcherError):
    """Raised when a table, a column, a type, an option or a key is invalid. A retry doesn't help."""


class TableUnavailableError(LookupTableError):
    """Raised when the database can't be reached, went away during a query, or didn't answer in time. You can retry."""


class FailedQueryError(LookupTableError):
    """Raised when the database fails a query for a value that it meets, as where a view divides by zero.

    A query for fewer keys may succeed.
    """
