"""Every route of the resource manager's web application: while a handler hangs, and whatever a client sends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")
pytest.importorskip("jinja2", reason="the extra web is not installed")

from statemachines.resourcemanager.web import waits
from statemachines.resourcemanager.web.rest.waiting import PATH as WAITING

from .front import NODE, Front, front
from .routes import Known, addresses

pytestmark = pytest.mark.long

ANSWER_S = 30.0


@contextmanager
def running() -> Iterator[tuple[Front, Known]]:
    """An application whose master runs and never registers, and one that waits."""
    with front(NODE, simulation={"am_register_delay_ms": 3_600_000}, ops={"control": True}) as made:
        made.submit("ann")
        made.submit("bob", resource={"memory": 1_000_000, "vCores": 1})
        yield made, Known.of(made)


def test_every_route_that_reads_answers_while_the_handler_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with an application that waits came after a second. Why it waits is an answer that needs the handler."""
    monkeypatch.setattr(waits, "DEADLINE_S", 2 * ANSWER_S)  # the client gives up before
    with running() as (made, known):
        paths = [each.filled(known.value) for each in addresses(made) if each.method == "GET" and each.path != WAITING]
        answers: dict[str, int] = {}
        with made.hanging():
            for path in paths:
                with made.http.stream("GET", path, timeout=ANSWER_S) as answer:  # /ops/v1/stream has no end
                    answers[path] = answer.status_code
            run = made.manager.dispatcher.view.running()

    assert run is not None
    assert run.description == "hang"
    assert {path: status for path, status in answers.items() if status >= 500} == {}
    assert sum(status == 200 for status in answers.values()) > len(answers) / 2
