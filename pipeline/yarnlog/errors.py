"""Errors about a log as a whole; no single line raises one."""

from __future__ import annotations

from dispatcher.errors import DispatcherError


class YarnLogError(DispatcherError):
    """The user's or the disk's fault: a path without logs, an unreadable file, an unknown time zone."""
