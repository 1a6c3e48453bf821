"""pytest fixtures for programs built on a dispatcher. pytest finds them where this package is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatcher.testing import DrainDispatcher, InlineDispatcher, ManualClock


@pytest.fixture
def drain_dispatcher() -> Iterator[DrainDispatcher]:
    """A started dispatcher whose waits fail the test rather than hang it; stopped at the end."""
    with DrainDispatcher() as dispatcher:
        yield dispatcher


@pytest.fixture
def inline_dispatcher(manual_clock: ManualClock) -> Iterator[InlineDispatcher]:
    """A dispatcher that handles each event before `handle` returns, with the clock of the fixture `manual_clock`."""
    dispatcher = InlineDispatcher(clock=manual_clock)
    yield dispatcher
    dispatcher.stop()


@pytest.fixture
def manual_clock() -> ManualClock:
    """Time that stands still until the test advances it."""
    return ManualClock()
