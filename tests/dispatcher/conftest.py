"""What the dispatcher's tests share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatcher import AsyncDispatcher
from dispatcher.metrics.transition_ring import ring
from dispatcher.util.registry import Registry

from ..kit import TIMEOUT_S, Gate, Work
from ..kit.coroutines import running_loop


@pytest.fixture(autouse=True, scope="module")
def no_waits_for_the_disk() -> Iterator[None]:
    """No test loses power, so none has to wait until the disk has what was written.

    `fstat` stands for both calls: it lets other threads run, and fails for a descriptor that is closed.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        patch.setattr(os, "fdatasync", os.fstat)
        yield


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs on a thread of its own."""
    with running_loop() as loop:
        yield loop


@pytest.fixture
def make() -> Iterator[Callable[..., AsyncDispatcher]]:
    """Makes started dispatchers, and stops them at the end."""
    made: list[AsyncDispatcher] = []

    def make(*args: Any, handler: Any = None, **kwargs: Any) -> AsyncDispatcher:
        dispatcher = AsyncDispatcher(*args, **kwargs)
        if handler is not None:
            dispatcher.register(Work, handler)
        made.append(dispatcher)
        dispatcher.start()
        return dispatcher

    yield make
    for dispatcher in made:
        dispatcher.stop()
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The test sees only its own dispatchers, services and entities: others may have left theirs in a cycle."""
    monkeypatch.setattr("dispatcher.view._views", Registry())
    monkeypatch.setattr("dispatcher.service._all_services", Registry())
    monkeypatch.setattr("dispatcher.metrics.entities._sources", Registry())
    ring.resize(0)
    yield
    ring.resize(0)
