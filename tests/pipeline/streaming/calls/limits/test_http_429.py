"""Rate limits against a real HTTP service that answers 429, by the service's own count of calls."""

from __future__ import annotations

import pytest

from dispatcher.aio import RateLimit
from pipeline.streaming import unordered_wait

from .....kit import TIMEOUT_S
from ....limited_service import LimitedService, client

pytestmark = pytest.mark.long


def test_calls_resume_gently_after_a_plain_pause() -> None:
    """100 calls started together at the end of the pause; now the rate grows from 20 per second."""
    with LimitedService(lambda at_s: at_s > 0.5) as service:
        found = list(unordered_wait(range(150), client(service.port), timeout=TIMEOUT_S))

    assert len(found) == 150
    resumed_s = min(service.accepted_s)
    assert resumed_s >= 1
    assert sum(1 for at_s in service.accepted_s if at_s < resumed_s + 0.1) <= 50


def test_a_limit_of_the_job_is_the_process_s_outside_spark() -> None:
    with LimitedService() as service:
        list(unordered_wait(range(30), client(service.port), timeout=TIMEOUT_S, rate_limit=RateLimit(20, burst=1)))

    assert service.took_s() >= 1  # 1.45 s, but the first call may come late
