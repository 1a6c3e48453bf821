"""A desk, the service for clients at it, and its handler thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..inner import ClientRMService
from .desk import Desk, HandlerThread


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def clients(desk: Desk) -> ClientRMService:
    return ClientRMService(desk.context)


@pytest.fixture
def handler(desk: Desk) -> Iterator[HandlerThread]:
    with HandlerThread().of(desk) as handler:
        yield handler
