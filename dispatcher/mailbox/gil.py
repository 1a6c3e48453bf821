"""The check that Python runs with the GIL, on which mailboxes and queues rely (invariants 3 and 4)."""

from __future__ import annotations

import sys

from dispatcher.errors import GilDisabledError


def require_gil(what: str) -> None:
    """Raise if threads run Python code at the same time; `what` names the object that would not survive that.

    Raises:
        GilDisabledError: this Python runs without the GIL.
    """
    is_enabled = getattr(sys, "_is_gil_enabled", None)  # Python 3.13 and later
    if is_enabled is not None and not is_enabled():
        raise GilDisabledError(what, sys.version.split()[0])
