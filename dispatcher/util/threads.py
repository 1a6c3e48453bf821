"""What `threading` leaves out."""

from __future__ import annotations

import threading
from typing import Any


def is_owned(lock: threading.Condition | threading.RLock) -> bool:
    """Whether this thread holds the lock."""
    owner: Any = lock
    return bool(owner._is_owned())  # as threading.Condition does
