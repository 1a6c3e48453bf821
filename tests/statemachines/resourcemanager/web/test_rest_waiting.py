"""Why an application waits, over HTTP; and how often the handler thread is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import Future

import pytest

from ..inner import WaitingReport, WaitingReports
from .front import front, message, until

pytestmark = pytest.mark.long

PATH = "/api/v1/apps/{}/waiting"
MOST = 100
"""Applications in a question."""


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
    """Answers each question at once, and counts."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.times_s: list[float] = []

    def __call__(self, app_ids: Collection[str]) -> Future[list[WaitingReport]]:
        self.asked.append(tuple(app_ids))
        self.times_s.append(asyncio.get_running_loop().time())
        answer: Future[list[WaitingReport]] = Future()
        answer.set_result([WaitingReport(each, 1, None) for each in app_ids if each != "unknown"])
        return answer


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

    async def ask() -> None:
        await WaitingReports(desk).reports([f"a{number}" for number in range(3 * MOST)])

    asyncio.run(ask())

    assert [len(each) for each in desk.asked] == [MOST] * 3
    assert all(later - earlier > 0.09 for earlier, later in zip(desk.times_s, desk.times_s[1:], strict=False))


def test_a_failed_question_fails_for_those_who_asked_and_the_next_one_succeeds() -> None:
    desk = Desk()

    def refuses(app_ids: Collection[str]) -> Future[list[WaitingReport]]:
        if not desk.asked:
            desk(app_ids)
            answer: Future[list[WaitingReport]] = Future()
            answer.set_exception(RuntimeError("no"))
            return answer
        return desk(app_ids)

    async def ask() -> set[str]:
        waits = WaitingReports(refuses)
        with pytest.raises(RuntimeError, match="no"):
            await waits.reports(["a"])
        return set(await waits.reports(["a"]))

    assert asyncio.run(ask()) == {"a"}
