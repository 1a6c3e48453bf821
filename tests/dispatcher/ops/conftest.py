"""Every test sees only its own dispatchers and sources of entities: others may have left theirs in a cycle."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakSet

import pytest

from dispatcher.metrics.transition_ring import ring


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("dispatcher.view._views", WeakSet())
    monkeypatch.setattr("dispatcher.metrics.entities._sources", WeakSet())
    ring.resize(0)
    yield
    ring.resize(0)
