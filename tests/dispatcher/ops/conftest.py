"""Every test of the ops API sees only its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from dispatcher.ops import ops_app

from .client import Client, Hanging, hanging
from .journaled import Journaled, journaled_by


@pytest.fixture(autouse=True)
def _alone(alone: None) -> None:
    pass


@pytest.fixture
def client() -> Client:
    return Client(ops_app(name="daemon"))


@pytest.fixture
def central() -> Iterator[Hanging]:
    with hanging("central") as found:
        yield found


@pytest.fixture
def journaled(tmp_path: Path) -> Iterator[Journaled]:
    with journaled_by(tmp_path / "journal") as found:
        yield found


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of a journal has three seconds, and each look at the clock takes one."""
    ticks = itertools.count()
    monkeypatch.setattr("dispatcher.ops.journals.ScanDeadline.__init__.__defaults__", (3, lambda: next(ticks)))


@pytest.fixture
def kept() -> list[object]:
    """Keeps alive until its end what a test makes: the process knows dispatchers and sources by weak references."""
    return []
