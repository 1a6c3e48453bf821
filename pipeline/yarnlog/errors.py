"""What can go wrong with a log as a whole; a single line never fails."""

from __future__ import annotations

from dispatcher.errors import DispatcherError


class YarnLogError(DispatcherError):
    """User or disk: a path that is no log, a file that cannot be read, a time zone that there is not."""
