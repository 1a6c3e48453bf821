"""A day of requests in miniature leaves nothing behind. `scripts/bench web.endurance` is the same with a million."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ....kit.commands import ROOT

pytestmark = pytest.mark.long

RUN = """
import json
from measure import Settings
from web.endurance import endurance
print(json.dumps(endurance(Settings(scale=0.02))))
"""
MOST_GROWTH_MIB = 5.0


@pytest.mark.slow
@pytest.mark.minutes
@pytest.mark.timeout(300)
def test_requests_and_streams_leave_no_memory_thread_or_socket_behind() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "scripts" / "bench.d")}

    done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, timeout=280)

    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["web-endurance.growth"] <= MOST_GROWTH_MIB, done.stdout
    assert figures["web-endurance.threads"] == 0, done.stdout
    assert figures["web-endurance.sockets"] == 0, done.stdout
