"""Whatever an event, its type, its key or a logging handler raises, the accounts balance and the dispatcher lives.

The accounts are compared with what the producer was told, never with the dispatcher's own count of accepted events: an
event whose `.type` raised IndexError was in neither.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, MultiDispatcher
from dispatcher.journal import EVENTS, JournalWriter, read_rows
from dispatcher.mailbox import SystemProcessingTimeService
from dispatcher.metrics import register_metrics

from ..kit import TIMEOUT_S, Gate, Numbered, Work, assert_accounts_balance, tries
from ..kit.dispatchers import Make

ERRORS = (Exception, IndexError, AttributeError, StopIteration, RecursionError, MemoryError, SystemExit, GeneratorExit)


class Words(str):
    """A text whose methods raise."""

    def _raise(self, *_: object) -> Any:
        raise ValueError("no words")

    __str__ = __len__ = __getitem__ = __eq__ = __format__ = encode = isascii = _raise  # type: ignore[assignment]
    __hash__ = str.__hash__


class Odd(Enum):
    """An Enum whose members compare, hash and show themselves by raising."""

    ONE = 1
    TWO = 2

    def _raise(self, *_: object) -> Any:
        raise IndexError("odd")

    __str__ = __repr__ = __format__ = __eq__ = __hash__ = _raise  # type: ignore[assignment]


Surrogate = Enum("Surrogate", {"\udc80": 1})  # type: ignore[misc]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise IndexError("no text")


class Hostile:
    """An event. `faults` maps a method to the error that it raises, or to what it returns instead."""

    is_armed = True  # False after the test: an event may live on in a traceback

    def __init__(self, faults: dict[str, Any]) -> None:
        self.__dict__["faults"] = faults

    def _try(self, method: str, otherwise: Any) -> Any:
        fault = self.__dict__["faults"].get(method, otherwise)
        if isinstance(fault, type) and issubclass(fault, BaseException):
            raise fault(f"raised by {method}")
        return fault

    @property
    def type(self) -> Any:
        return self._try("type", Work.DO)

    @property
    def entity(self) -> Any:
        return self._try("entity", "an entity")

    @property
    def payload(self) -> Any:
        return self._try("payload", {"a": 1})

    @property
    def lock_key(self) -> Any:
        return self._try("lock_key", 1)

    @property
    def __class__(self) -> Any:
        return self._try("__class__", Hostile)

    def __repr__(self) -> str:
        shown = self._try("__repr__", "<Hostile>")
        return repr(self) if shown == "deep" else shown

    def __str__(self) -> str:
        return self._try("__str__", "hostile")

    def __eq__(self, other: object) -> Any:
        return self._try("__eq__", True)

    def __hash__(self) -> int:
        return self._try("__hash__", 1)

    def __del__(self) -> None:
        if Hostile.is_armed:
            self._try("__del__", None)


class LoudHandler(logging.Handler):
    """A logging handler that raises."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self._error = error

    def handle(self, record: logging.LogRecord) -> bool:
        raise self._error("the log is full")


@contextmanager
def hostile_logging(error: type[BaseException] | None) -> Iterator[None]:
    log = logging.getLogger("dispatcher")
    handler = LoudHandler(error) if error is not None else logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@pytest.fixture(autouse=True)
def ignore_errors_of_destructors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    Hostile.is_armed = True
    yield
    Hostile.is_armed = False


VALUES: dict[str, Any] = {error.__name__: error for error in ERRORS} | {
    "none": None,
    "no Enum": "no enum",
    "odd": Odd.ONE,
    "odder": Odd.TWO,
    "more work": Work.MORE,
    "surrogate member": next(iter(Surrogate)),
    "object": object(),
    "words": Words("words"),
    "surrogate": chr(0xDC80),
    "long": "x" * 5000,
    "deep": "deep",
    "number": 5,
    "int": int,
    "set": {1: {2}},
    "tuple": {(1,): 2},
    "unprintable": Unprintable,
}
"""By name: hypothesis compares and hashes what it draws."""


def drawn(*names: str) -> st.SearchStrategy[str]:
    return st.sampled_from([error.__name__ for error in ERRORS]) | st.sampled_from([*names, "none"])


errors = st.sampled_from(ERRORS)
faults = st.fixed_dictionaries(
    {},
    optional={
        "type": drawn("no Enum", "odd", "odder", "more work", "surrogate member", "object", "words"),
        "entity": drawn("words", "surrogate", "number"),
        "payload": drawn("words", "surrogate", "set", "tuple"),
        "lock_key": drawn("number"),
        "__class__": drawn("int"),
        "__repr__": drawn("deep", "words", "surrogate", "long"),
        "__str__": drawn("words", "surrogate"),
        "__eq__": drawn(),
        "__hash__": drawn(),
        "__del__": drawn(),
        "key": drawn("number", "surrogate"),
        "handler": drawn("unprintable"),
    },
)
times = st.fixed_dictionaries({"measure_times": st.sampled_from(["none", "sampled", "all"])})
bounds = st.fixed_dictionaries(
    {
        "queue_capacity": st.integers(1, 4),
        "queue_full_policy": st.sampled_from(["block", "reject", "drop_oldest"]),
        "queue_full_timeout_s": st.just(0.001),  # the handler waits for the test
    }
)
configs = st.builds(dict.__or__, times, st.just({}) | bounds)


def key_of(event: Hostile) -> Any:
    """The event itself is the key, unless its faults say otherwise."""
    fault = event._try("key", event)
    return event if fault is event else fault


def handle(event: Any) -> None:
    event._try("handler", None)


def show(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode("utf-8")


@settings(
    max_examples=tries(25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    events=st.lists(faults, max_size=6),
    config=configs,
    coalesces=st.booleans(),
    kind=st.sampled_from(["plain", "journal", "group"]),
    on_error=st.sampled_from(["continue", "continue", "stop"]),
    loud=st.none() | errors,
    waits=st.booleans(),
    drains=st.booleans(),
)
def test_the_accounts_of_hostile_events_balance_in_every_configuration(
    events: list[dict[str, str]],
    config: dict[str, Any],
    coalesces: bool,
    kind: str,
    on_error: Any,
    loud: type[BaseException] | None,
    waits: bool,
    drains: bool,
) -> None:
    registry = CollectorRegistry()
    accepted = refused = 0
    gate = Gate()
    with TemporaryDirectory() as folder, hostile_logging(loud):
        dispatcher = made(kind, Path(folder) / "journal", DispatcherConfig(drain_events_on_stop=drains, **config))
        register_metrics(dispatcher, registry)
        for event_class in (Work, Odd):
            dispatcher.register(event_class, handle, on_error=on_error, coalesce_by=key_of if coalesces else None)
        dispatcher.register(Held, gate)
        with dispatcher:
            if waits:  # so that all are queued at once
                accepted += dispatcher.post(HeldEvent())
                assert gate.entered.wait(TIMEOUT_S)
            else:
                gate.opened.set()
            for each in events:
                with suppress(BaseException):  # raised by a key: the event was not accepted
                    answer = dispatcher.post(Hostile({method: VALUES[fault] for method, fault in each.items()}))
                    accepted, refused = accepted + answer, refused + (not answer)
            assert "dispatcher_event_queue_size" in show(registry)
            dispatcher.queue_contents()
            gate.opened.set()
        parts = dispatcher.partitions if isinstance(dispatcher, MultiDispatcher) else [dispatcher]
        assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
        assert "dispatcher_events_failed" in show(registry)

    stats = [part.stats() for part in parts]
    assert sum(each.handled + each.failed + each.discarded for each in stats) == accepted
    assert sum(sum(each.rejected.values()) for each in stats) == refused
    if on_error == "continue":
        assert all(part.failure_cause is None for part in parts)


class Held(Enum):
    BACK = 1


class HeldEvent:
    type = Held.BACK


def made(kind: str, folder: Path, config: DispatcherConfig) -> AsyncDispatcher | MultiDispatcher:
    if kind == "group":
        return MultiDispatcher(config, partitions=2)
    journal = JournalWriter(folder, JournalConfig(durability="none")) if kind == "journal" else None
    return AsyncDispatcher(config, journal=journal)


NAMED: dict[str, dict[str, Any]] = {
    "a repr that is too deep": {"__repr__": "deep"},
    "a repr that raises": {"__repr__": ValueError},
    "a repr whose methods raise": {"__repr__": Words("repr")},
    "a repr that exits": {"__repr__": SystemExit},
    "a type that raises IndexError": {"type": IndexError},
    "a type that raises AttributeError": {"type": AttributeError},
    "a class that raises": {"__class__": ValueError},
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(("measure_times", "capacity"), [("none", 10), ("sampled", None), ("all", None)])
def test_an_event_that_cannot_be_looked_at_fails_alone(
    make: Make, name: str, measure_times: Any, capacity: int | None
) -> None:
    """It ended the dispatcher and discarded its queue, or was in no account."""
    fault = NAMED[name]
    got: list[int] = []

    def fail(event: Any) -> None:
        if isinstance(event, Numbered):
            got.append(event.number)
        else:
            raise RuntimeError("a handler's error")

    dispatcher = make(DispatcherConfig(measure_times=measure_times, queue_capacity=capacity), handler=fail)

    answers = [
        dispatcher.post(event) for event in (Numbered(1), Hostile(fault), Numbered(2), Hostile(fault), Numbered(3))
    ]

    assert answers == [True] * 5
    assert dispatcher.await_drained(TIMEOUT_S)
    assert got == [1, 2, 3]
    assert (dispatcher.stats().handled, dispatcher.stats().failed, dispatcher.stats().discarded) == (3, 2, 0)
    assert_accounts_balance(dispatcher, accepted=5)


@pytest.mark.parametrize(
    ("name", "loud"),
    [*((name, None) for name in NAMED), ("a repr that raises", ValueError), ("a repr that raises", SystemExit)],
)
def test_a_stop_that_gives_up_says_so_whatever_the_event_and_the_log_raise(
    name: str,
    loud: type[BaseException] | None,
    gate: Gate,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It raised the error of the event's repr, or the logging handler's, and the line was lost."""
    fault = NAMED[name]
    dispatcher = AsyncDispatcher(DispatcherConfig(drain_timeout_s=0.01), name="stopped")
    dispatcher.register(Work, gate)
    dispatcher.start()
    first = {name: error for name, error in fault.items() if name != "type"}  # it has to get to its handler
    accepted = [dispatcher.post(Hostile(each)) for each in (first, fault, fault)]
    assert gate.entered.wait(TIMEOUT_S)

    with hostile_logging(loud):
        dispatcher.stop()

    lines = [record.getMessage() for record in caplog.records] + capsys.readouterr().err.splitlines()
    assert any("stopped: stop gave up after" in line for line in lines)
    assert any("stopped: stop discarded 2 queued events" in line for line in lines)
    assert dispatcher.stats().discarded == 2
    gate.opened.set()
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    assert_accounts_balance(dispatcher, accepted=sum(accepted))


ENTITIES: dict[str, Any] = {
    "a str whose methods raise": Words("entity"),
    "a surrogate": chr(0xDC80),
    "a NUL": chr(0),
    "a number": 5,
    "bytes": b"bytes",
    "a property that raises": IndexError,
}


@pytest.mark.parametrize("name", ENTITIES)
def test_the_journal_keeps_the_rows_of_an_odd_entity_and_of_an_error_that_cannot_be_encoded(
    tmp_path: Path, name: str
) -> None:
    """A str whose methods raise ended the handler thread when the row was written."""

    def handle(event: Any) -> None:
        if event.type is Work.MORE:
            raise FileNotFoundError("no file \udc80")

    journal = JournalWriter(tmp_path / "journal", JournalConfig(durability="none"))
    dispatcher = AsyncDispatcher(journal=journal)
    dispatcher.register(Work, handle)
    with dispatcher:
        for faults in ({"entity": ENTITIES[name]}, {}, {"type": Work.MORE}):
            assert dispatcher.post(Hostile(faults))

    rows = list(read_rows(tmp_path / "journal", EVENTS))
    assert [row["outcome"] for row in rows] == ["handled", "handled", "failed"]
    assert (rows[1]["entity"], rows[2]["error"]) == ("an entity", "FileNotFoundError: no file \\udc80")
    assert dispatcher.failure_cause is None


def test_a_metrics_source_that_raises_hides_no_other_metric(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def collect(self, dispatcher: str) -> Any:
            raise IndexError("no metrics")

        def __repr__(self) -> str:
            raise ValueError("no words")

    registry = CollectorRegistry()
    dispatcher = make(handler=lambda _: None)
    register_metrics(dispatcher, registry, [Broken()])

    shown = show(registry)

    assert "dispatcher_event_queue_size" in shown
    assert "a metrics source failed" in caplog.text


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_timer_lives_on_when_its_error_cannot_be_logged(error: type[BaseException]) -> None:
    """A logging handler that raised ended the timers of the whole process, and with them all monitoring."""
    timers = SystemProcessingTimeService("timers")
    again = threading.Event()

    def fail(_: int) -> None:
        raise RuntimeError("a timer's error")

    with hostile_logging(error):
        timers.register_timer(0, fail)
        timers.register_timer(0, lambda _: again.set())

        assert again.wait(TIMEOUT_S)
    assert timers.shutdown(TIMEOUT_S)
