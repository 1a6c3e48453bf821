"""What /process and /dispatchers and the paths below say."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")

from dispatcher import AsyncDispatcher, CompositeService, DeadLetter, Retry, dispatchers
from dispatcher.ops import ops_app, stacks
from dispatcher.ops.dispatchers import type_items
from dispatcher.ops.sampler import Sampler, TypeRate
from dispatcher.service import note_failure

from ...kit import Numbered, Work, until
from .client import WAIT_S, Client, Hanging, Job, JobEvent, hanging


@pytest.fixture
def central() -> Iterator[Hanging]:
    with hanging("central") as found:
        yield found


@pytest.fixture
def client() -> Client:
    return Client(ops_app(name="daemon"))


def fail(event: object) -> None:
    raise ValueError("broken")


def item(items: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    [found] = [each for each in items if all(each[key] == value for key, value in wanted.items())]
    return found


def test_the_process_is_described(client: Client) -> None:
    found = client.json("/process")

    assert (found["pid"], found["name"], found["python"]) == (os.getpid(), "daemon", platform.python_version())
    assert found["uptime_s"] > 0
    assert found["started_at"] > 1_600_000_000_000
    assert found["rss_bytes"] > 1_000_000
    assert found["threads"] >= 1
    assert found["open_files"] >= 3
    assert len(found["gc"]["counts"]) == 3
    assert len(found["loadavg"]) == 3
    assert found["cpu_s"] > 0


def test_the_services_are_a_tree(client: Client) -> None:
    daemon, part = CompositeService("the daemon"), AsyncDispatcher(name="its dispatcher")
    daemon.add_service(part)
    note_failure(part, ValueError("broken\nin two"))

    root = item(client.json("/process")["services"], name="the daemon")

    assert (root["class"], root["state"], root["failure"]) == ("CompositeService", "NOTINITED", None)
    [child] = root["services"]
    assert (child["name"], child["class"]) == ("its dispatcher", "AsyncDispatcher")
    assert child["failure"] == "ValueError: broken\\nin two"


def test_a_dispatcher_has_its_numbers(client: Client, central: Hanging) -> None:
    central.post(Job.START)
    central.post(Job.FAIL)
    assert central.dispatcher.await_drained(WAIT_S)

    found = item(client.json("/dispatchers")["items"], name="central")

    assert (found["kind"], found["state"]) == ("AsyncDispatcher", "STARTED")
    assert found["queue"] == {"size": 0, "capacity": None, "policy": "block", "oldest_wait_s": None}
    assert (found["accepted"], found["handled"], found["failed"]) == (2, 1, 1)
    assert (found["discarded"], found["rejected"]) == ({}, {})
    assert found["rate"].keys() == {"1s", "10s", "60s"}
    assert (found["running"], found["journal"], found["is_drained"], found["failure"]) == (None, None, True, None)
    assert found.keys() >= {"idle_share_10s", "mails", "mailbox_latency_s"}
    assert client.json("/dispatchers/central").keys() == found.keys()


def test_dead_letters_and_retrying_events_are_counted(client: Client) -> None:
    letters: list[DeadLetter] = []

    def put(letter: DeadLetter) -> None:
        letters.append(letter)
        if len(letters) == 2:
            raise OSError("no room")

    with hanging(dead_letters=put) as central:
        central.dispatcher.register(Work, fail, on_error=Retry(delay_s=3600, max_delay_s=3600))
        central.post(Job.FAIL)
        central.post(Job.FAIL)
        assert central.dispatcher.await_drained(WAIT_S)
        central.dispatcher.post(Numbered())
        until(lambda: central.dispatcher.stats().retrying)

        found = client.json("/dispatchers/central")

        assert (found["retrying"], found["dead_letters"]) == (1, {"count": 2, "lost": 1})


def test_a_dispatcher_without_dead_letters_says_so(client: Client, central: Hanging) -> None:
    assert client.json("/dispatchers/central")["dead_letters"] is None


def test_what_is_scheduled_is_listed_soonest_first(client: Client, central: Hanging) -> None:
    central.dispatcher.post_every(7200, lambda: None)
    central.dispatcher.post_at(4_000_000_000, Numbered())

    found = item(client.json("/dispatchers")["items"], name="central")["scheduled"]

    assert (found["count"], found["fired"], found["skipped"]) == (2, 0, 0)
    every, once = found["next"]
    assert (every["every_s"], every["event_class"]) == (7200, "")
    assert once == {
        "due": 4_000_000_000_000,
        "last": None,
        "every_s": None,
        "cron": None,
        "key": "",
        "event_class": "Work",
        "event_type": "DO",
        "entity": None,
    }


def test_a_dispatcher_made_later_is_found(client: Client) -> None:
    client.json("/dispatchers")
    later = AsyncDispatcher(name="later")

    assert item(client.json("/dispatchers")["items"], name="later")["state"] == "NOTINITED"
    assert client.json("/dispatchers/later")["name"] == later.name


def test_a_started_dispatcher_is_preferred_to_another_of_its_name(client: Client, central: Hanging) -> None:
    others = [AsyncDispatcher(name="central") for _ in range(3)]

    assert client.json("/dispatchers/central")["state"] == "STARTED"
    assert len(others) == 3


def test_a_name_with_a_slash_is_found(client: Client) -> None:
    made = AsyncDispatcher(name="part/1 of 2")

    assert client.json("/dispatchers/part%2F1%20of%202")["name"] == made.name
    assert client.json("/dispatchers/part/1 of 2/failures")["items"] == []


def test_lists_come_in_pages(client: Client) -> None:
    made = [AsyncDispatcher(name=f"page {number}") for number in range(3)]
    names = [each.name for each in dispatchers()]

    first = client.json("/dispatchers", limit=2)
    second = client.json("/dispatchers", limit=1000, after=first["next"])

    assert [each["name"] for each in first["items"] + second["items"]] == names
    assert (first["total"], first["next"], second["next"]) == (len(names), "2", None)
    assert len(made) == 3


def test_types_have_their_numbers_and_last_failure(client: Client, central: Hanging) -> None:
    central.post(Job.START)
    central.post(Job.FAIL, "job 7")
    assert central.dispatcher.await_drained(WAIT_S)

    items = client.json("/dispatchers/central/types")["items"]

    started, failed = item(items, event_type="START"), item(items, event_type="FAIL")
    assert (started["event_class"], started["handled"], started["failed"], started["queued"]) == ("Job", 1, 0, 0)
    assert started["last_failure"] is None
    assert (failed["handled"], failed["failed"], failed["slow"]) == (0, 1, 0)
    assert failed["last_failure"]["error_class"] == "ValueError"
    assert failed["last_failure"]["message"].startswith("no such job")
    assert started.keys() >= {"rate_10s", "handling_mean_s", "handling_share_10s", "queue_mean_s"}


@pytest.mark.parametrize(("sort", "first"), [("queued", "WAIT"), ("failed", "FAIL"), ("failed,queued", "FAIL")])
def test_types_are_sorted(client: Client, central: Hanging, sort: str, first: str) -> None:
    for type in (Job.START, Job.FAIL):
        central.post(type)
    central.hang()
    for type in (Job.WAIT, Job.WAIT, Job.START):
        central.post(type)

    items = client.json("/dispatchers/central/types", sort=sort)["items"]

    assert items[0]["event_type"] == first
    assert {each["event_type"] for each in items} >= {"WAIT", "START", "FAIL"}


def test_types_that_are_equal_in_the_column_are_sorted_by_time_and_then_by_rate() -> None:
    """They were sorted by name: of a daemon that keeps up, the first hundred letters of the alphabet."""
    rates = {
        ("Job", "FAIL"): TypeRate(50.0, 0.0, 0.1),
        ("Job", "START"): TypeRate(1.0, 0.0, 0.7),
        ("Job", "WAIT"): TypeRate(90.0, 0.0, 0.1),
    }
    with hanging("sorted") as found:
        for type in (Job.FAIL, Job.START, Job.WAIT):
            found.post(type)
        assert found.dispatcher.await_drained(WAIT_S)
        sampler = Sampler()
        sampler.type_rates = lambda view: rates  # type: ignore[method-assign]

        items = type_items(found.dispatcher.view, sampler, ["queued"])

    assert [each.event_type for each in items] == ["START", "WAIT", "FAIL"]


def test_rates_and_shares_come_from_the_sampler() -> None:
    now_s = 100.0
    sampler = Sampler(clock_s=lambda: now_s)
    with hanging("sampled") as found:
        [view] = [each for each in dispatchers() if each.name == "sampled"]
        sampler.sample()
        for _ in range(30):
            found.post(Job.START)
        assert found.dispatcher.await_drained(WAIT_S)
        now_s = 101.0
        sampler.sample()
        now_s = 110.0
        sampler.sample()

        assert sampler.rates(view) == {"1s": 0.0, "10s": 3.0, "60s": 3.0}
        assert sampler.type_rates(view)["Job", "START"].rate == 3.0
        idle_share = sampler.idle_share(view)
        assert idle_share is not None
        assert 0 <= idle_share <= 1


def test_before_the_second_sample_nothing_is_known() -> None:
    sampler, dispatcher = Sampler(), AsyncDispatcher(name="brand new")
    [view] = [each for each in dispatchers() if each.name == dispatcher.name]

    sampler.sample()

    assert sampler.rates(view) == {"1s": 0.0, "10s": 0.0, "60s": 0.0}
    assert sampler.idle_share(view) is None
    assert sampler.type_rates(view) == {}


def test_the_queue_is_counted_by_type_and_by_entity(client: Client, central: Hanging) -> None:
    central.hang()
    for entity in ("a", "b", "b"):
        central.post(Job.WAIT, entity)
    central.post(Job.START)

    by_type = client.json("/dispatchers/central/queue")
    by_entity = client.json("/dispatchers/central/queue", by="entity", limit=1)

    assert [(each["event_type"], each["queued"]) for each in by_type["items"]] == [("WAIT", 3), ("START", 1)]
    assert (by_type["approximate"], by_type["total"]) == (False, 2)
    assert by_entity["items"] == [{"entity": "b", "queued": 2}]
    assert client.json("/dispatchers/central")["queue"]["oldest_wait_s"] >= 0


def test_types_of_one_name_are_counted_together(client: Client, central: Hanging) -> None:
    """/types showed the number of one of them only, and /queue showed two items that nobody could tell apart."""
    other = Enum("Job", ["WAIT"])
    central.dispatcher.register(other, central.handle)
    central.hang()
    central.post(Job.WAIT)
    central.post(other.WAIT)  # type: ignore[attr-defined]
    central.post(other.WAIT)  # type: ignore[attr-defined]

    queue = client.json("/dispatchers/central/queue")["items"]
    types = client.json("/dispatchers/central/types")["items"]

    assert queue == [{"event_class": "Job", "event_type": "WAIT", "queued": 3}]
    assert item(types, event_type="WAIT")["queued"] == 3


def test_nothing_runs_in_an_idle_dispatcher(client: Client, central: Hanging) -> None:
    assert central.dispatcher.await_drained(WAIT_S)

    assert client.json("/dispatchers/central/running") is None
    found = client.json("/dispatchers/central/running", samples=2, interval_ms=1)
    assert found == {"samples": 2, "interval_ms": 1, "idle": 2, "stacks": []}


def test_what_runs_is_shown_with_its_stack(client: Client, central: Hanging) -> None:
    central.hang("job 1")

    found = client.json("/dispatchers/central/running")

    assert (found["kind"], found["event_class"], found["event_type"]) == ("event", "Job", "HANG")
    assert (found["entity"], found["description"]) == ("job 1", "")
    assert found["running_s"] > 0
    assert found["since"] > 1_600_000_000_000
    ours = [frame["function"] for frame in found["stack"] if frame.get("internal")]
    theirs = [frame for frame in found["stack"] if not frame.get("internal")]
    assert "_run" in ours
    [here] = [frame for frame in theirs if frame["function"] == "hang_here"]
    assert here["file"] == __file__.replace("test_ops_dispatchers.py", "client.py")
    assert here["code"] == "self.release.wait(WAIT_S)"
    assert here["line"] > 1
    assert theirs.index(here) > theirs.index(item(theirs, function="handle")), "outermost first"
    assert client.json("/dispatchers/central")["running"].keys() == found.keys() - {"stack"}


def test_a_mail_that_runs_is_shown_with_its_description(client: Client, central: Hanging) -> None:
    central.dispatcher.mailbox_executor.execute(central.hang_here, "count %s", "sheep")
    assert central.entered.wait(WAIT_S)

    found = client.json("/dispatchers/central/running")

    assert (found["kind"], found["event_class"], found["event_type"]) == ("mail", "(mail)", "")
    assert found["description"] == "count sheep"


def test_samples_are_folded_and_counted(client: Client, central: Hanging) -> None:
    central.hang()

    found = client.json("/dispatchers/central/running", samples=5, interval_ms=2)

    assert (found["samples"], found["idle"]) == (5, 0)
    assert sum(stack["count"] for stack in found["stacks"]) == 5
    assert "hang_here" in [frame["function"] for frame in found["stacks"][0]["stack"]]


def test_samples_are_taken_one_at_a_time_and_an_answer_is_kept(central: Hanging) -> None:
    app = ops_app()
    client = Client(app)
    path = "/dispatchers/central/running"

    async def race() -> list[int]:
        first = asyncio.ensure_future(client.send("GET", path, params={"samples": 7, "interval_ms": 40}))
        while not stacks.samples.is_making():
            await asyncio.sleep(0)
        second = await client.send("GET", path, params={"samples": 3, "interval_ms": 1})
        return [(await first).status_code, second.status_code, int(second.headers["retry-after"])]

    assert asyncio.run(race()) == [200, 429, 1]
    central.hang()
    assert client.json(path, samples=7, interval_ms=40)["idle"] == 7, "as it was before the handler hung"


def test_failures_come_newest_first_in_pages(client: Client, central: Hanging) -> None:
    for number in range(3):
        central.post(Job.FAIL, f"job {number}")
    assert central.dispatcher.await_drained(WAIT_S)

    first = client.json("/dispatchers/central/failures", limit=2)
    second = client.json("/dispatchers/central/failures", limit=2, after=first["next"])

    assert [each["entity"] for each in first["items"]] == ["job 2", "job 1"]
    assert [each["entity"] for each in second["items"]] == ["job 0"]
    assert (first["total"], second["next"]) == (3, None)
    newest = first["items"][0]
    assert (newest["number"], newest["event_class"], newest["event_type"]) == (3, "Job", "FAIL")
    assert (newest["error_class"], newest["message"]) == ("ValueError", "no such job\njob 2")
    assert any("raise ValueError" in frame for frame in newest["frames"])


def test_a_failed_dispatcher_says_why(client: Client) -> None:
    dispatcher = AsyncDispatcher(name="failing")
    dispatcher.register(Job, _raise, on_error="stop")
    with dispatcher:
        dispatcher.event_handler.handle(JobEvent(Job.START))
        assert dispatcher.wait_for_service_to_stop(WAIT_S)

    assert client.json("/dispatchers/failing")["failure"] == "RuntimeError: on strike"
    assert client.json("/dispatchers/failing")["state"] == "STOPPED"


def _raise(event: JobEvent) -> None:
    raise RuntimeError("on strike")
