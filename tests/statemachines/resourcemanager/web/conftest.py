"""Without what these tests need besides the core, there is nothing to collect here."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if all(map(find_spec, ("httpx", "jinja2", "starlette", "uvicorn"))) else ["*.py"]


@pytest.fixture
def patient_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to a kill waits for the end, which on a busy machine comes later than in a tenth of a second."""
    monkeypatch.setattr("statemachines.resourcemanager.web.rest.writing.changes.KILL_WAIT_S", 60.0)


@pytest.fixture
def patient_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and REST learn why applications wait, however late: a busy handler thread needs more than 30 ms or 1 s."""
    for module in ("waits", "wait_groups"):
        for name in ("PATIENCE_S", "DEADLINE_S"):
            monkeypatch.setattr(f"statemachines.resourcemanager.read.{module}.{name}", 60.0)
