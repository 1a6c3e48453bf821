"""The pages' contents over HTTP: complete without JavaScript, small, and never with foreign markup."""

from __future__ import annotations

import csv
import gzip
import io
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from dispatcher import AsyncDispatcher, Event, JournalWriter, MetricsServer
from dispatcher.ops import dispatchers as of_dispatchers
from statemachines import Entities, StateMachineFactory
from statemachines.resourcemanager import ApplicationSubmission, Caller, ContainerStatus, Resource
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, Workload

from .....kit import OfEntity, Work
from ....simulation.replays import TIMEOUT_S
from ...inner import MemoryRMStateStore
from ..front import BASE, NODE, NODE_ID, Front, front, until

pytestmark = pytest.mark.long

NOTHING = "\N{EN DASH}"
MARKUP = "<img src=x onerror=alert(1)>\"'&</td>"
BIDI = "a\u202eb\u2066c\u200f"
PAGES = ("/cluster", "/cluster/apps", "/cluster/nodes", "/cluster/scheduler", "/cluster/dispatcher", "/cluster/process")
OF_ONE = ("/cluster/app/{app}", "/cluster/entity/{app}")
OPS = "/ops/v1/machines"
UNSEEN = set("\x00\u202e\u2066\u200f")
MOST_BYTES = 60_000


@pytest.fixture(scope="module")
def empty() -> Iterator[Front]:
    with front() as made:
        yield made


@pytest.fixture(scope="module")
def busy() -> Iterator[Front]:
    """One node, and applications that wait: one ordinary, one whose every text is hostile."""
    with front(NODE) as made:
        submit(made, name="ordinary", user="ann")
        submit(made, name=MARKUP + BIDI + "\x00\ud800", user="bob", tags=("t1",), application_type="<b>SPARK</b>")
        submit(made, name="x" * 1_000_000, user="carl")
        seen(made)
        yield made


def submit(made: Front, **fields: Any) -> str:
    """Submit an application whose master no node can take; returns its id."""
    app_id = made.manager.clients.get_new_application(timeout=TIMEOUT_S)
    submission = ApplicationSubmission(application_id=app_id, am_resource=Resource(1_000_000, 1000), **fields)
    return made.manager.clients.submit_application(submission, TIMEOUT_S)


def seen(made: Front) -> None:
    ids = made.apps()
    until(lambda: all(id in made.http.get("/cluster/apps").text for id in ids), "the pages show them")


def check_page(answer: httpx.Response) -> None:
    """What all pages have in common, whatever they show."""
    text = answer.text
    assert answer.status_code == 200
    assert text.startswith("<!DOCTYPE html>")
    assert text.rstrip().endswith("</html>")
    assert "script-src 'self'; style-src 'self'" in answer.headers["content-security-policy"]
    assert " style=" not in text
    assert "<style" not in text
    assert not re.search(r"<script(?! src=\"/cluster/static/live\.js\?v=[0-9a-f]{8}\" defer>)", text)
    assert not re.search(r"\son\w+=", text.replace("onerror=alert(1)", ""))
    assert "<img src=x" not in text
    assert not set(text) & UNSEEN
    assert len(gzip.compress(answer.content)) <= MOST_BYTES
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels)), "a heading skips a level"
    assert all("aria-label=" in each for each in re.findall(r'<svg[^>]* role="img"[^>]*>', text))


@pytest.mark.parametrize("path", [*PAGES, f"/cluster/node/{NODE_ID}", *OF_ONE])
def test_every_page_keeps_the_contract_of_pages(busy: Front, path: str) -> None:
    """Headings went from h1 to h3, and the picture of a state machine had no name."""
    for app_id in busy.apps() if path in OF_ONE else [""]:
        check_page(busy.http.get(path.format(app=app_id)))


@pytest.mark.parametrize("path", PAGES)
def test_a_cluster_without_applications_and_nodes_has_all_pages(empty: Front, path: str) -> None:
    check_page(empty.http.get(path))


def test_every_application_has_its_page_and_its_history(busy: Front) -> None:
    for app_id in busy.apps():
        page, entity = (busy.http.get(path.format(app=app_id)).text for path in OF_ONE)

        assert 'class="timeline"' in page
        shows_history(busy, app_id)
        assert re.search(r'class="state now".*?ACCEPTED', entity, re.DOTALL)
        assert re.search(r'<svg[^>]* role="img"', entity)


def shows_history(made: Front, app_id: str) -> None:
    """A page goes without a history while too many are looked up."""
    until(lambda: "APP_NEW_SAVED" in made.http.get(f"/cluster/app/{app_id}").text, "the page has its history")


def test_an_empty_list_says_so(empty: Front) -> None:
    assert "No application has been submitted yet." in empty.http.get("/cluster/apps").text
    assert "No node has registered yet." in empty.http.get("/cluster/nodes").text


def test_the_root_leads_to_the_cluster(busy: Front) -> None:
    answer = busy.http.get("/", follow_redirects=False)

    assert (answer.status_code, answer.headers["location"]) == (307, "/cluster")


def test_hostile_names_are_texts_cut_and_without_unseen_characters(busy: Front) -> None:
    text = busy.http.get("/cluster/apps").text

    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<b>SPARK" not in text
    assert "xxx..." in text
    assert len(text) < 100_000


@pytest.mark.parametrize("has_journal", [False, True])
def test_the_timeline_draws_an_application_that_has_failed_after_many_reports_as_it_was(
    tmp_path: Path, has_journal: bool
) -> None:
    """Its 200 newest transitions were reports, so that it was drawn as waiting, and its container as completed."""
    spec = ApplicationSpec(
        "job", 0, am_resource=Resource(512, 1000), containers=(ContainerSpec(Resource(1024, 1000), 3_600_000),)
    )
    with front(NODE, journal=tmp_path / "journal" if has_journal else None, nm_heartbeat_interval_ms=4) as made:
        manager = made.manager
        manager.bring(Workload("one", (), (spec,)))
        containers = manager.context.containers
        until(lambda: [each.state.name for each in list(containers.values())] == ["RUNNING"] * 2, "the task runs")

        def report() -> None:
            [attempt] = manager.context.attempts
            for _ in range(220):
                manager.masters.allocate(attempt)
            manager.tracker.heartbeat(NODE_ID, (), (ContainerStatus(max(containers), 1, "out of luck"),))

        manager.dispatcher.mailbox_executor.submit(report, "reports").result(TIMEOUT_S)
        [app_id] = made.apps()
        until(lambda: made.state(app_id) == "FINISHED", "it has finished")

        def bars(label: str) -> list[str]:
            page = made.http.get(f"/cluster/app/{app_id}").text
            found = re.search(rf">{label}</span><svg.*?</svg>", page)
            return re.findall(r'<rect class="(\w+)"', found[0]) if found else []

        until(lambda: bars("attempt 1")[-1:] == ["good"], "the attempt is drawn as finished")
        until(lambda: bars("container 2")[-1:] == ["bad"], "the container is drawn as failed")
        shown = made.http.get(f"/cluster/app/{app_id}").text

        assert manager.recorder.machines["RMAppAttempt"].transitions[("RUNNING", "RUNNING")] > 220
    assert "then COMPLETED, exit status 1" in shown


def test_the_page_of_a_waiting_application_says_why_in_a_full_sentence(busy: Front) -> None:
    [app_id] = [each.application_id for each in busy.manager.clients.get_applications() if each.user == "ann"]
    [report] = busy.manager.clients.get_waiting([app_id])
    assert report.sentence is not None
    until(lambda: "not known now" not in busy.http.get("/cluster/apps").text, "the pages know why")

    page, listed = busy.http.get(f"/cluster/app/{app_id}").text, busy.http.get("/cluster/apps").text

    sentence = report.sentence.replace("'", "&#39;")
    assert sentence in re.sub(r"</?a\b[^>]*>", "", page)
    assert f'title="{sentence}"' in listed


def test_an_ended_application_shows_no_zeros(busy: Front) -> None:
    """What it has and wants is over."""
    app_id = submit(busy, name="over", user="eve")
    busy.manager.clients.force_kill_application(app_id, timeout=TIMEOUT_S)
    until(lambda: busy.get(f"/apps/{app_id}/state").json() == {"state": "KILLED"}, "it is known as killed")

    listed, page = busy.http.get("/cluster/apps?user=eve").text, busy.http.get(f"/cluster/app/{app_id}").text

    numbers = re.findall(r'<td class="c\d number">([^<]*)</td>', listed)
    assert numbers[-3:] == [NOTHING] * 3
    assert re.findall(rf"<dd>{NOTHING}</dd>", page)
    assert "0 containers, 0 MB" not in page


def test_a_nodes_page_shows_its_use_and_history(busy: Front) -> None:
    """Its heartbeats are no part of it: they would soon leave no room for the rest."""
    assert "of 4 GB" in busy.http.get(f"/cluster/node/{NODE_ID}").text
    node = busy.manager.recorder.machines["RMNode"]
    until(lambda: node.transitions[("RUNNING", "RUNNING")] > 100, "it has reported more often than a page has rows")
    until(lambda: "STARTED" in busy.http.get(f"/cluster/node/{NODE_ID}").text, "the page has the node's history")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/cluster/nowhere", 404),
        ("/cluster/apps/DANCING", 404),
        ("/cluster/app/application_1_1", 404),
        ("/cluster/app/..%2F..%2Fetc", 404),
        ("/cluster/node/n9:1", 404),
        ("/cluster/entity/nobody", 404),
        ("/cluster/apps?sort=colour", 400),
        ("/cluster/apps?order=up", 400),
        ("/cluster/apps?after=%00%ff", 400),
        *((f"/cluster/apps?after={cursor}", 400) for cursor in ("WyJ4Il0", "!", "eyJhIjoxfQ")),
        ("/cluster/apps?before=W251bGxd", 400),
        ("/cluster/apps?sort=elapsed", 400),  # of which there is a column
        ("/cluster/scheduler?partition=nowhere", 404),
        ("/cluster/dispatcher?sort=colour", 400),
        ("/cluster?user.name=a%20b", 400),
    ],
)
def test_what_is_not_there_or_makes_no_sense_is_a_page_too(busy: Front, path: str, status: int) -> None:
    answer = busy.http.get(path)

    assert answer.status_code == status
    assert "<h1>" in answer.text
    assert "Traceback" not in answer.text
    assert ("the cursor is of another list" in answer.text) is ("WyJ4Il0" in path)


def test_pages_of_queues_and_nodes_tell_what_administrators_have_changed_and_what_has_no_effect() -> None:
    def queues(**capacities: float) -> dict[str, Any]:
        listed = [{"name": name, "capacity": capacity} for name, capacity in capacities.items()]
        return {"kind": "capacity", "queues": listed}

    store = MemoryRMStateStore()
    with front(NODE, scheduler=queues(a=60, b=40), store=lambda: store) as made:
        before = made.http.get("/cluster/scheduler").text
        admin = made.manager.admin
        admin.update_queues({"a": {"capacity": 55.5}, "b": {"capacity": 44.5}}, caller=Caller(MARKUP))
        admin.update_node_resource(NODE_ID, Resource(2048, 2000))
        admin.replace_labels_on_node(NODE_ID, MARKUP, caller=Caller("ann"))
        admin.refresh_nodes(["n9"], caller=Caller("ann"))
        seen(made)
        paths = ("/cluster/scheduler", "/cluster/nodes", f"/cluster/node/{NODE_ID}")
        changed, nodes, node = (made.http.get(path).text for path in paths)
    with front(scheduler=queues(c=100), store=lambda: store) as made:
        later = made.http.get("/cluster/scheduler").text

    mark = "<h2>Changed by administrators</h2>"
    assert mark not in before
    for page, texts in (
        (changed, ("root.a", "capacity", "55.5", "60", "&lt;img src=x")),
        (nodes, ("n9", "at once", "2 GB, 2 vcores", "4 GB, 4 vcores", "the program", "&lt;img src=x", "ann")),
        (node, ("2 GB, 2 vcores", "4 GB, 4 vcores", "&lt;img src=x")),
        (later, ("not in effect:", "there is no queue root.a")),
    ):
        _, _, found = page.partition(mark)
        assert [text for text in texts if text not in found] == []
        assert "<img" not in page
    assert "n9" not in node


def test_the_list_is_filtered_searched_and_sorted_by_the_address(busy: Front) -> None:
    def names(query: str) -> list[str]:
        return re.findall(r"<bdi>(ann|bob|carl)</bdi></td>", busy.http.get(f"/cluster/apps{query}").text)

    assert names("") == ["carl", "bob", "ann"]
    assert names("?sort=user") == ["ann", "bob", "carl"]
    assert names("?sort=user&order=desc") == ["carl", "bob", "ann"]
    assert names("?user=bob") == ["bob"]
    assert names("?q=ORDINARY") == ["ann"]
    assert names("/ACCEPTED") == ["carl", "bob", "ann"]
    assert names("/FINISHED") == []


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("\t=1\n\u202e", r"\t=1\n\u202e"),
        ("-" * 6000, "'" + "-" * 5000),
        ('a,"b', 'a,"b'),
    ],
    ids=["formula", "unseen", "long", "quoted"],
)
def test_the_filtered_list_is_also_csv_that_is_safe_in_a_spreadsheet(busy: Front, name: str, cell: str) -> None:
    app_id = submit(busy, name=name, user="dave")
    until(lambda: busy.get(f"/apps/{app_id}/state").json() == {"state": "ACCEPTED"}, "it is known as accepted")

    answer = busy.http.get("/cluster/apps?user=dave&format=csv")

    row = next(row for row in csv.DictReader(io.StringIO(answer.text)) if row["id"] == app_id)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert (row["name"], row["state"], row["finished"]) == (cell, "ACCEPTED", "")


def test_about_says_what_is_hadoops(busy: Front) -> None:
    text = busy.http.get("/cluster/about").text

    assert "<dt>Reported as Hadoop</dt>" in text
    assert '<dd><a href="/ws/v1/cluster/info">/ws/v1/cluster</a></dd>' in text
    assert '<div class="set"><dt>refresh_<wbr>ms</dt><dd>20</dd></div>' in text


@pytest.mark.parametrize(("name", "most"), [("style.css", 26_000), ("live.js", 20_000)])
def test_the_style_sheet_and_the_script_are_small_and_kept_by_browsers(busy: Front, name: str, most: int) -> None:
    [address] = set(re.findall(rf"/cluster/static/{re.escape(name)}\?v=\w+", busy.http.get("/cluster").text))

    kept, plain = busy.http.get(address), busy.http.get(f"/cluster/static/{name}")

    assert len(kept.content) <= most
    assert "immutable" in kept.headers["cache-control"]
    assert plain.headers["cache-control"] == "no-store"
    assert busy.http.get("/cluster/static/other.js").status_code == 404


@pytest.fixture
def encodings_for(busy: Front) -> Iterator[Callable[[str], dict[str, str]]]:
    """The encoding of an answer of each kind, by its address, for a client that sends this Accept-Encoding."""
    with MetricsServer() as metrics:
        cluster = ("/cluster", "/cluster/static/live.js", f"{BASE}/scheduler", "/jmx", "/metrics", OPS)
        addresses = (*cluster, metrics.url)

        def ask(accepted: str) -> dict[str, str]:
            answers = {each: busy.http.get(each, headers={"Accept-Encoding": accepted}) for each in addresses}
            assert {answer.status_code for answer in answers.values()} == {200}
            assert "Accept-Encoding" in answers["/cluster"].headers["vary"]
            return {each: answer.headers.get("content-encoding", "identity") for each, answer in answers.items()}

        yield ask


NOT_GZIP = ("gzip;q=0", "GZIP; q=0.000", "gzip;q=0, *", "*;q=0", "identity", "br", "")
GZIP = ("gzip", "br;q=1.0, gzip;q=0.5", "x-gzip", "*", "*;q=0, gzip")


@pytest.mark.parametrize("accepted", NOT_GZIP + GZIP)
def test_large_answers_are_compressed_for_clients_that_take_gzip_and_for_no_others(
    encodings_for: Callable[[str], dict[str, str]], accepted: str
) -> None:
    """Pages and /metrics came compressed for a weight of 0."""
    compressed = {address for address, encoding in encodings_for(accepted).items() if encoding == "gzip"}

    every = encodings_for(accepted).keys() - {OPS}  # which compresses nothing
    assert compressed == (every if accepted in GZIP else set())


def test_the_dispatchers_page_shows_a_few_of_many_dispatchers_those_that_run_first(busy: Front) -> None:
    others = [AsyncDispatcher(name=f"A{number}") for number in range(100)]

    text = busy.http.get("/cluster/dispatcher").text

    shown = re.findall(r'<section id="([^"]+)">', text)
    assert len(shown) == 12
    assert shown.index("ResourceManager") < shown.index("ResourceManager-scheduler")
    assert int(re.findall(r"And ([\d,]+) more dispatchers", text)[0].replace(",", "")) >= len(others) - 12


def test_the_dispatchers_page_shows_types_and_says_when_the_ops_api_is_off(busy: Front) -> None:
    text = busy.http.get("/cluster/dispatcher").text
    with front(ops={"enabled": False}) as other:
        off = other.http.get("/cluster/dispatcher")
        ops = other.http.get("/ops/v1/dispatchers")
        always = [other.http.get(f"/cluster/{page}").status_code for page in ("about", "process", "entities")]

    assert "APP_NEW_SAVED" in text
    assert (always, ops.status_code) == ([200, 200, 200], 404)
    assert (off.status_code, "ops.enabled is false" in off.text) == (404, True)


def test_event_types_that_are_idle_are_folded(busy: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 rows of zeros hid the few that had events."""
    types = [
        of_dispatchers.EventTypeNumbers(event_type="BUSY", rate_10s=0.3, handled=3),
        of_dispatchers.EventTypeNumbers(event_type="WAITS", queued=1),
        of_dispatchers.EventTypeNumbers(event_type="FAILS", failed=1),
        of_dispatchers.EventTypeNumbers(event_type="IDLE", handled=7),
    ]
    monkeypatch.setattr(of_dispatchers, "type_items", lambda *_: types)

    # Another order than in other tests: what all see alike is kept for a second.
    shown, _, folded = busy.http.get("/cluster/dispatcher?sort=rate").text.partition(
        "<summary>1 event type without an event in the last 10 seconds</summary>"
    )

    assert re.findall(r"</span>(BUSY|WAITS|FAILS|IDLE)</td>", shown) == ["BUSY", "WAITS", "FAILS"]
    assert "IDLE" in folded.partition("</details>")[0]


def test_the_page_of_a_journal_shows_events_without_an_entity(busy: Front, tmp_path: Path) -> None:
    """A null is a missing key of a journal's row, and the page answered 500."""
    journaled = AsyncDispatcher(name="journaled", journal=JournalWriter(tmp_path / "journal"))
    journaled.register(Work, lambda event: None)

    def page() -> str:
        answer = busy.http.get("/cluster/journal?dispatcher=journaled")
        assert answer.status_code == 200
        return answer.text

    with journaled as other:
        other.post(Event(Work.MORE))
        other.post(OfEntity("order-1"))
        # The second row, which the first one is shown before or with.
        link = '<a href="/cluster/entity/order-1">order-1</a>'
        until(lambda: f"DO</td><td>{link}</td>" in page(), "the journal's rows are shown")
        assert "MORE</td><td></td>" in page()


@dataclass
class Note:
    text: str = ""


class Noted:
    machine = "Noted"

    def __init__(self, entity: str, state: Work | None) -> None:
        self.entity = entity
        self.data = Note('<img src=x onerror="alert(1)">')


def test_the_page_of_an_entity_shows_the_data_that_it_keeps(busy: Front) -> None:
    factory = StateMachineFactory[Work, Noted](Work.DO, "Noted")
    noted = Entities(factory.add_transition(Work.DO, Work.MORE, Work.DO), Noted, data=Note)
    noted.handle(OfEntity("note-1"))

    page = busy.http.get("/cluster/entity/note-1")

    assert page.status_code == 200
    assert "text" in page.text
    assert "onerror=" in page.text
    assert "<img src=x" not in page.text


def test_a_journal_that_is_gone_takes_no_page_with_it(busy: Front, tmp_path: Path) -> None:
    """A stopped dispatcher's journal had been removed, and every page with a history answered 503."""
    journal = JournalWriter(tmp_path / "journal")
    other = AsyncDispatcher(name="other", journal=journal)
    with other:
        pass
    shutil.rmtree(tmp_path / "journal")
    [app_id] = [each.application_id for each in busy.manager.clients.get_applications() if each.user == "ann"]

    page, entity = busy.http.get(f"/cluster/app/{app_id}"), busy.http.get(f"/cluster/entity/{app_id}")

    assert (page.status_code, entity.status_code) == (200, 200)
    shows_history(busy, app_id)
    assert other.name == "other"
