"""What tests of streams share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.streaming import CheckpointStorage

from .calls.harness import until


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(tmp_path)


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """All threads that the test started end."""
    before = set(threading.enumerate())
    yield
    until(lambda: set(threading.enumerate()) <= before, "the end of all threads")
