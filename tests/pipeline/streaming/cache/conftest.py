"""What tests of caches share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ...counting_server import CountingServer


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with CountingServer() as running:
        yield running
