"""The pages of the metrics' server: which there are, what they answer in each state, and under which load."""

from __future__ import annotations

import http.client
import json
import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric

from dispatcher import (
    AsyncDispatcher,
    CompositeService,
    DispatcherConfig,
    DispatcherView,
    JournalConfig,
    JournalWriter,
    MetricsConfig,
    MetricsServer,
    register_metrics,
)

from ...kit import TIMEOUT_S, Gate, Numbered, Work, in_threads, until
from ...kit.services import fail
from ..supervision.asked import health_of

pytestmark = pytest.mark.long

Make = Callable[..., AsyncDispatcher]
FAILURES = "dispatcher_metrics_collector_failures_total"


class Site:
    """A server with a registry and a health of its own, and a client of it."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.views: list[DispatcherView] = []
        self.health = health_of()
        self.health.views = lambda: list(self.views)
        self.server = MetricsServer(MetricsConfig(), self.registry, health=self.health)

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        assert self.server.port is not None
        client = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=TIMEOUT_S)
        try:
            client.request(method, path, headers=headers)
            answer = client.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            client.close()

    def status(self, path: str) -> tuple[int, str]:
        """The code of a health page, and the status in its body."""
        code, headers, body = self.ask(path)
        assert headers["Content-Type"] == "application/json"
        assert headers["Cache-Control"] == "no-store"
        return code, json.loads(body)["status"]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    with site.server:
        yield site


# -- which pages there are ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/metrics/", "/livez/", "/x\x7f"])
def test_what_is_not_there_is_answered_with_the_pages_that_there_are(site: Site, path: str) -> None:
    line = b"No such page. The pages are /metrics, /livez, /readyz, /healthz.\n"
    for method, expected in (("GET", line), ("HEAD", b""), ("POST", line)):
        code, headers, body = site.ask(path.encode("unicode_escape").decode(), method)

        assert (code, headers["Content-Type"], body) == (404, "text/plain; charset=utf-8", expected)


@pytest.mark.parametrize("path", ["/metrics", "/livez"])
def test_other_methods_are_answered_with_405(site: Site, path: str) -> None:
    for method in ("POST", "OPTIONS", "TRACE"):
        code, headers, body = site.ask(path, method)

        assert (code, headers["Allow"], body) == (405, "GET, HEAD", b"Use GET or HEAD.\n")


# -- states of a daemon ------------------------------------------------------------------------------------------------


def test_a_daemon_answers_from_before_its_dispatchers_start_until_they_are_drained(gate: Gate) -> None:
    site = Site()
    central = AsyncDispatcher(DispatcherConfig(handler_warn_after_s=0.001, liveness_stuck_after_s=3600), name="central")
    central.register(Work, gate)
    site.views = [central.view]
    starting: list[tuple[int, str]] = []

    class Between(CompositeService):
        def service_start(self) -> None:
            starting.extend([site.status("/readyz"), site.status("/livez")])

    def look_while_it_drains() -> None:
        until(lambda: site.status("/readyz") == (503, "draining"))
        assert site.status("/healthz") == (503, "draining")
        assert site.status("/livez") == (200, "ok")
        gate.opened.set()

    daemon = CompositeService("daemon")
    for service in (site.server, Between("between"), central):
        daemon.add_service(service)
    with daemon:
        assert starting == [(503, "starting"), (200, "ok")]
        until(lambda: site.status("/readyz") == (200, "ok"))  # a mail that takes a moment longer is slow
        assert central.post(Numbered())
        until(lambda: site.status("/readyz") == (503, "stuck"))
        assert site.status("/livez") == (200, "ok")
        in_threads(daemon.stop, look_while_it_drains)
    assert central.stats().handled == 1


def test_a_journal_that_cannot_be_written_is_a_reason(site: Site, make: Make, tmp_path: Path) -> None:
    """Each file may have no byte more: as on a full disk."""
    journal = JournalWriter(tmp_path / "journal", JournalConfig(failure_policy="continue", buffer_rows=1))
    dispatcher = make(name="central", journal=journal, handler=lambda _: None)
    site.views = [dispatcher.view]
    assert site.status("/readyz") == (200, "ok")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        for number in range(3):
            assert dispatcher.post(Numbered(number))
        until(lambda: site.status("/readyz") == (503, "journal_failed"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert site.status("/livez") == (200, "ok")


def test_a_check_is_named(site: Site) -> None:
    site.health.register_check("database", fail)

    code, _, body = site.ask("/readyz")

    assert code == site.ask("/readyz", "HEAD")[0] == 503
    assert json.loads(body)["reasons"] == [{"reason": "check:database"}]
    assert site.status("/livez") == (200, "ok")


def test_the_answer_needs_neither_the_handler_thread_nor_the_locks_of_a_handler_or_of_logging(
    site: Site, make: Make
) -> None:
    lock, entered, leave = threading.Lock(), threading.Event(), threading.Event()

    class Holding(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:  # logging holds the handler's lock
            with lock:
                entered.set()
                assert leave.wait(TIMEOUT_S)

    class Locked(Numbered):
        @property
        def entity(self) -> str:
            with lock:
                return "job_1"

    logger, handler = logging.getLogger("dispatcher"), Holding()
    logger.addHandler(handler)
    dispatcher = make(DispatcherConfig(handler_warn_after_s=0.001), handler=lambda _: logger.warning("held"))
    site.views = [dispatcher.view]
    module_lock = logging._lock  # type: ignore[attr-defined]
    try:
        assert dispatcher.post(Locked())
        assert entered.wait(TIMEOUT_S)
        with module_lock:
            until(lambda: site.status("/readyz") == (503, "stuck"))
            assert site.status("/livez") == (200, "ok")
            # A client that goes away is nothing that has to be logged.
            with socket.create_connection(("127.0.0.1", site.server.port or 0), TIMEOUT_S) as client:
                client.sendall(b"nonsense\r\n\r\n")
            assert site.status("/livez") == (200, "ok")
    finally:
        leave.set()
        logger.removeHandler(handler)


# -- collectors that raise ---------------------------------------------------------------------------------------------


class Raising:
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("half", "Shown only as a whole.", 1.0)
        raise LookupError("lost")


class Exiting:
    def collect(self) -> list[Metric]:
        raise SystemExit(3)


class Unwritable:
    def collect(self) -> list[Metric]:
        family = GaugeMetricFamily("unwritable", "No encoding has such a label.", labels=["name"])
        family.add_metric(["\udcff"], 1.0)
        return [family]


class Source:
    def collect(self, dispatcher: str) -> list[Metric]:
        raise LookupError("lost")


def failures_in(page: bytes) -> dict[str, float]:
    lines = (line for line in page.decode().splitlines() if line.startswith(f"{FAILURES}{{"))
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


@pytest.mark.parametrize("collector", [Raising, Exiting, Unwritable])
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_a_collector_that_raises_is_counted_and_left_out(site: Site, collector: Any, accept: str) -> None:
    Counter("before", "", registry=site.registry).inc()
    site.registry.register(collector())
    Counter("after", "", registry=site.registry).inc()
    name = collector.__name__
    before = failures_in(site.ask("/metrics", Accept=accept)[2])[name]

    code, _, page = site.ask("/metrics", Accept=accept)

    assert code == 200
    assert b"\nbefore_total 1.0\n" in page
    assert b"\nafter_total 1.0\n" in page
    assert b"half" not in page
    assert b"unwritable" not in page
    assert failures_in(page)[name] == before + 1


def test_a_source_that_raises_is_counted_and_the_dispatcher_is_shown(site: Site, make: Make) -> None:
    dispatcher = make(name="central")
    register_metrics(dispatcher, site.registry, [Source()])

    page = site.ask("/metrics")[2]

    assert b'dispatcher_event_queue_size{dispatcher="central"} 0.0' in page
    assert failures_in(page)["Source"] >= 1


def test_the_process_s_information_is_on_the_page() -> None:
    site = Site(CollectorRegistry(target_info={"env": "test"}))
    Counter("one", "", registry=site.registry).inc()
    with site.server:
        page = site.ask("/metrics")[2]

    assert b'\ntarget_info{env="test"} 1.0\n' in page
    assert b"\none_total 1.0\n" in page


# -- load --------------------------------------------------------------------------------------------------------------


def test_ten_scrapes_at_once_are_all_answered(site: Site, make: Make) -> None:
    register_metrics(make(name="central"), site.registry)
    together = threading.Barrier(10)

    class Meeting:
        def collect(self) -> list[Metric]:
            together.wait(TIMEOUT_S)  # all of them are in flight
            return []

    site.registry.register(Meeting())
    pages: list[bytes] = []

    in_threads(*[lambda: pages.append(site.ask("/metrics")[2]) for _ in range(10)])

    assert len(pages) == 10
    assert all(b'dispatcher_event_queue_size{dispatcher="central"} 0.0' in page for page in pages)
    assert together.broken is False


# -- a forked child ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this machine")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")  # Python 3.12: there are threads
def test_a_forked_child_neither_answers_for_its_parent_nor_keeps_its_port(site: Site) -> None:
    port = site.server.port or 0
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        site.server.stop()  # returns, though the server's thread is the parent's
        os.read(reader, 1)  # lives on until the parent has looked
        os._exit(0 if site.server.port is None else 1)
    try:
        assert site.status("/livez") == (200, "ok")
        site.server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    finally:
        os.close(writer)
        os.close(reader)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
