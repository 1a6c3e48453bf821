"""Five incidents: the ops API and `top` show at once which dispatcher, which type, since when, and what waits."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("textual", reason="the extra cli is not installed")

import httpx

from ...kit import until
from ...kit.commands import run_here
from .conftest import Trouble

pytestmark = pytest.mark.long


def problems(client: httpx.Client, kind: str) -> list[dict[str, Any]]:
    answer = client.get("http://shop/ops/v1/overview")
    assert answer.status_code == 200, answer.text
    return [each for each in answer.json()["problems"] if each["problem"] == kind]


def test_an_incident_is_found_on_the_overview_and_in_top(trouble: Trouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    began_ms, shown = 1000 * time.time(), trouble.shown
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(trouble.door.socket_path))) as client:
        until(lambda: problems(client, shown.problem), f"{shown.problem} is found")
        [problem] = problems(client, shown.problem)

    name = ".".join(problem[part] for part in ("event_class", "event_type") if problem.get(part))
    assert (problem["dispatcher"], name) == (shown.dispatcher, shown.event)
    assert began_ms - 60_000 <= problem["since"] <= 1000 * time.time()
    assert re.search(shown.waits, problem["waits"])
    lines = run_here("top", "--once").out.splitlines()
    [at] = [at for at, line in enumerate(lines) if f"{shown.problem}: {shown.dispatcher} {shown.event} since" in line]
    assert re.search(shown.waits, lines[at + 1])
