"""Fixtures for the resource manager's machines."""

from __future__ import annotations

import pytest

from .builders import Workshop
from .cluster import Cluster


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()
