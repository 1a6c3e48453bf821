"""pytest fixtures for programs built on a dispatcher. pytest finds them where this package is installed.

Every run of pytest there imports this module, so it imports the dispatcher only for a test that asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dispatcher.testing import DrainDispatcher, InlineDispatcher, ManualClock


@pytest.fixture
def drain_dispatcher() -> Iterator[DrainDispatcher]:
    """A started dispatcher whose waits fail the test rather than hang it; stopped at the end."""
    from dispatcher.testing import DrainDispatcher

    with DrainDispatcher() as dispatcher:
        yield dispatcher


@pytest.fixture
def inline_dispatcher(manual_clock: ManualClock) -> Iterator[InlineDispatcher]:
    """A dispatcher that handles each event before `handle` returns, with the clock of the fixture `manual_clock`."""
    from dispatcher.testing import InlineDispatcher

    dispatcher = InlineDispatcher(clock=manual_clock)
    yield dispatcher
    dispatcher.stop()


@pytest.fixture
def manual_clock() -> ManualClock:
    """Time that stands still until the test advances it."""
    from dispatcher.testing import ManualClock

    return ManualClock()
