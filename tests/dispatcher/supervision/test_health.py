"""What probes learn of a process: whether it is live, whether it is ready, and why not."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher import (
    AsyncDispatcher,
    CompositeService,
    HealthAnswer,
    Service,
    ServiceState,
    dispatchers,
    health,
    register_check,
)

from ...kit import TIMEOUT_S, Numbered, Work, until
from ...kit.services import Recorder, fail
from .asked import health_of

Make = Callable[..., AsyncDispatcher]


def reasons(answer: HealthAnswer) -> list[tuple[str, str | None]]:
    """Each reason, and what it is about."""
    return [(reason.reason, reason.dispatcher or reason.service) for reason in answer.reasons]


class FakeView:
    """A dispatcher in a state that a real one reaches only by time or misfortune: `looks` are what its methods say."""

    def __init__(
        self,
        name: str = "central",
        state: ServiceState = ServiceState.STARTED,
        failure_cause: BaseException | None = None,
        handler_warn_after_s: float | None = 10.0,
        liveness_stuck_after_s: float | None = None,
        **looks: Any,
    ) -> None:
        self.name, self.state, self.failure_cause = name, state, failure_cause
        self.handler_warn_after_s, self.liveness_stuck_after_s = handler_warn_after_s, liveness_stuck_after_s
        self.looks = {
            "was_replaced": False,
            "is_thread_alive": True,
            "is_starting": False,
            "is_draining": False,
            "running_s": 0.0,
            "full_since_s": None,
            "journal_is_failed": False,
            "signs": (),
            "journal_losses": (),
        } | looks

    def __getattr__(self, look: str) -> Any:
        if look not in self.looks:
            raise AttributeError(look)
        return lambda: self.looks[look]


def sign(name: str, detail: str, event_type: str = "") -> Any:
    return SimpleNamespace(name=name, detail=detail, event_type=event_type)


REPLACED = {"state": ServiceState.STOPPED, "failure_cause": LookupError(), "was_replaced": True}


# -- a dispatcher's life -----------------------------------------------------------------------------------------------


def test_a_dispatcher_whose_start_hook_runs_is_starting_and_has_not_failed() -> None:
    """It is STARTED then, and has no handler thread yet."""
    found: list[tuple[str, bool]] = []

    class Slow(AsyncDispatcher):
        def service_start(self) -> None:
            found.append((asked.ready().status, asked.live().is_ok))
            super().service_start()

    dispatcher = Slow()
    asked = health_of(dispatcher)
    with dispatcher:
        pass

    assert found == [("starting", True)]


def failed_dispatcher(name: str) -> AsyncDispatcher:
    dispatcher = AsyncDispatcher(name=name)
    dispatcher.register(Work, lambda _: fail(), on_error="stop")
    dispatcher.start()
    dispatcher.post(Numbered())
    assert dispatcher.wait_for_service_to_stop(TIMEOUT_S)
    return dispatcher


def test_a_failed_dispatcher_counts_until_one_of_its_name_is_started(make: Make) -> None:
    """It kept the process at `failed` until the garbage collector ran."""
    failed = failed_dispatcher("central")
    of_all = health_of()
    of_all.views = lambda: [view for view in dispatchers() if view.name in ("central", "other")]
    with make(name="other"), AsyncDispatcher(name="central") as first_replacement:
        pass
    before = failed_dispatcher("central")

    with AsyncDispatcher(name="central") as replacement:
        assert before.view is not None
        while_it_runs = of_all.live().status
        with of_all.watching(failed):
            while_watched = of_all.live().status
    del replacement, first_replacement
    gc.collect()

    assert (while_it_runs, while_watched) == ("ok", "failed")
    assert of_all.live().status == "ok"


def test_one_that_was_started_before_replaces_no_failed_dispatcher(make: Make) -> None:
    make(name="central")
    failed = failed_dispatcher("central")

    make(name="another")

    assert reasons(health_of(failed).live()) == reasons(health_of(failed).ready()) == [("failed", "central")]
    assert not failed.view.was_replaced()


# -- what a real dispatcher shows rarely -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "ready", "is_live"),
    [
        (FakeView(is_thread_alive=False), "failed", False),
        (FakeView(failure_cause=LookupError()), "failed", False),
        (FakeView(is_thread_alive=False, is_starting=True), "starting", True),
        (FakeView(is_thread_alive=False, state=ServiceState.STOPPED), "stopped", True),
        (FakeView(is_draining=True, state=ServiceState.STOPPED), "draining", True),
        (FakeView(is_draining=True), "draining", True),
        (FakeView(running_s=10.0), "ok", True),
        (FakeView(running_s=10.1), "stuck", True),
        (FakeView(running_s=1e6, handler_warn_after_s=None), "ok", True),
        (FakeView(running_s=60.0, liveness_stuck_after_s=60.0), "stuck", True),
        (FakeView(running_s=60.1, liveness_stuck_after_s=60.0), "stuck", False),
        (FakeView(journal_is_failed=True), "journal_failed", True),
        (FakeView(full_since_s=0.99), "ok", True),
        (FakeView(full_since_s=1.0), "queue_full", True),
        (FakeView(journal_is_failed=True, signs=(sign("queue_grows", ""),)), "journal_failed", True),
        (FakeView(**REPLACED, journal_is_failed=True, full_since_s=9.0), "ok", True),
    ],
)
def test_each_state_has_its_answers(view: FakeView, ready: str, is_live: bool) -> None:
    asked = health_of(view)

    assert (asked.ready().status, asked.ready().is_ok) == (ready, ready == "ok")
    assert asked.live().is_ok is is_live
    assert asked.live().status == ("ok" if is_live else asked.live().reasons[0].reason)


def test_all_reasons_are_listed_in_their_order_and_the_first_is_the_status() -> None:
    views = [
        FakeView("f", full_since_s=2.0),
        FakeView("j", journal_is_failed=True),
        FakeView("r", running_s=61.23),
        FakeView("d", is_draining=True),
        FakeView("i", is_starting=True),
        FakeView("e", state=ServiceState.STOPPED),
        FakeView("x", failure_cause=LookupError()),
    ]
    asked = health_of(*views)
    asked.register_check("database", lambda: False)

    answer = asked.ready()

    shown = [reason.reason for reason in answer.reasons]
    gravest = ["failed", "stopped", "starting", "draining", "stuck", "journal_failed", "queue_full"]
    assert shown == [*gravest, "check:database"]
    assert answer.status == "failed"
    assert not answer.is_ok
    assert json.loads(answer.to_json())["reasons"][-1] == {"reason": "check:database"}


def test_a_started_service_that_cannot_do_its_work_says_why() -> None:
    class Store(Service):
        is_full = True

        def unready_reason(self) -> str | None:
            return "store" if self.is_full else None

    store, asked = Store("shop"), health_of()
    with store, asked.watching(store):
        full = reasons(asked.ready())
        store.is_full = False
        emptied = asked.ready().status

    assert (full, emptied) == ([("store", "shop")], "ok")


def test_the_body_names_status_reasons_and_uptime_and_nothing_else() -> None:
    now_s = [100.0]
    asked = health_of(FakeView(running_s=61.23, full_since_s=2.5), clock_s=lambda: now_s[0])
    now_s[0] += 86_400.1

    assert json.loads(asked.ready().to_json()) == {
        "status": "stuck",
        "reasons": [
            {"reason": "stuck", "dispatcher": "central", "seconds": 61.2},
            {"reason": "queue_full", "dispatcher": "central", "seconds": 2.5},
        ],
        "uptime_s": 86_400.1,
    }
    assert json.loads(asked.live().to_json()) == {"status": "ok", "reasons": [], "uptime_s": 86_400.1}


def test_a_name_that_no_encoding_can_write_makes_no_answer_fail() -> None:
    asked = health_of(FakeView("\udcff", is_starting=True))

    assert json.loads(asked.ready().to_json())["reasons"] == [{"reason": "starting", "dispatcher": "\\udcff"}]


# -- services that are watched -----------------------------------------------------------------------------------------


def composite(name: str, *parts: Service) -> CompositeService:
    whole = CompositeService(name)
    for part in parts:
        whole.add_service(part)
    return whole


def test_a_watched_service_has_to_be_started_with_all_its_parts() -> None:
    late = Recorder()
    daemon = composite("daemon", composite("inner", AsyncDispatcher(name="central")), late)
    asked = health_of()
    asked.watch(daemon)

    assert ("starting", "daemon") in reasons(asked.ready())
    with daemon:
        assert asked.ready().is_ok
        late.stop()
        assert reasons(asked.ready()) == [("stopped", late.name)]
    assert asked.ready().status == "stopped"
    asked.forget(daemon)
    assert asked.ready().is_ok


def test_each_part_is_starting_until_its_hook_has_ended_and_a_daemon_drains_until_its_last_part_has_stopped() -> None:
    found: list[list[tuple[str, str | None]]] = []
    look = lambda: found.append(reasons(asked.ready()))  # noqa: E731
    first = Recorder(start=look, stop=look)
    daemon = composite("daemon", first, composite("inner", AsyncDispatcher(name="central")))
    asked = health_of()
    asked.watch(daemon)

    with daemon:
        assert asked.ready().is_ok

    assert found == [
        [("starting", "daemon"), ("starting", first.name), ("starting", "inner")],
        [("stopped", "inner"), ("draining", "daemon"), ("draining", first.name)],
    ]


def test_a_service_that_leaves_its_stop_to_another_thread_drains_until_that_has_ended() -> None:
    class Leaving(CompositeService):
        def service_stop(self) -> None:
            return

    part = Recorder()
    daemon = Leaving("daemon")
    daemon.add_service(part)
    asked = health_of()
    asked.watch(daemon)
    daemon.start()

    daemon.stop()
    assert reasons(asked.ready()) == [("draining", "daemon")]
    part.stop()

    assert {reason for reason, _ in reasons(asked.ready())} == {"stopped"}


def test_a_failed_service_is_not_ready_but_only_a_dispatcher_makes_the_process_not_live() -> None:
    daemon = composite("daemon", Recorder(stop=fail))
    asked = health_of()
    asked.watch(daemon)
    daemon.start()

    with pytest.raises(LookupError):
        daemon.stop()

    assert asked.ready().status == "failed"
    assert asked.live().is_ok


def test_a_dispatcher_outside_what_is_watched_may_be_stopped_but_must_not_fail_or_hang() -> None:
    visitor = FakeView("visitor", state=ServiceState.STOPPED)
    asked = health_of(visitor)
    assert asked.ready().status == "stopped"

    with composite("daemon", Recorder()) as daemon, asked.watching(daemon):
        assert asked.ready().is_ok
        visitor.looks["is_draining"] = True
        assert asked.ready().is_ok
        visitor.looks["running_s"] = 11.0
        assert asked.ready().status == "stuck"
        visitor.looks["is_starting"] = True
        assert asked.ready().status == "starting"
        visitor.failure_cause = LookupError()
        assert asked.ready().status == "failed"


def test_what_is_watched_twice_is_named_once_and_forgotten_once_each() -> None:
    service = Recorder()
    asked = health_of()
    asked.watch(service)
    asked.watch(service)

    assert reasons(asked.ready()) == [("starting", service.name)]
    asked.forget(service)
    assert reasons(asked.ready()) == [("starting", service.name)]
    asked.forget(service)
    asked.forget(service)
    assert asked.ready().is_ok


def test_a_watched_service_is_not_kept_alive() -> None:
    asked = health_of()
    asked.watch(Recorder())

    until(lambda: asked.ready().is_ok)


# -- the process -------------------------------------------------------------------------------------------------------


@pytest.fixture
def check() -> Iterator[str]:
    yield "of a test"
    health.unregister_check("of a test")


def test_the_health_of_the_process_sees_every_dispatcher_and_check(make: Make, check: str) -> None:
    make(name="seen by the process")
    register_check(check, lambda: False)

    answer = health.ready()

    assert "seen by the process" in {view.name for view in health.views()}
    assert (f"check:{check}", None) in reasons(answer)


def test_a_forked_child_starts_with_nothing_to_answer_for() -> None:
    daemon = Recorder()
    asked = health_of()
    asked.watch(daemon)
    assert not asked.ready().is_ok

    asked.after_fork()

    assert asked.ready().is_ok


def test_signs_of_trouble_and_what_a_service_warns_of_degrade_and_leave_it_ready() -> None:
    class Slow(Service):
        def warning(self) -> tuple[str, str] | None:
            return "store_slow", "a commit takes 2 s"

    view = FakeView(signs=(sign("queue_grows", "2,000 events"),))
    checked, slow = health_of(view), Slow("store")
    with slow:
        checked.watch(slow)
        view.name = "central"
        answer = checked.ready()

    assert (answer.is_ok, answer.status, answer.reasons) == (True, "degraded", ())
    assert [each.to_dict() for each in answer.warnings] == [
        {"warning": "queue_grows", "dispatcher": "central", "detail": "2,000 events"},
        {"warning": "store_slow", "dispatcher": "store", "detail": "a commit takes 2 s"},
    ]
    assert checked.live().status == "ok"


def test_a_reason_and_a_sign_have_held_since_the_first_of_looks_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("dispatcher.supervision.health.time.time", lambda: now)
    view = FakeView(
        journal_is_failed=True, signs=(sign("events_fail", "10", "Job.A"), sign("events_fail", "11", "Job.B"))
    )
    asked = health_of(view)
    asked.glance()
    now = 1010.0
    view.looks["signs"] = (sign("events_fail", "20", "Job.B"), sign("events_fail", "12", "Job.C"))

    answer = asked.ready()

    assert [reason.since for reason in answer.reasons] == [1000.0]
    assert [(each.detail, each.since) for each in answer.warnings] == [("20", 1000.0), ("12", 1010.0)]
    view.looks["journal_is_failed"] = False
    asked.glance()
    view.looks["journal_is_failed"] = True
    assert asked.ready().reasons[0].since == 1010.0


def test_a_handler_is_stuck_since_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.supervision.health.time.time", lambda: 1000.0)
    view = FakeView(running_s=30.0)
    asked = health_of(view)
    since = asked.ready().reasons[0].since
    view.looks["running_s"] = 12.0  # another one

    assert (since, asked.ready().reasons[0].since) == (970.0, 988.0)


def test_a_glance_starts_no_check() -> None:
    asked = health_of()
    runs: list[int] = []
    asked.register_check("database", lambda: runs.append(1), TIMEOUT_S)

    before = asked.glance()
    asked.ready()

    assert before.is_ok
    assert reasons(asked.glance()) == [("check:database", None)]
    assert len(runs) == 1
