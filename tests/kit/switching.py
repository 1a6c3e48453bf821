"""Threads that take turns much more often than usual."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def switching_often() -> Iterator[None]:
    """Whatever two threads may do at the same time, they are likelier to do so inside."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
