"""Errors of lookups. None holds a password; errors of a user's own function pass unchanged.

DispatcherError
  LookupTableError          user: a table, a column, a type, an option or a key is wrong; one line
    TableUnavailableError   service: the database cannot be reached or does not answer; worth a retry
"""

from __future__ import annotations

from dispatcher.errors import DispatcherError


class LookupTableError(DispatcherError):
    """Raised when a table, a column, a type, an option or a key is invalid. A retry doesn't help."""


class TableUnavailableError(LookupTableError):
    """Raised when the database can't be reached, went away during a query, or didn't answer in time. You can retry."""
