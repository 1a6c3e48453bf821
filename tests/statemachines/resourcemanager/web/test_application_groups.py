"""Waiting applications by cause and failed ones by reason, on the pages, over REST, and in the CSV."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import httpx
import pytest

from ...simulation.replays import TIMEOUT_S
from ..daemon.yarn_cluster import Yarn
from ..inner import ApplicationReport, AppWait, FailureCause, ReadModel, WaitCause, wait_groups
from ..inner import failures as of_failures
from .front import until
from .served import BASE, Served

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("patient_waits")]

WAITING = "/cluster/apps/ACCEPTED,SUBMITTED,NEW_SAVING,NEW"
FAILED = "/cluster/apps/FAILED"
QUEUES = [{"name": name, "capacity": 50, "maximum_am_resource_percent": 40} for name in ("a", "b")]
SCHEDULER = {"kind": "capacity", "acl_administer_queue": "admin", "queues": QUEUES}


class Cluster(NamedTuple):
    yarn: Yarn
    served: Served

    def text(self, path: str, user: str = "admin") -> str:
        self.served.publish()
        answer = self.served.ask(f"/{path}", params={**dict(httpx.URL(path).params), "user.name": user})
        assert answer.status_code == 200, answer.text
        return str(answer.text)

    def json(self, path: str, user: str = "admin") -> Any:
        return json.loads(self.text(path, user))

    def waiting(self, user: str = "admin") -> dict[str, Any]:
        """Once the cause of each is known."""
        found: dict[str, Any] = {}

        def is_known() -> bool:
            found.update(self.json("/api/v1/waiting", user))
            return all(each["cause"] is not None for each in found["groups"])

        until(is_known, "all causes are known")
        return found

    def rows(self, path: str, user: str = "admin") -> list[str]:
        """The ids in a list."""
        return re.findall(r'<tr data-key="(\w+)"', self.text(path, user))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """In root.a a master starts, and 2 applications wait for the limit of masters; in root.b, a master starts.

    In root.b 3 have failed: 2 of ann's with exit status 137, a minute apart, and one that bob has failed.
    """
    with Yarn("n1", expiry_ms=600_000, scheduler=SCHEDULER) as yarn, Served(yarn.manager) as served:
        failed = [yarn.submit("dies", queue="b", user="ann", max_attempts=1) for _ in range(2)]
        for container in list(yarn.started):
            yarn.launch(container)
            yarn.advance(60_000)
            yarn.end(container, 137, "out of memory\nand more" + "x" * 300)
        assert [yarn.states(each)[0] for each in failed] == ["FAILED", "FAILED"]
        yarn.clients.fail_application_attempt(
            yarn.submit("failed", queue="b", user="bob", max_attempts=1).replace("application", "appattempt")
            + "_000001"
        )
        yarn.advance(1_000)
        yarn.submit("starts", am_mb=3, queue="a", user="ann")
        yarn.advance(5_000)
        for user in ("ann", "bob"):
            yarn.submit("waits", am_mb=3, queue="a", user=user)
        yarn.submit("waits", am_mb=6, queue="b", user="bob")
        yarn.advance(7_000)
        yield Cluster(yarn, served)


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_waiting_is_one_number(cluster: Cluster) -> None:
    """The page of queues counted those whose master the limit of its queue held up, and of FIFO's queue none."""
    queues = re.sub(r"<[^>]+>", "", cluster.text("/cluster/scheduler"))
    page = re.sub(r"<[^>]+>", "", cluster.text(WAITING))
    beans = {
        bean["tag.Queue"]: bean["AppsPending"]
        for bean in cluster.json("/jmx")["beans"]
        if bean["name"].startswith("Hadoop:service=ResourceManager,name=QueueMetrics")
    }
    statistics = cluster.json(f"{BASE}/appstatistics")["appStatInfo"]["statItem"]

    assert re.findall(r"(\d+) waiting", queues) == ["4", "3", "1"]
    assert re.findall(r"Waiting to start (\d+)", page) == ["4"]
    assert re.findall(r"Waiting to start\s*(\d+)", page) == ["4", "4"]
    assert beans == {"root": 4, "root.a": 3, "root.b": 1}
    assert cluster.json(f"{BASE}/metrics")["clusterMetrics"]["appsPending"] == 4
    assert sum(each["count"] for each in statistics if each["state"] in WAITING) == 4
    assert cluster.waiting()["waiting"] == len(cluster.rows(WAITING)) == 4


def test_waiting_applications_are_grouped_by_cause_with_counts_and_since_when(cluster: Cluster) -> None:
    now_ms = cluster.yarn.context.now_ms()

    found = cluster.waiting()

    shown = [
        (each["cause"], each["applications"], now_ms - each["since_ms"], each["queues"]) for each in found["groups"]
    ]
    assert shown == [("MASTER_STARTING", 2, 12_000, {"a": 1, "b": 1}), ("AM_LIMIT", 2, 7_000, {"a": 2})]
    assert found["hidden"] == 0


def test_a_group_leads_to_its_applications_and_a_row_says_its_cause(cluster: Cluster) -> None:
    cluster.waiting()
    page = cluster.text(WAITING)

    links = re.findall(rf'href="({WAITING}\?cause=\w+)"', page)

    counts = {link.partition("=")[2]: len(cluster.rows(link)) for link in links}
    assert counts == {each["cause"]: each["applications"] for each in cluster.waiting()["groups"]}
    row = cluster.text(f"{WAITING}?cause=MASTER_STARTING").partition("<tr data-key")[2]
    assert 'title="its master has container ' in row
    assert f">{WaitCause.MASTER_STARTING.value}: <span" in row
    assert "Only: its master has not registered yet" in cluster.text(f"{WAITING}?cause=MASTER_STARTING")


def test_a_user_sees_the_groups_of_its_own_applications_and_how_many_are_hidden(cluster: Cluster) -> None:
    everything, own = cluster.waiting(), cluster.waiting("ann")

    assert (own["waiting"], own["hidden"], sum(each["applications"] for each in own["groups"])) == (4, 2, 2)
    assert sum(each["applications"] for each in everything["groups"]) == 4
    assert len(cluster.rows(f"{WAITING}?cause=AM_LIMIT", "ann")) == 1
    assert "not shown to you" in cluster.text(WAITING, "ann").partition('id="part-pager"')[0]


# -- failed ------------------------------------------------------------------------------------------------------------


def test_the_failed_list_has_time_reason_and_exit_status_and_no_progress(cluster: Cluster) -> None:
    """It had neither, and drew the progress of a failed master as a full bar."""
    page = cluster.text(FAILED)

    heads = [re.sub("<[^>]+>", "", each) for each in re.findall(r"<th [^>]*>(.*?)</th>", page.partition('="rows"')[0])]
    rows = page.partition('id="rows"')[2].partition("</table>")[0]
    assert heads[-5:] == ["State", "Finished", "Elapsed", "Exit status", "Reason"]
    assert rows.count("<time ") == 3
    assert re.findall(r'data-label="exit">(\d+)<', rows) == ["137", "137"]
    assert "its master exited with 137 (SIGKILL): <span" in rows
    assert '<span class="soft">out of memory' in rows
    assert '<svg class="bar"' not in rows
    assert '<svg class="bar"' not in cluster.text("/cluster/apps?user=ann&q=dies").partition('id="rows"')[2]


def test_failures_are_counted_by_reason_and_minute(cluster: Cluster) -> None:
    found = cluster.json("/api/v1/failures")

    groups = {(each["reason"], each["exit_status"]): each for each in found["groups"]}
    assert {key: each["applications"] for key, each in groups.items()} == {("EXITED", 137): 2, ("BY_USER", None): 1}
    assert groups["EXITED", 137]["minutes"][-3:] == [0, 1, 1]
    assert sum(groups["BY_USER", None]["minutes"]) == 1
    assert (found["failed"], found["hidden"]) == (3, 0)
    assert [(each["reason"], each["exit_status"]) for each in found["last"]] == [
        ("BY_USER", None),
        ("EXITED", 137),
        ("EXITED", 137),
    ]
    links = re.findall(rf'href="({FAILED}\?reason=[^"]*)"', cluster.text(FAILED))
    assert [len(cluster.rows(link.replace("&amp;", "&"))) for link in links] == [2, 1]


def test_a_user_sees_failures_of_its_own_applications(cluster: Cluster) -> None:
    found = cluster.json("/api/v1/failures", "bob")

    assert (found["failed"], found["hidden"], [each["reason"] for each in found["groups"]]) == (3, 2, ["BY_USER"])
    assert [each["user"] for each in found["last"]] == ["bob"]
    assert cluster.rows(f"{FAILED}?reason=EXITED", "bob") == cluster.rows(f"{FAILED}?exit=137", "bob") == []
    assert len(cluster.rows(f"{FAILED}?exit=137", "ann")) == 2


def test_the_csv_has_causes_and_exit_statuses(cluster: Cluster) -> None:
    cluster.waiting()

    rows = list(csv.DictReader(io.StringIO(cluster.text("/cluster/apps?format=csv", "ann"))))

    said = [(row["user"], row["wait_cause"], row["exit_status"], row["failure"]) for row in rows]
    assert said.count(("ann", "", "137", "EXITED")) == 2
    assert said.count(("ann", "MASTER_STARTING", "", "")) == 1
    assert said.count(("bob", "", "", "")) == 3


@pytest.mark.parametrize("query", ["cause=nothing", "reason=nothing", "exit=x", "exit=--1", "exit=1e3"])
def test_a_group_that_there_is_not_is_an_error(cluster: Cluster, query: str) -> None:
    answers = [cluster.served.ask(f"//cluster/apps?{query}{more}") for more in ("", "&format=csv")]

    assert [answer.status_code for answer in answers] == [400, 400]


# -- counting ----------------------------------------------------------------------------------------------------------


def failed(exit_status: int, finish_ms: int, user: str = "ann") -> ApplicationReport:
    fields: dict[str, Any] = {"user": user, "queue": "a", "launch": None, "failure": FailureCause.EXITED}
    return cast(Any, SimpleNamespace(**fields, exit_status=exit_status, start_ms=0, finish_ms=finish_ms))


def everybody(app: ApplicationReport) -> bool:
    return True


def test_old_failures_leave_the_minutes_and_forgotten_ones_the_count() -> None:
    failures, old = of_failures.Failures(), failed(1, 60_000)
    for finish_ms in (60_000, 3_600_000, 3_600_001):
        failures.take(failed(1, finish_ms), 1)

    [before] = failures.groups(everybody, 3_605_000)
    failures.take(old, -1)
    [after] = failures.groups(everybody, 3_605_000 + (of_failures.MINUTES - 1) * 60_000)
    [last] = failures.groups(everybody, 3_605_000 + (of_failures.MINUTES + 1) * 60_000)

    assert (before.apps, before.last_ms, before.minutes[-2:], sum(before.minutes)) == (3, 3_600_001, (0, 2), 2)
    assert (before.a_minute(1), before.a_minute(5)) == (2, 0.4)
    assert (after.apps, after.minutes[0], sum(after.minutes)) == (2, 2, 2)
    assert (last.apps, sum(last.minutes)) == (2, 0)


def test_the_smaller_groups_are_one() -> None:
    failures = of_failures.Failures()
    for status in range(of_failures.MOST + 5):
        for _ in range(status + 1):
            failures.take(failed(status, 1_000 + status), 1)

    groups = failures.groups(everybody, 2_000)

    assert [each.exit_status for each in groups] == [*range(of_failures.MOST + 4, 5, -1), None]
    assert (groups[-1].cause, groups[-1].apps, sum(groups[-1].minutes)) == (None, 21, 21)


def test_a_flood_of_failures_keeps_the_last_minutes_only() -> None:
    failures = of_failures.Failures()
    for at_s in range(0, 7_200, 10):
        failures.take(failed(1, at_s * 1_000), 1)

    [group] = failures.groups(everybody, 7_199_000)

    assert (group.apps, group.minutes) == (720, (6,) * of_failures.MINUTES)


class Model:
    """With so many waiting applications."""

    def __init__(self, apps: int) -> None:
        self.number = 1
        self.apps = {f"a{number}": waits(f"a{number}") for number in range(apps)}

    def apps_in(self, states: Collection[str]) -> Collection[Any]:
        return self.apps.values()


def waits(id: str) -> Any:
    return SimpleNamespace(application_id=id, user="ann", queue="a", launch=None, start_ms=5)


def answered(app_ids: Collection[str], cause: WaitCause = WaitCause.NO_ROOM) -> Future[list[AppWait]]:
    answer: Future[list[AppWait]] = Future()
    answer.set_result([AppWait(each, cause, 3) for each in app_ids])
    return answer


def seen(model: Model, ask: Callable[[Collection[str]], Future[list[AppWait]]], rounds: int = 1) -> list[Any]:
    """The groups after so many rounds."""

    async def look() -> list[Any]:
        groups = wait_groups.WaitGroups(cast(ReadModel, model), ask)
        found = []
        for _ in range(rounds):
            groups.follow()
            async with asyncio.timeout(TIMEOUT_S):
                while not (found := await groups.groups(everybody)) or found[0].cause is None:
                    await groups.fresh()
            await groups.close()
        return found

    return asyncio.run(look())


def test_the_handler_thread_is_asked_about_a_thousand_at_a_time() -> None:
    asked: list[int] = []

    def ask(app_ids: Collection[str]) -> Future[list[AppWait]]:
        asked.append(len(app_ids))
        return answered(app_ids)

    [group] = seen(Model(2 * wait_groups.AT_ONCE + 7), ask)

    assert asked == [wait_groups.AT_ONCE, wait_groups.AT_ONCE, 7]
    assert (group.cause, group.apps, group.since_ms) == (WaitCause.NO_ROOM, 2 * wait_groups.AT_ONCE + 7, 3)


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
def test_a_question_that_ends_without_an_answer_is_put_again(end: str, caplog: pytest.LogCaptureFixture) -> None:
    """A handler thread that stops cancels what it is asked. That ended the rounds: each page waited for one in vain."""
    questions: list[object] = []

    def ask(app_ids: Collection[str]) -> Future[list[AppWait]]:
        questions.append(app_ids)
        answer = answered(app_ids)
        if len(questions) == 1:
            if end == "fails":
                raise RuntimeError("no")
            answer = Future()
            answer.cancel()
        return answer

    [group] = seen(Model(2), ask)

    assert (group.cause, group.apps) == (WaitCause.NO_ROOM, 2)
    assert ("could not be grouped by cause" in caplog.text) or end == "is cancelled"


def test_before_the_first_answer_and_while_the_handler_hangs_the_cause_is_not_known_and_nobody_waits() -> None:
    async def look() -> list[Any]:
        groups = wait_groups.WaitGroups(cast(ReadModel, Model(2)), lambda ids: Future(), lambda: True)
        async with asyncio.timeout(TIMEOUT_S):
            await groups.fresh()
        found = await groups.groups(everybody)
        await groups.close()
        return found

    [group] = asyncio.run(look())

    assert (group.cause, group.apps, group.since_ms) == (None, 2, 5)


def test_one_publication_and_round_is_grouped_once() -> None:
    model = Model(3)
    looked: list[object] = []
    model.apps_in = lambda states: looked.append(states) or model.apps.values()  # type: ignore[assignment, method-assign, func-returns-value]

    async def look() -> None:
        groups = wait_groups.WaitGroups(cast(ReadModel, model), answered)
        await asyncio.gather(*(groups.groups(everybody) for _ in range(20)))

    asyncio.run(look())

    assert len(looked) == 1
