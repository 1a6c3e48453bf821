"""Why an application waits, over HTTP; and how often the handler thread is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from concurrent.futures import Future
from typing import Any

import pytest

from ..inner import WaitCause, WaitingReport, WaitingReports, WaitReason, waits
from .front import front, message, until

pytestmark = pytest.mark.long

PATH = "/api/v1/apps/{}/waiting"
MOST = 100
"""Applications in a question."""


@pytest.mark.usefixtures("patient_waits")
def test_an_application_without_nodes_says_that_there_are_none() -> None:
    with front() as made:
        app_id = made.submit()
        until(lambda: made.http.get(PATH.format(app_id)).json()["asks"] != [], "its master is asked for")
        answer = made.http.get(PATH.format(app_id)).json()

    [ask] = answer["asks"]
    assert answer["application_id"] == app_id
    assert "no nodes" in answer["sentence"]
    assert answer["reason"]["cause"] == "NO_NODES"
    assert (ask["resource"], ask["count"]) == ({"memory_mb": 1, "vcores": 1.0}, 1)
    assert ask["since_ms"] <= answer["as_of_ms"]


@pytest.mark.usefixtures("patient_waits")
def test_unknown_applications_wrong_ids_and_other_users_get_errors() -> None:
    with front(scheduler={"acl_administer_queue": " "}) as made:
        app_id = made.submit(user="alice")
        statuses = [
            made.http.get(PATH.format(each), params={"user.name": user}).status_code
            for each, user in ((app_id, "alice"), (app_id, "bob"), ("application_1_0001", "alice"), ("x", "alice"))
        ]

    assert statuses == [200, 403, 404, 400]


def test_while_the_handler_hangs_the_answer_is_503_within_a_second_or_so() -> None:
    with front() as made:
        app_id = made.submit()
        with made.hanging():
            answer = made.http.get(PATH.format(app_id))

    assert answer.status_code == 503
    assert "within 1 s" in message(answer)


class Desk:
    """Answers each question at once, unless it fails or owes the answer, and counts."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.times_s: list[float] = []
        self.answers: list[Future[list[WaitingReport]]] = []
        self.error: Exception | None = None
        self.owes = False

    def __call__(self, app_ids: Collection[str]) -> Future[list[WaitingReport]]:
        self.asked.append(tuple(app_ids))
        self.times_s.append(asyncio.get_running_loop().time())
        self.answers.append(Future())
        if self.error is not None:
            self.answers[-1].set_exception(self.error)
        elif not self.owes:
            self.tell(len(self.asked) - 1)
        return self.answers[-1]

    def tell(self, question: int) -> None:
        reason = WaitReason(WaitCause.NO_ROOM, f"answer {question + 1}")
        known = [each for each in self.asked[question] if each != "unknown"]
        self.answers[question].set_result([WaitingReport(each, 0, reason) for each in known])


def at_once(page: Coroutine[Any, Any, waits.Known]) -> waits.Known:
    """What it has found at its first step: it has waited for nothing."""
    with pytest.raises(StopIteration) as made:
        page.send(None)
    found: waits.Known = made.value.value
    return found


def grow_old(waits: WaitingReports, s: float, *apps: str) -> None:
    """What is kept of these applications is so much older."""
    for each in apps:
        waits.kept[each] = waits.kept[each][0] - s, waits.kept[each][1]


def test_whoever_asks_at_the_same_time_shares_a_question() -> None:
    desk = Desk()

    async def ask() -> list[set[str]]:
        waits = WaitingReports(desk)
        found = await asyncio.gather(*(waits.reports([f"a{number % 3}", "unknown"]) for number in range(50)))
        return [set(each) for each in found]

    found = asyncio.run(ask())

    assert found == [{f"a{number % 3}"} for number in range(50)]
    assert len(desk.asked) == 1


def test_the_handler_thread_is_asked_ten_times_a_second_at_most_and_for_a_limited_number() -> None:
    desk = Desk()

    async def ask() -> float:
        begun_s = asyncio.get_running_loop().time()
        await WaitingReports(desk).reports([f"a{number}" for number in range(3 * MOST)])
        return begun_s

    begun_s = asyncio.run(ask())

    assert [len(each) for each in desk.asked] == [MOST] * 3
    # From the begin on: on a busy machine, a question comes later than it was meant to, and the next one soon after it.
    assert all(at_s - begun_s > 0.099 * number for number, at_s in enumerate(desk.times_s))


def test_a_failed_question_fails_for_those_who_asked_and_the_next_one_succeeds() -> None:
    desk = Desk()
    desk.error = RuntimeError("no")

    async def ask() -> set[str]:
        waits = WaitingReports(desk)
        with pytest.raises(RuntimeError, match="no"):
            await waits.reports(["a"])
        desk.error = None
        return set(await waits.reports(["a"]))

    assert asyncio.run(ask()) == {"a"}


def test_why_applications_wait_is_kept_for_a_second_and_longer_when_nothing_is_told() -> None:
    desk, seen = Desk(), []

    async def course() -> None:
        waits = WaitingReports(desk)

        async def look() -> None:
            found = await waits.known(["a", "unknown"])
            seen.append({id: report.sentence for id, report in found.reports.items()})

        await look()
        await look()
        desk.error = TimeoutError("the handler thread hangs")
        grow_old(waits, 10, *waits.kept)
        await look()

    asyncio.run(course())

    assert seen == [{"a": "answer 1"}] * 3
    assert desk.asked[0] == ("a", "unknown")
    assert "a" not in desk.asked[1]


def test_a_handler_thread_that_owes_an_answer_holds_up_no_further_page() -> None:
    """Each page waited for a second while a handler hung."""
    desk = Desk()
    desk.owes = True

    async def course() -> tuple[list[waits.Known], waits.Known]:
        waits = WaitingReports(desk)
        pages = [await waits.known(["a"]), at_once(waits.known(["a"])), at_once(waits.known(["b"]))]
        desk.owes = False
        desk.tell(0)
        await waits.reports(["b"])
        return pages, await waits.known(["a"])

    pages, afterwards = asyncio.run(course())

    assert [(dict(page.reports), set(page.late)) for page in pages] == [({}, {"a"}), ({}, {"a"}), ({}, {"b"})]
    assert (set(afterwards.reports), afterwards.late) == ({"a"}, frozenset())


def test_a_page_waits_for_nothing_while_a_handler_is_known_to_hang() -> None:
    """A page that came once a second waited for 30 ms each time, as long as the handler hung."""

    async def course() -> waits.Known:
        return at_once(WaitingReports(lambda _: Future(), lambda: True).known(["a"]))

    assert asyncio.run(course()) == ({}, {"a"})


def test_why_applications_waited_is_forgotten_once_no_reader_has_asked_for_a_while() -> None:
    """It was kept of the last 5,000 applications, long after these had gone."""

    async def course() -> set[str]:
        reports = WaitingReports(Desk())
        await reports.known(["old", "older"])
        await reports.known(["new"])
        grow_old(reports, waits.KEPT_S + 1, "old", "older")
        await reports.known(["another"])
        return set(reports.kept)

    assert asyncio.run(course()) == {"new", "another"}
