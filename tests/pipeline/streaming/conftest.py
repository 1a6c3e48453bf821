"""What tests of stream tasks share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.streaming.task.checkpoints import CheckpointStorage


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(tmp_path)
