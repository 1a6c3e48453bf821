"""What /overview and the paths of its parts say."""

from __future__ import annotations

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig, Retry, aio
from dispatcher.ops import ops_app

from ...kit import TIMEOUT_S, Work, until
from ...kit.coroutines import Keyed, Latched, running_loop
from .client import ENTITIES_ONLY, WAIT_S, Client, Job, JobEvent, hanging
from .stage import told


def fail(event: object) -> None:
    raise ConnectionError("it is down")


def test_lanes_show_what_is_in_flight_and_what_waits_behind_which_key() -> None:
    with running_loop() as loop:
        latched = Latched(loop)
        dispatcher = AsyncDispatcher(name="central", loop=loop)
        dispatcher.register(Work, aio.AsyncioHandler(latched.handle, capacity=5))
        with dispatcher:
            for number in range(4):
                dispatcher.post(Keyed(number, key="slow"))
            dispatcher.post(Keyed(9, key="quick"))
            latched.await_begun(0, 9)
            until(lambda: dispatcher.view.lanes()[0].waiting == 3)

            [lane] = Client(ops_app()).json("/dispatchers/central/lanes")["items"]
            [masked] = Client(ops_app(may_see=ENTITIES_ONLY)).json("/dispatchers/central/lanes")["items"]
            latched.end(0, 9, 1, 2, 3)
            assert dispatcher.await_drained(TIMEOUT_S)

    assert (lane["handler"], lane["capacity"], lane["is_full"]) == ("Latched.handle", 5, False)
    assert (lane["in_flight"], lane["waiting"]) == (2, 3)
    slow, quick = lane["keys"]
    assert (slow["key"], slow["in_flight"], slow["waiting"], slow["entity"]) == ("slow", 1, 3, "job_0")
    assert (quick["key"], quick["in_flight"], quick["waiting"]) == ("quick", 1, 0)
    assert (slow["event_class"], slow["event_type"]) == ("Work", "DO")
    assert slow["running_s"] > 0
    assert [(key["key"], key["entity"]) for key in masked["keys"]] == [(None, "job_0"), (None, "job_9")]


def test_the_overview_tells_what_waits_at_each_dispatcher() -> None:
    with hanging("central") as central:
        central.hang("a")
        for entity in ("b", "b", "c"):
            central.post(Job.WAIT, entity)
        central.post(Job.START)

        found = Client(ops_app(name="shop")).json("/overview")

    [row] = found["dispatchers"]
    assert (found["name"], found["problems"]) == ("shop", [])
    assert [*told(row["numbers"]["running"], "event_class,event_type,entity")] == ["Job:HANG:a"]
    assert [*told({"items": row["waits"]["types"]}, "event_class,event_type,queued")] == ["Job:WAIT:3", "Job:START:1"]
    assert [*told({"items": row["waits"]["entities"]}, "entity,queued")] == ["b:2", "c:1"]


def test_a_dispatcher_that_replaces_another_of_its_name_is_shown_beside_it() -> None:
    first = AsyncDispatcher(name="central")
    with hanging("central") as central:
        central.post(Job.FAIL)
        assert central.dispatcher.await_drained(WAIT_S)

        found = Client(ops_app()).json("/overview")

    states = [row["numbers"]["state"] for row in found["dispatchers"]]
    assert (len(states), states.count("STARTED")) == (2, 1)
    assert first.name == "central"


def test_a_full_queue_is_a_problem_of_the_type_that_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.supervision.health.QUEUE_FULL_AFTER_S", 0.0)
    with hanging("central") as central:
        config = DispatcherConfig(queue_capacity=2, queue_full_policy="reject")
        dispatcher = AsyncDispatcher(config, name="small")
        dispatcher.register(Job, central.handle)
        with dispatcher:
            dispatcher.post(JobEvent(Job.HANG))
            assert central.entered.wait(WAIT_S)
            for _ in range(3):
                dispatcher.post(JobEvent(Job.WAIT))

            [problem] = Client(ops_app()).json("/overview")["problems"]
            central.release.set()

    assert [*told(problem, "problem,dispatcher,event_class,event_type")] == ["queue_full:small:Job:WAIT"]
    assert problem["since"] is not None
    assert problem["waits"].startswith("2 events queued")


def test_what_is_tried_again_fails_and_waits() -> None:
    with hanging("central") as central:
        central.dispatcher.register(Work, fail, on_error=Retry(delay_s=3600, max_delay_s=3600))
        central.dispatcher.post(Keyed(1))
        until(lambda: central.dispatcher.stats().retrying)

        found = Client(ops_app()).json("/overview")

    failing = {"items": found["failing"]}
    names = "dispatcher,event_class,event_type,error_class,failed,retried"
    assert [*told(failing, names)] == ["central:Work:DO:ConnectionError:0:1"]
