"""Every test sees only its own dispatchers and sources of entities: others may have left theirs in a cycle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher.metrics.transition_ring import ring
from dispatcher.util.registry import Registry


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("dispatcher.view._views", Registry())
    monkeypatch.setattr("dispatcher.metrics.entities._sources", Registry())
    ring.resize(0)
    yield
    ring.resize(0)
