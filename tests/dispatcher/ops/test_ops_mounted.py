"""The ops API in an app of the user: its paths, its errors, and what needs an administrator."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from unittest import mock

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

import dispatcher.ops
from dispatcher import CompositeService, DispatcherError, Service
from dispatcher.ops import OpsConfig, controls, ops_app, shared
from dispatcher.web import waiting

from .client import WAIT_S, Client, hanging


async def hello(request: Request) -> Response:
    return PlainTextResponse("hello")


def mounted(config: OpsConfig | None = None) -> Starlette:
    return Starlette(routes=[Route("/", hello), Mount("/ops", ops_app(config))])


@pytest.fixture
def restored() -> Iterator[logging.Logger]:
    """A logger of a test, which is at its level afterwards."""
    logger = logging.getLogger("tests.ops.levels")
    logger.setLevel(logging.ERROR)
    yield logger
    logger.setLevel(logging.NOTSET)


def test_it_can_be_mounted_into_an_app() -> None:
    app = mounted()

    with hanging("mounted") as found:
        assert Client(app, prefix="/ops/v1").json("/dispatchers/mounted")["name"] == found.dispatcher.name
        assert Client(app, prefix="/ops/v1").error("/nothing") == (404, "/ops/v1/nothing: no such path")
        assert Client(app, prefix="").get("/").text == "hello"


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dispatcher.ops.door", raising=False)
    monkeypatch.delitem(vars(dispatcher.ops), "OpsDoor", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)

    with pytest.raises(DispatcherError, match=r"needs its extra .*: pip install 'central-dispatcher\[web\]'"):
        _ = dispatcher.ops.OpsDoor


def test_threads_are_for_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "Kept", lambda _: waiting.Kept(WAIT_S))
    app = mounted()

    without = Client(app, prefix="/ops/v1").error("/threads")
    viewer = Client(app, "view", "/ops/v1").error("/threads")
    found = Client(app, "admin", "/ops/v1").json("/threads")

    assert without == (403, "role admin is required; there is no user")
    assert viewer == (403, "role admin is required; tester has role view")
    [worker] = [each for each in found["items"] if each["name"] == "ops-worker"]
    assert worker["daemon"] is True
    assert "thread_items" in [frame["function"] for frame in worker["stack"]]
    assert found["total"] == len(found["items"])
    assert Client(app, "admin", "/ops/v1").json("/threads") == found, "what was looked at is kept"


@pytest.mark.parametrize("path", ["/stop", "/log-level"])
@pytest.mark.parametrize(
    ("control", "role", "reason"),
    [
        (True, None, "role admin is required; there is no user"),
        (True, "user", "role admin is required; tester has role user"),
        (False, "admin", "controls are switched off; set ops.control: true"),
    ],
)
def test_controls_need_the_setting_and_an_administrator(
    path: str, control: bool, role: str | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(mounted(OpsConfig(control=control)), role, "/ops/v1")

    with caplog.at_level(logging.INFO, "dispatcher.audit"):
        response = client.post(path, logger="x", level="DEBUG", for_s=1)

    assert (response.status_code, response.json()) == (403, {"error": reason})
    assert "RESULT=FAILURE" in caplog.text


def test_a_log_level_is_set_and_goes_back_by_itself(
    restored: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timers = mock.Mock(side_effect=lambda *_: mock.Mock())
    monkeypatch.setattr(controls.threading, "Timer", timers)
    client = Client(mounted(OpsConfig(control=True)), "admin", "/ops/v1")

    with caplog.at_level(logging.INFO, "dispatcher.audit"):
        first = client.post("/log-level", logger=restored.name, level="debug", for_s=60)
    client.post("/log-level", logger=restored.name, level="INFO", for_s=30)

    assert first.json() == {"logger": restored.name, "level": "DEBUG", "before": "ERROR", "for_s": 60.0}
    assert "USER=tester" in "".join(caplog.messages)
    assert "OPERATION=log level DEBUG for 60 s\tTARGET=tests.ops.levels\tRESULT=SUCCESS" in "".join(caplog.messages)
    (first_s, restore_first), (second_s, restore_second) = (call.args for call in timers.call_args_list)
    assert (first_s, second_s) == (60.0, 30.0)
    restore_first()
    assert restored.level == logging.INFO, "the later change stays until its own time is over"
    restore_second()
    assert restored.level == logging.ERROR


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"logger": 1, "level": "INFO", "for_s": 1}, "logger: expected the name of a logger"),
        (
            {"logger": "x", "level": "LOUD", "for_s": 1},
            "level: expected one of DEBUG, INFO, WARNING, ERROR, CRITICAL",
        ),
        ({"logger": "x", "level": "INFO", "for_s": 0}, "for_s: expected seconds, above 0 and at most 86,400"),
        ({"logger": "x", "level": "INFO", "for_s": True}, "for_s: expected seconds, above 0 and at most 86,400"),
        ({"logger": "x", "level": "INFO"}, "for_s: expected seconds, above 0 and at most 86,400"),
        ({"loger": "x"}, "the body must be an object"),
    ],
)
def test_a_log_level_with_a_mistake_is_refused(body: dict[str, object], reason: str) -> None:
    client = Client(mounted(OpsConfig(control=True)), "admin", "/ops/v1")

    response = client.post("/log-level", **body)

    assert response.status_code == 400
    assert response.json()["error"].startswith(reason)


def test_a_stop_is_the_signal_where_it_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(signal, "getsignal", lambda number: lambda *_: None)
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(controls.stop_daemon, "__defaults__", (os.kill,))
    client = Client(mounted(OpsConfig(control=True)), "admin", "/ops/v1")

    response = client.post("/stop")

    assert (response.status_code, response.json()) == (202, {"stopping": True, "by": "SIGTERM"})
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_a_stop_stops_the_services_where_no_signal_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Part(Service):
        def service_stop(self) -> None:
            order.append(self.name)

    class Door(Part):
        is_door = True

    daemon, door = CompositeService("daemon"), Door("door")
    daemon.add_service(Part("part"))
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    monkeypatch.setattr(controls, "service_roots", lambda: [door, daemon, Part("not started")])
    for each in (door, daemon):
        each.init()
        each.start()

    response = Client(mounted(OpsConfig(control=True)), "admin", "/ops/v1").post("/stop")

    assert response.json() == {"stopping": True, "by": "services"}
    assert door.wait_for_service_to_stop(WAIT_S)
    assert order == ["part", "door"]


def test_a_thread_that_cannot_be_started_does_not_count_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """After eight such requests, every further one got 429 for the rest of the daemon's life."""
    client = Client(mounted(), prefix="/ops/v1")

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        refused = [client.get("/process") for _ in range(8)]

    assert {each.status_code for each in refused} == {503}
    assert refused[0].json() == {"error": "no thread could be started: can't start new thread"}
    assert refused[0].headers["retry-after"] == "1"
    assert client.get("/process").status_code == 200


def test_a_log_level_stays_where_the_timer_that_restores_it_cannot_be_started(
    restored: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level was changed for good."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        shared.LogLevels().change(restored.name, "DEBUG", 60)

    assert restored.level == logging.ERROR


def test_work_that_takes_too_long_is_given_up_and_counts_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    class Slow(Service):
        @property
        def settings(self) -> dict[str, object]:
            assert release.wait(WAIT_S)
            return {}

    slow, client = Slow("slow"), Client(ops_app())
    monkeypatch.setattr("dispatcher.web.waiting.Workers.run.__defaults__", (0.05,))

    async def ask() -> int:
        return (await client.send("GET", "/configuration")).status_code

    async def run() -> None:
        assert [await ask() for _ in range(9)] == [503] * 8 + [429]
        release.set()
        while await ask() != 200:
            await asyncio.sleep(0)

    asyncio.run(run())
    assert slow.name == "slow"
