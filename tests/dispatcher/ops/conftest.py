"""Every test of the ops API sees only its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _alone(alone: None) -> None:
    pass
