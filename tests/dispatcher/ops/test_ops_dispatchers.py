"""What /process, /overview and /dispatchers and the paths below say."""

from __future__ import annotations

import asyncio
import os
import platform
import threading
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from dispatcher import AsyncDispatcher, CompositeService, DeadLetter, DispatcherConfig, aio
from dispatcher.ops import ops_app, stacks
from dispatcher.web import waiting

from ...kit import TIMEOUT_S, Work, until
from ...kit.coroutines import Keyed, Latched, running_loop
from ...kit.scenarios import play
from ...kit.services import Recorder
from .client import ENTITIES_ONLY, WAIT_S, Client, Hanging, Job, JobEvent, hanging
from .stage import fail, ops_stage, told

SCENARIOS = {
    "a dispatcher has its numbers": "post START | fail -> #kind,state AsyncDispatcher:STARTED ; "
    "#queue.size,queue.capacity,queue.policy,queue.oldest_wait_s 0:None:block:None ; #accepted,handled,failed 2:1:1 ; "
    "#discarded,rejected {}:{} ; #running,journal,failure,dead_letters None:None:None:None ; #is_drained True",
    "what is scheduled is listed soonest first": "after 7200 a job_1 | every 3600 b -> "
    "#scheduled.count,scheduled.fired,scheduled.skipped 2:0:0 ; #scheduled.next.0.key,scheduled.next.0.every_s "
    "b:3600.0 ; #scheduled.next.1.key,scheduled.next.1.cron a:None ; "
    "#scheduled.next.1.event_class,scheduled.next.1.entity Job:job_1",
    "a started dispatcher is preferred to others of its name": "make central central -> #state STARTED",
    "lists come in pages": "make page_0 page_1 -> /dispatchers?limit=2#name central page_0 ; "
    "/dispatchers?limit=2#total,next 3:2 ; /dispatchers?after=2#name page_1 ; /dispatchers?after=2#next None",
    "types have their numbers and their last failure": "post START | fail job_7 -> "
    "types?sort=failed#event_type,handled,failed,queued,slow FAIL:0:1:0:0 START:1:0:0:0 ; "
    "types?sort=failed#event_class,last_failure.error_class Job:ValueError Job:None",
    "types are sorted by what is queued": "post START | fail | hang | post WAIT a b | post START -> "
    "types?sort=queued&limit=3#event_type WAIT START FAIL",
    "types are sorted by failures": "post START | fail | hang | post WAIT a -> "
    "types?sort=failed,queued&limit=2#event_type FAIL WAIT",
    "the queue is counted by type and by entity": "hang | post WAIT a b b | post START -> queue#event_type,queued "
    "WAIT:3 START:1 ; queue#approximate,total False:2 ; queue?by=entity&limit=1#entity,queued b:2",
    "nothing runs in an idle dispatcher": "drained -> running?samples=2&interval_ms=1#samples,interval_ms,idle,stacks "
    "2:1:2:[]",
    "a mail that runs has its description": "mail count sheep -> running#kind,event_class,event_type,description "
    "mail:(mail)::count_sheep",
    "failures come newest first in pages": "fail job_0 job_1 job_2 -> failures?limit=2#entity job_2 job_1 ; "
    "failures?limit=2#total,next 3:2 ; failures?limit=2&after=2#entity job_0 ; failures?limit=2&after=2#next None ; "
    "failures?limit=1#number,event_class,event_type,error_class 3:Job:FAIL:ValueError",
    "failures are grouped by type and class of error": "fail a b -> "
    "failures/groups#event_class,event_type,error_class,failed,retried,newest.entity Job:FAIL:ValueError:2:0:b",
    "an event that is tried again is retrying, and fails": "retry a -> #retrying 1 ; "
    "retrying#event_class,event_type,entity,attempt,error_class Work:DO:a:2:ConnectionError ; "
    "retrying#message,held_back it_is_down:0 ; failures/groups#error_class,failed,retried ConnectionError:0:1 ; "
    "/overview#failing.0.dispatcher,failing.0.event_class,failing.0.error_class,failing.0.failed,failing.0.retried "
    "central:Work:ConnectionError:0:1",
    "the overview tells what runs and what waits": "hang a | post WAIT b b c | post START -> /overview#name,problems "
    "daemon:[] ; /overview#dispatchers.0.numbers.running.event_type,dispatchers.0.numbers.running.entity HANG:a ; "
    "/overview#dispatchers.0.waits.types.0.event_type,dispatchers.0.waits.types.0.queued WAIT:3 ; "
    "/overview#dispatchers.0.waits.entities.0.entity,dispatchers.0.waits.entities.0.queued b:2",
    "a dispatcher that replaces another of its name is shown beside it": "make central | post START -> "
    "/overview#dispatchers.0.numbers.state,dispatchers.1.numbers.state STARTED:NOTINITED",
    "retrying events come in pages": "retry a b c -> retrying?limit=2#entity a b ; retrying?limit=2#next 2 ; "
    "retrying?limit=2&after=2#entity c ; retrying?limit=2&after=2#next None",
    "scheduled posts are listed by time with their keys, in pages": "after 7200 b job_1 | after 3600 a | after 9000 c "
    "-> scheduled?limit=2#key,entity a:None b:job_1 ; scheduled?limit=2#next 2 ; "
    "scheduled?after=2#key,last,every_s,cron c:None:None:None",
    "scheduled posts are found by the beginning of their key, with their rule": "cron daily 0 7 * * * | after 9 dog | "
    "after 9 cat -> scheduled?prefix=dai#key,cron daily:0_7_*_*_*_UTC",
}


class TypeRate(NamedTuple):
    """What the sampler knows of a type."""

    rate: float
    failed_rate: float
    share: float


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_the_api_says(client: Client, script: str) -> None:
    with ops_stage(client) as stage:
        play(stage, script)


def test_the_process_is_described(client: Client) -> None:
    found = client.json("/process")

    assert (found["pid"], found["name"], found["python"]) == (os.getpid(), "daemon", platform.python_version())
    least = {"uptime_s": 0, "started_at": 1_600_000_000_000, "rss_bytes": 1_000_000, "threads": 0, "open_files": 2}
    assert not {name: found[name] for name, number in {**least, "cpu_s": 0}.items() if found[name] <= number}
    assert (len(found["gc"]["counts"]), len(found["loadavg"])) == (3, 3)


def test_the_services_are_a_tree(client: Client, kept: list[object]) -> None:
    def fail_in_two_lines() -> None:
        raise ValueError("broken\nin two")

    daemon, part = CompositeService("the daemon"), Recorder(init=fail_in_two_lines)
    kept += [daemon]
    daemon.add_service(part)
    with pytest.raises(ValueError, match="broken"):
        part.init()

    [root] = [each for each in client.json("/process")["services"] if each["name"] == "the daemon"]

    assert (root["class"], root["state"], root["failure"]) == ("CompositeService", "NOTINITED", None)
    assert [*told({"items": root["services"]}, "name,class,failure")] == [
        "recorder:Recorder:ValueError: broken\\nin two"
    ]


def test_dead_letters_are_counted(client: Client) -> None:
    letters: list[DeadLetter] = []

    def put(letter: DeadLetter) -> None:
        letters.append(letter)
        if len(letters) == 2:
            raise OSError("no room")

    with ops_stage(client, dead_letters=put) as stage:
        play(stage, "fail a b -> #dead_letters.count,dead_letters.lost 2:1")


@pytest.mark.parametrize("name", ["later", "part/1 of 2"])
def test_a_dispatcher_made_later_is_found_by_whatever_name(client: Client, kept: list[object], name: str) -> None:
    client.json("/dispatchers")
    kept.append(AsyncDispatcher(name=name))

    assert [*told(client.json("/dispatchers"), "name,state")] == [f"{name}:NOTINITED"]
    assert client.json(f"/dispatchers/{quote(name, safe='')}")["name"] == name
    assert client.json(f"/dispatchers/{name}/failures")["items"] == []


def test_types_that_are_equal_in_the_column_are_sorted_by_time_and_then_by_rate(
    client: Client, central: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were sorted by name: of a daemon that keeps up, the first hundred letters of the alphabet."""
    rates = {
        ("Job", "FAIL"): TypeRate(50.0, 0.0, 0.1),
        ("Job", "START"): TypeRate(1.0, 0.0, 0.7),
        ("Job", "WAIT"): TypeRate(90.0, 0.0, 0.1),
    }
    monkeypatch.setattr("dispatcher.ops.sampler.Sampler.type_rates", lambda *_: rates)
    for type in (Job.FAIL, Job.START, Job.WAIT):
        central.post(type)
    assert central.dispatcher.await_drained(WAIT_S)

    types = client.json("/dispatchers/central/types", sort="queued")

    assert [*told(types, "event_type,rate_10s")] == ["START:1.0", "WAIT:90.0", "FAIL:50.0"]


def test_types_of_one_name_are_counted_together(client: Client, central: Hanging) -> None:
    """/types showed the number of one of them only, and /queue showed two items that nobody could tell apart."""
    other = Enum("Job", ["WAIT"])
    central.dispatcher.register(other, central.handle)
    central.hang()
    central.post(Job.WAIT)
    for _ in range(2):
        central.post(other.WAIT)  # type: ignore[attr-defined]

    queue = client.json("/dispatchers/central/queue")["items"]
    types = client.json("/dispatchers/central/types")

    assert queue == [{"event_class": "Job", "event_type": "WAIT", "queued": 3}]
    assert "WAIT:3" in told(types, "event_type,queued")


def test_what_runs_is_shown_with_its_stack(client: Client, central: Hanging) -> None:
    assert Client(ops_app()).json("/dispatchers/central/running") is None
    central.hang("job 1")

    found = client.json("/dispatchers/central/running")

    assert [*told(found, "kind,event_class,event_type,entity,description")] == ["event:Job:HANG:job 1:"]
    assert found["running_s"] > 0
    assert found["since"] > 1_600_000_000_000
    ours = [frame["function"] for frame in found["stack"] if frame.get("internal")]
    theirs = [frame for frame in found["stack"] if not frame.get("internal")]
    functions = [frame["function"] for frame in theirs]
    here = theirs[functions.index("hang_here")]
    assert "_run" in ours
    assert here["file"] == __file__.replace("test_ops_dispatchers.py", "client.py")
    assert here["code"] == "self.release.wait(WAIT_S)"
    assert here["line"] > 1
    assert functions.index("hang_here") > functions.index("handle"), "outermost first"
    assert client.json("/dispatchers/central")["running"].keys() == found.keys() - {"stack"}


def test_samples_are_folded_and_counted(client: Client, central: Hanging) -> None:
    central.hang()

    found = client.json("/dispatchers/central/running", samples=5, interval_ms=2)

    assert (found["samples"], found["idle"]) == (5, 0)
    assert sum(stack["count"] for stack in found["stacks"]) == 5
    assert "hang_here" in [frame["function"] for frame in found["stacks"][0]["stack"]]


def test_samples_are_taken_one_at_a_time_and_an_answer_is_kept(
    client: Client, central: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, release = "/dispatchers/central/running", threading.Event()
    monkeypatch.setattr(stacks, "samples", waiting.Kept(WAIT_S))
    monkeypatch.setattr(stacks.sample_stacks, "__defaults__", (lambda _: release.wait(WAIT_S),))

    async def race() -> list[Any]:
        first = asyncio.ensure_future(client.send("GET", path, params={"samples": 7, "interval_ms": 40}))
        while not stacks.samples.is_making():
            await asyncio.sleep(0)
        second = await client.send("GET", path, params={"samples": 3, "interval_ms": 1})
        release.set()
        return [(await first).status_code, second.status_code, second.headers["retry-after"]]

    assert asyncio.run(race()) == [200, 429, "1"]
    central.hang()
    assert client.json(path, samples=7, interval_ms=40)["idle"] == 7, "as it was before the handler hung"


def test_a_failure_has_its_frames_and_its_message(client: Client, central: Hanging) -> None:
    central.post(Job.FAIL, "job 2")
    assert central.dispatcher.await_drained(WAIT_S)

    [failure] = client.json("/dispatchers/central/failures")["items"]
    [group] = client.json("/dispatchers/central/failures/groups")["items"]

    assert failure["message"] == "no such job\njob 2"
    assert any("raise ValueError" in frame for frame in failure["frames"])
    assert group["newest"] == failure
    assert group["first"] == group["since"] == group["last"] == failure["at"]


def test_a_failed_dispatcher_says_why(client: Client) -> None:
    dispatcher = AsyncDispatcher(name="failing")
    dispatcher.register(Job, fail, on_error="stop")
    with dispatcher:
        dispatcher.event_handler.handle(JobEvent(Job.START))
        assert dispatcher.wait_for_service_to_stop(WAIT_S)

    found = client.json("/dispatchers/failing")
    assert (found["failure"], found["state"]) == ("ConnectionError: it is down", "STOPPED")


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
