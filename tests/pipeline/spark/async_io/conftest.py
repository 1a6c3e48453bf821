"""What tests of asynchronous calls on Spark share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark import cloudpickle


@pytest.fixture(scope="module", autouse=True)
def _classes_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers can import neither a test's module nor those that it lists as SHIPPED."""
    modules = [request.module, *getattr(request.module, "SHIPPED", ())]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
