from __future__ import annotations

import gc
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from dispatcher import (
    AsyncDispatcher,
    ConfigError,
    DispatcherConfig,
    Event,
    MetricsConfig,
    MetricsServer,
    ServiceState,
    register_metrics,
)

from ..conftest import TIMEOUT_S, Gate, Numbered, Work

Make = Callable[..., AsyncDispatcher]


def scrape(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return scrape(registry)[name, tuple(sorted(labels.items()))]


def test_a_scrape_shows_the_queue_by_type_and_what_was_handled_failed_and_refused(make: Make, gate: Gate) -> None:
    registry = CollectorRegistry()
    config = DispatcherConfig(queue_capacity=3, queue_full_policy="reject", measure_times="all")
    dispatcher = make(config, name="central", handler=gate)
    register_metrics(dispatcher, registry)
    for number, kind in enumerate([Work.DO, Work.DO, Work.MORE, Work.MORE]):
        dispatcher.event_handler.handle(Numbered(number, type=kind))
        assert gate.entered.wait(TIMEOUT_S)
    assert not dispatcher.event_handler.handle(Numbered())

    while_busy = scrape(registry)
    gate.opened.set()
    assert dispatcher.await_drained(TIMEOUT_S)

    of = (("dispatcher", "central"),)
    assert while_busy["dispatcher_event_queue_size", of] == 3
    assert while_busy["dispatcher_event_queue_capacity", of] == 3
    assert while_busy["dispatcher_events_accepted_total", of] == 4
    assert while_busy["dispatcher_handler_running_seconds", of] > 0
    kind_of_more = (*of, ("event_class", "Work"), ("event_type", "MORE"))
    assert while_busy["dispatcher_event_queue_contents", kind_of_more] == 2
    assert value(registry, "dispatcher_events_rejected_total", dispatcher="central", reason="full") == 1
    assert (
        value(registry, "dispatcher_events_handled_total", dispatcher="central", event_class="Work", event_type="MORE")
        == 2
    )
    assert value(registry, "dispatcher_event_queue_seconds_count", dispatcher="central") == 4
    assert value(registry, "dispatcher_event_handling_seconds_count", dispatcher="central") == 4
    assert value(registry, "dispatcher_event_queue_size", dispatcher="central") == 0
    assert value(registry, "dispatcher_handler_running_seconds", dispatcher="central") == 0


def test_a_queue_with_something_that_is_no_event_can_still_be_scraped(make: Make, gate: Gate) -> None:
    registry = CollectorRegistry()
    dispatcher = make(name="central", handler=gate)
    register_metrics(dispatcher, registry)
    for entry in (Numbered(), Numbered(), "no event", Event(type=["unhashable"])):  # type: ignore[type-var]
        dispatcher.event_handler.handle(entry)
    assert gate.entered.wait(TIMEOUT_S)

    assert value(registry, "dispatcher_event_queue_size", dispatcher="central") == 3
    assert dispatcher.queue_contents() == {Work.DO: 1}


def test_two_dispatchers_share_a_registry(make: Make) -> None:
    registry = CollectorRegistry()
    for name in ("one", "two"):
        register_metrics(make(name=name), registry)

    assert value(registry, "dispatcher_event_queue_size", dispatcher="one") == 0
    assert value(registry, "dispatcher_event_queue_size", dispatcher="two") == 0


def test_a_dispatcher_that_comes_back_takes_its_predecessors_place(make: Make) -> None:
    registry = CollectorRegistry()
    first = make(name="central", handler=lambda _: None)
    register_metrics(first, registry)
    first.event_handler.handle(Numbered())
    first.stop()
    assert value(registry, "dispatcher_events_accepted_total", dispatcher="central") == 1

    register_metrics(make(name="central"), registry)

    assert value(registry, "dispatcher_events_accepted_total", dispatcher="central") == 0


def test_dispatchers_of_one_name_are_told_apart_while_both_are_in_use(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """One was posted 3 events and the other 5: the page showed 5."""
    registry = CollectorRegistry()
    first, second, third = (make(name="orders", handler=lambda _: None) for _ in range(3))

    for dispatcher, events in ((first, 3), (second, 5), (third, 7)):
        register_metrics(dispatcher, registry)
        register_metrics(dispatcher, registry)  # repeating it changes nothing
        for _ in range(events):
            dispatcher.event_handler.handle(Numbered())

    labels = ("orders", "orders#2", "orders#3")
    assert [value(registry, "dispatcher_events_accepted_total", dispatcher=label) for label in labels] == [3, 5, 7]
    assert caplog.messages == [
        f"orders: another dispatcher of this name is in use; the metrics show this one as {label}"
        for label in labels[1:]
    ]


def test_a_dispatcher_that_was_replaced_does_not_push_its_replacement_out(make: Make) -> None:
    registry = CollectorRegistry()
    first, second = make(name="orders"), make(name="orders", handler=lambda _: None)
    register_metrics(first, registry)
    first.stop()
    register_metrics(second, registry)
    second.event_handler.handle(Numbered())

    register_metrics(first, registry)

    assert value(registry, "dispatcher_events_accepted_total", dispatcher="orders") == 1
    assert value(registry, "dispatcher_events_accepted_total", dispatcher="orders#2") == 0


def test_sources_get_the_label_of_their_dispatcher(make: Make) -> None:
    class Source:
        def collect(self, dispatcher: str) -> list[GaugeMetricFamily]:
            family = GaugeMetricFamily("extra", "Extra.", labels=["dispatcher"])
            family.add_metric([dispatcher], 1)
            return [family]

    registry = CollectorRegistry()
    register_metrics(make(name="orders"), registry)

    register_metrics(make(name="orders"), registry, [Source()])

    assert value(registry, "extra", dispatcher="orders#2") == 1


def test_a_dispatcher_without_references_drops_out() -> None:
    registry = CollectorRegistry()
    dispatcher = AsyncDispatcher(name="gone")
    register_metrics(dispatcher, registry)

    del dispatcher
    gc.collect()

    assert ("dispatcher_event_queue_size", (("dispatcher", "gone"),)) not in scrape(registry)


def test_scrapes_while_events_are_handled_never_fail_and_counters_never_go_back(make: Make) -> None:
    registry = CollectorRegistry()
    dispatcher = make(name="central", handler=lambda _: None)
    register_metrics(dispatcher, registry)
    producer = threading.Thread(
        target=lambda: [
            dispatcher.event_handler.handle(Numbered(n, type=(Work.DO, Work.MORE)[n % 2])) for n in range(20_000)
        ]
    )
    producer.start()

    accepted = [value(registry, "dispatcher_events_accepted_total", dispatcher="central") for _ in range(20)]
    producer.join(TIMEOUT_S)
    assert dispatcher.await_drained(TIMEOUT_S)

    assert accepted == sorted(accepted)
    assert value(registry, "dispatcher_events_accepted_total", dispatcher="central") == 20_000


def test_the_server_answers_on_a_free_port_while_started() -> None:
    registry = CollectorRegistry()
    dispatcher = AsyncDispatcher(name="central")
    register_metrics(dispatcher, registry)

    with MetricsServer(MetricsConfig(), registry) as server:
        with urllib.request.urlopen(server.url, timeout=TIMEOUT_S) as answer:
            page = answer.read().decode()
        port = server.port

    assert 'dispatcher_event_queue_size{dispatcher="central"} 0.0' in page
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_a_port_in_use_is_named_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = MetricsServer(MetricsConfig(port=port), CollectorRegistry())
        server.init()

        with pytest.raises(ConfigError, match=rf"metrics.port {port}: cannot listen there.*port 0 for a free one"):
            server.start()

    assert server.state is ServiceState.STOPPED


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_finds_nothing_wrong_with_the_page(make: Make) -> None:
    registry = CollectorRegistry()
    dispatcher = make(DispatcherConfig(measure_times="all"), name="central", handler=lambda _: None)
    register_metrics(dispatcher, registry)
    dispatcher.event_handler.handle(Numbered())
    assert dispatcher.await_drained(TIMEOUT_S)

    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=generate_latest(registry), capture_output=True, timeout=60, check=False
    )

    assert checked.returncode == 0, checked.stderr.decode()
