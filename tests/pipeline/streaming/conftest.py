"""What tests of streams share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.streaming import CheckpointStorage

from ... import kit


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(tmp_path)


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """All threads that the test started end."""
    with kit.no_thread_is_left():
        yield
