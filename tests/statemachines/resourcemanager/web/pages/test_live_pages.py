"""Live updates: a page's own address as a stream of events, with what has changed and nothing else."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest

from dispatcher import HealthAnswer
from dispatcher.supervision.health import HealthWarning

from ....simulation.replays import TIMEOUT_S
from ..front import Front, front, until
from ..inner import application, site
from .test_page_contents import submit

pytestmark = pytest.mark.long

EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture
def made() -> Iterator[Front]:
    with front() as started:
        yield started


def number_of(page: str) -> int:
    [found] = re.findall(r'data-number="(-?\d+)"', page)
    return int(found)


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def is_settled(made: Front, app_id: str) -> bool:
    """Whether the pages know that it waits for a node: nothing changes any more."""
    attempt = f"{app_id.replace('application', 'appattempt')}_000001"
    answer = made.get(f"/apps/{app_id}/appattempts/{attempt}")
    return answer.status_code == 200 and answer.json()["appAttempt"]["appAttemptState"] == "SCHEDULED"


def test_a_new_application_reaches_the_list_and_old_rows_are_not_sent_again(made: Front) -> None:
    first = submit(made, name="first", user="ann")
    until(lambda: is_settled(made, first), "it waits for a node")
    until(lambda: "the cluster has no nodes" in made.http.get("/cluster/apps").text, "the page tells of it")
    with made.http.stream("GET", "/cluster/apps", params={"live": 0}, headers=EVENTS) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        changes = events(answer.iter_lines())
        begin = next(each for each in changes if first in each.get("rows", {}).get("html", {}))
        second = submit(made, name="second", user="ann")
        later = next(each for each in changes if second in each.get("rows", {}).get("html", {}))
        # On a busy machine the page may lack a part at first: then it has no number.
        whole = next(each for each in chain([later], changes) if each["number"] >= 0)

    assert "part-figures" in begin["parts"]
    assert later["rows"]["order"] == [second, first]
    assert first not in later["rows"]["html"]
    assert whole["number"] > begin["number"]


def test_a_client_that_has_the_present_page_is_sent_only_the_notice(made: Front) -> None:
    app_id = submit(made, name="it", user="ann")
    until(lambda: app_id in made.http.get("/cluster/apps").text, "it is listed")
    first: dict[str, Any] = {}

    def is_sent_to_a_client_that_is_up_to_date() -> bool:
        number = number_of(made.http.get("/cluster/apps").text)
        with made.http.stream("GET", "/cluster/apps", params={"live": number}, headers=EVENTS) as answer:
            first.clear()
            first.update(next(events(answer.iter_lines())))
        return number >= 0 and bool(first["number"] == number)

    until(is_sent_to_a_client_that_is_up_to_date, "nothing changes between the page and the stream")
    assert set(first["parts"]) == {"part-notice"}
    assert "rows" not in first


def test_what_changes_while_a_page_is_made_is_sent_to_it_afterwards(
    made: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    app_id = submit(made, name="it", user="ann")
    until(lambda: app_id in made.http.get("/cluster/apps").text, "it is listed")
    is_being_made, history_of = threading.Event(), application.history_of

    async def after_the_kill(site: Any, id: str, sight: Any) -> Any:
        is_being_made.set()
        while site.model.apps[id].state != "KILLED":
            await site.model.changed(site.model.number)
        return await history_of(site, id, sight)

    path = f"/cluster/app/{app_id}"
    monkeypatch.setattr(application, "history_of", after_the_kill)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(made.http.get, path)
        assert is_being_made.wait(TIMEOUT_S)
        made.manager.clients.force_kill_application(app_id)
        page = answer.result().text
    with made.http.stream("GET", path, params={"live": number_of(page)}, headers=EVENTS) as stream:
        heads = (each.get("parts", {}).get("part-head", "") for each in events(stream.iter_lines()))
        head = next(each for each in heads if each)

    assert "KILLED" not in page.partition('id="part-waiting"')[0]
    assert "KILLED" in head


def test_while_the_handler_hangs_a_red_bar_says_what_it_does_and_since_when(made: Front) -> None:
    pattern = (
        r'<p class="alert">As of <time [^>]*>\d\d:\d\d:\d\d UTC</time>, [\d.]+ (?:ms|s) ago\. '
        r"The handler thread has been running hang for \d+ s\. "
        r'<a href="/cluster/dispatcher#ResourceManager">Its stack</a></p>'
    )
    with made.hanging(), made.http.stream("GET", "/cluster", params={"live": 0}, headers=EVENTS) as answer:
        notices = (each.get("parts", {}).get("part-notice", "") for each in events(answer.iter_lines()))
        notice = next(each for each in notices if "alert" in each)
        page, stack = made.http.get("/cluster").text, made.http.get("/cluster/dispatcher").text

    assert re.search(pattern, notice)
    assert re.search(pattern, page)
    assert "a mail: <strong>hang</strong>" in stack
    assert "goes_on.wait" in stack
    until(lambda: "The handler thread has been" not in made.http.get("/cluster").text, "the bar is gone")


def test_a_page_tells_of_signs_of_trouble(made: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    warning = HealthWarning("events_fail", "<central>", "20 of the last 150 events Work.DONE failed")
    monkeypatch.setattr(site.health, "ready", lambda **_: HealthAnswer(True, "degraded", (), 1.0, (warning,)))

    page = made.http.get("/cluster").text

    assert '<p class="alert">&lt;central&gt;: events_fail, 20 of the last 150 events Work.DONE failed. </p>' in page


def test_a_page_says_what_it_does_not_know_while_the_handler_hangs_and_is_sent_it_afterwards(made: Front) -> None:
    app_id = submit(made, name="it", user="ann")
    page = f"/cluster/app/{app_id}"
    until(lambda: is_settled(made, app_id), "it waits for a node")
    made.door.app.state.rm.waits.kept.clear()
    with made.hanging():
        shown, listed = made.http.get(page).text, made.http.get("/cluster/apps").text

    with made.http.stream("GET", page, params={"live": number_of(shown)}, headers=EVENTS) as answer:
        parts = (each.get("parts", {}).get("part-waiting", "") for each in events(answer.iter_lines()))
        told = next(each for each in parts if "the cluster has no nodes" in each)

    assert "Not known now: the handler thread has not answered yet." in shown
    assert '<td class="why"><span class="soft">not known now</span></td>' in listed
    assert "Not known now" not in told


def test_a_page_on_which_nothing_changes_is_sent_signs_of_life(made: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs was taken for one in which nothing happens."""
    monkeypatch.setattr(site, "SIGN_OF_LIFE_S", 0.0)
    with made.http.stream("GET", "/cluster/scheduler", headers=EVENTS) as answer:
        sign = next(each for each in events(answer.iter_lines()) if "parts" not in each)

    assert set(sign) == {"now", "as_of"}
    assert sign["as_of"] <= sign["now"]


def test_a_stream_of_a_page_that_is_gone_says_so(made: Front) -> None:
    path = "/cluster/app/application_1_0001"

    with made.http.stream("GET", path, headers=EVENTS) as answer:
        first = next(events(answer.iter_lines()))

    assert first["gone"] is True
