"""What a user without VIEW_APP reads at any address: nothing of an application but what every list shows of it."""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from statemachines.resourcemanager import ApplicationSubmission, Resource

from ....kit import OfEntity, Work
from ...simulation.replays import TIMEOUT_S
from .front import NODE, NODE_ID, Front, bearer, front, tokens_of, until
from .routes import Known, addresses

pytestmark = pytest.mark.long

OWNER, NAME = "hidden-owner", "hidden-name"
DIAGNOSTICS, MESSAGE, KEY = "hidden-diagnostics", "hidden-message", "hidden-key"
LISTS = ("/ws/v1/cluster/apps", "/ws/v1/cluster/scheduler", "/cluster", "/cluster/apps", "/cluster/scheduler")
"""Where everyone sees names and users, as in Hadoop; so, too, at the application's own address."""
VARIANTS = (
    "/cluster/apps?format=csv",
    "/cluster/apps?q=hidden",
    "/cluster/apps?sort=started",
    "/cluster/apps/KILLED?sort=finished",
    "/cluster/apps/ACCEPTED?cause=MASTER_STARTING",
    "/ws/v1/cluster/apps?states=KILLED",
    "/ops/v1/machines/RMContainer/entities",
    "/ops/v1/machines/RMAppAttempt/entities?prefix=appattempt",
    "/ops/v1/machines/RMApp/entities?limit=1",
    "/ops/v1/journal/tail?limit=1000",
    "/ops/v1/journal/tail?after_seq=0&limit=1000",
    f"/ops/v1/entities/{NODE_ID}?limit=1000",
    f"/cluster/entity/{NODE_ID}",
)


class Cluster(NamedTuple):
    made: Front
    known: Known
    ended: str
    tokens: dict[str, str]

    @property
    def secrets(self) -> tuple[str, ...]:
        return OWNER, NAME, DIAGNOSTICS, MESSAGE, KEY, self.known.attempt, self.known.container

    def paths(self) -> Iterator[str]:
        for each in addresses(self.made):
            if each.method == "GET":
                yield each.filled(self.known.value)
        yield from VARIANTS
        dispatcher = f"/ops/v1/dispatchers/{self.known.dispatcher}"
        yield from (f"{dispatcher}/queue?by=entity", f"{dispatcher}/types?sort=failed")
        for id in (self.known.attempt, self.known.container, self.ended):
            yield from (f"/cluster/entity/{id}", f"/ops/v1/entities/{id}", f"/ops/v1/journal/tail?entity={id}")
        yield from (f"/cluster/app/{self.ended}", f"/ws/v1/cluster/apps/{self.ended}")

    def read(self, user: str, path: str, accept: str = "*/*") -> tuple[int, str]:
        """The answer; of a stream, what comes up to the end of its first event."""
        headers = {**bearer(self.tokens[user]), "Accept": accept}
        with self.made.http.stream("GET", path, headers=headers) as answer:
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                return answer.status_code, answer.read().decode(errors="replace")
            lines = []
            for line in answer.iter_lines():
                lines.append(line)
                if line.startswith("data:"):
                    break
            return answer.status_code, "\n".join(lines)

    def found(self, user: str, path: str, accept: str = "*/*") -> set[str]:
        """The secrets in an answer, but for those that the client has named and those that every list shows."""
        _, body = self.read(user, path, accept)
        place = path.partition("?")[0]
        is_list = place in LISTS or place in self._own() or place.startswith("/cluster/apps/")
        allowed = {OWNER, NAME} if is_list else set()
        return {each for each in self.secrets if each in body and each not in allowed and quote(each) not in path}

    def _own(self) -> set[str]:
        return {
            f"{base}/{id}" for base in ("/ws/v1/cluster/apps", "/cluster/app") for id in (self.known.app, self.ended)
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An application whose master runs, one that has ended with a message, and an event that has failed with one."""
    folder: Path = tmp_path_factory.mktemp("hidden")
    tokens = tokens_of(folder / "tokens", {OWNER: "user", "bob": "view", "carl": "user", "admin": "admin"})
    settings: dict[str, Any] = {
        "simulation": {"am_register_delay_ms": 3_600_000},
        "ops": {"control": True, "show_payloads": True},
        "web": {"tokens_file": str(folder / "tokens")},
        "scheduler": {"kind": "capacity", "queues": [{"name": each, "capacity": 50} for each in ("default", "other")]},
    }
    with front(NODE, journal=folder / "journal", token=tokens["admin"], **settings) as made:
        headers = bearer(tokens[OWNER])
        ended = made.submit(headers=headers, **{"application-name": NAME})
        made.manager.clients.force_kill_application(ended, DIAGNOSTICS)
        made.submit(headers=headers, **{"application-name": NAME})
        known = Known.of(made)
        dispatcher = made.manager.dispatcher
        dispatcher.register(Work, _handle, on_error="continue")
        dispatcher.post(OfEntity(known.container))
        dispatcher.post_after(3600, OfEntity(known.container), key=KEY)
        until(lambda: bool(dispatcher.view.failures()), "the event has failed")
        found = Cluster(made, known, ended, tokens)
        until(lambda: MESSAGE in found.read("admin", "/ops/v1/journal/tail?limit=1000")[1], "the journal has it")
        yield found


goes_on = threading.Event()
goes_on.set()


def _handle(event: OfEntity) -> None:
    goes_on.wait(TIMEOUT_S)
    raise ValueError(f"{MESSAGE} of {event.entity}")


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream"])
def test_no_address_gives_a_hidden_application_away(cluster: Cluster, accept: str) -> None:
    """REST answered 403, but entity pages and the ops API gave the history to the role view."""
    shown = {path: found for path in cluster.paths() if (found := cluster.found("bob", path, accept))}

    assert shown == {}


def test_administrators_see_all_of_it(cluster: Cluster) -> None:
    """Or the test before would find nothing anywhere."""
    shown = {secret for path in cluster.paths() for secret in cluster.found("admin", path)}

    assert shown == set(cluster.secrets)


def test_the_owner_sees_its_own(cluster: Cluster) -> None:
    ids = [cluster.known.app, cluster.known.attempt, cluster.known.container, cluster.ended]

    paths = [f"{base}/{id}" for id in ids for base in ("/cluster/entity", "/ops/v1/entities")]

    assert {path: cluster.read(OWNER, path)[0] for path in paths} == dict.fromkeys(paths, 200)
    assert {path: cluster.read("bob", path)[0] for path in paths} == dict.fromkeys(paths, 403)


def test_a_handler_that_hangs_on_it_is_shown_without_its_id(cluster: Cluster) -> None:
    hung = cluster.made.door.app.state.rm.model.hang
    goes_on.clear()
    cluster.made.manager.dispatcher.post(OfEntity(cluster.known.container))
    try:
        until(lambda: hung() is not None, "a handler hangs")
        paths = ["/cluster/nodes", "/cluster/dispatcher", f"/ops/v1/dispatchers/{cluster.known.dispatcher}/running"]
        by_bob = [cluster.found("bob", path) for path in paths]
        by_admin = [cluster.found("admin", path) for path in paths]
    finally:
        goes_on.set()

    assert by_bob == [set(), set(), set()]
    assert all(cluster.known.container in each for each in by_admin)


# -- changes -----------------------------------------------------------------------------------------------------------

SUBMITS = ("/ws/v1/cluster/apps", "/ws/v1/cluster/apps/new-application")
"""Open to every user."""
CHANGES = tuple(
    f"/ws/v1/cluster{path}"
    for path in (
        *("/apps/{app}/state", "/apps/{app}/queue", "/apps/{app}/priority", "/apps/{app}/timeout", "/scheduler-conf"),
        *("/nodes/{node}/resource", "/nodes/{node}/replace-labels", "/nodes/{node}/changes/{setting}"),
        *("/hosts/decommission", "/hosts/recommission", "/hosts/included"),
    )
)
BODY: dict[str, Any] = {
    "state": "KILLED",
    "queue": "other",
    "priority": 7,
    "hosts": ["n1"],
    "resource": {"memory": 1, "vCores": 1},
    "timeout": {"type": "LIFETIME", "expiryTime": "2099-01-01T00:00:00.000+0000"},
    "update-queue": {"queue-name": "root.default", "params": {"entry": {"key": "state", "value": "STOPPED"}}},
}
"""What some request or other wants."""
BODIES: dict[str, dict[str, Any]] = {
    "/ws/v1/cluster/apps/{app}/timeout": {"timeout": BODY["timeout"]},
    "/ws/v1/cluster/hosts/decommission": {"hosts": ["n1"]},
    "/ops/v1/log-level": {"logger": "dispatcher", "level": "DEBUG", "for_s": 60},
    "/ops/v1/dispatchers/{name}/redeliver": {"letters": [1], "journal": "any"},
}


def facts(cluster: Cluster) -> Any:
    """What a change would change."""
    manager = cluster.made.manager
    apps = [(each.state, each.queue, each.priority, each.deadline_ms) for each in manager.clients.get_applications()]
    nodes = [(each.node_id, each.state, each.capacity, each.partition) for each in manager.clients.get_cluster_nodes()]
    queues = [(each.path, each.state, each.capacity) for each in manager.context.scheduler.queues()]
    return apps, nodes, queues, manager.admin.changes, logging.getLogger("dispatcher").level


@pytest.mark.parametrize("user", ["bob", "carl"])
def test_no_address_changes_anything_for_a_user_without_rights(cluster: Cluster, user: str) -> None:
    """`bob` has the role view; `carl` has the role user, and owns and administers nothing."""
    before, statuses, leaks = facts(cluster), {}, {}
    form = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    for each in addresses(cluster.made):
        path = each.filled(cluster.known.value)
        if each.method in ("GET", "HEAD") or (user == "carl" and path in SUBMITS):
            continue
        for headers, body in (
            ({"Content-Type": "application/json"}, json.dumps(BODIES.get(each.path, BODY))),
            (form, "queue=other&priority=7"),
        ):
            sent = {**bearer(cluster.tokens[user]), **headers}
            answer = cluster.made.http.request(each.method, path, headers=sent, content=body)
            statuses[each.method, each.path, headers["Content-Type"]] = answer.status_code
            if found := {text for text in cluster.secrets if text in answer.text and text not in path}:
                leaks[each.method, each.path] = found

    assert {key: status for key, status in statuses.items() if not 400 <= status < 500} == {}
    refused = {path for (_, path, _), status in statuses.items() if status == 403}
    assert {path for path in CHANGES if path not in refused} == set()
    assert len(refused - set(CHANGES)) >= 8  # forms of the pages, and the controls of the ops API
    assert leaks == {}
    assert facts(cluster) == before


# -- more than one page of applications --------------------------------------------------------------------------------

MANY = 130
PUBLIC = ("id", "name", "user", "queue", "type", "state")


class Crowd(NamedTuple):
    """Applications of bob and of another user in turn, none of which starts."""

    made: Front
    tokens: dict[str, str]
    started: dict[str, int]
    """By application, in the order of their ids."""
    own: list[str]
    """Bob's."""

    def pages(self, user: str, address: str) -> Iterator[str]:
        """The pages of a list, by the links from one to the next."""
        while True:
            page = self.made.http.get(address, headers=bearer(self.tokens[user])).text
            yield page
            link = re.search(r'rel="next" href="([^"]+)"', page)
            if link is None:
                return
            address = html.unescape(link[1])

    def ids(self, page: str) -> list[str]:
        return list(dict.fromkeys(re.findall(r"application_\d+_\d+", page.partition('id="rows"')[2])))


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    path = tmp_path_factory.mktemp("crowd") / "tokens"
    tokens = tokens_of(path, {"bob": "view", "admin": "admin"})
    with front(token=tokens["admin"], web={"tokens_file": str(path)}) as made:
        clients, model = made.manager.clients, made.door.app.state.rm.model
        for number in range(MANY):
            user = "bob" if number % 2 else OWNER
            clients.submit_application(ApplicationSubmission(f"job{number % 7}", Resource(1, 1), user=user), TIMEOUT_S)
        until(lambda: sum(app.state == "ACCEPTED" for app in model.apps.values()) == MANY, "all are published")
        reports = sorted(clients.get_applications(timeout=TIMEOUT_S), key=lambda each: each.application_id)
        started = {each.application_id: each.start_ms for each in reports}
        yield Crowd(made, tokens, started, [each.application_id for each in reports if each.user == "bob"])


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_neither_order_nor_totals_nor_cursors_tell_of_hidden_applications(crowd: Crowd, order: str) -> None:
    """Public columns sort as for everyone. By the others, hidden ones come together, in the order of their ids."""
    [refusal] = crowd.pages("bob", "/cluster/apps?sort=nothing")
    sorts = re.findall(r"\w+", refusal.partition("not one of ")[2].partition("<")[0])
    assert set(sorts) > {*PUBLIC, "started"}
    times = set(crowd.started.values()) - {crowd.started[id] for id in crowd.own}
    for sort in sorts:
        pages = list(crowd.pages("bob", f"/cluster/apps?sort={sort}&order={order}"))
        listed = [id for page in pages for id in crowd.ids(page)]
        assert [len(crowd.ids(page)) for page in pages] == [100, MANY - 100]
        assert sorted(listed) == list(crowd.started)
        assert all(f" of {MANY}</span>" in page for page in pages)
        hidden, own = [id for id in listed if id not in crowd.own], [id for id in listed if id in crowd.own]
        if sort not in PUBLIC:
            assert hidden == sorted(hidden, reverse=order == "desc"), sort
            assert listed == ([*own, *hidden] if order == "desc" else [*hidden, *own]), sort
        found = [text for page in pages for text in re.findall(r"(?:after|before)=([\w-]+)", page)]
        assert len(found) >= 2
        cursors = [value for text in found for value in json.loads(base64.urlsafe_b64decode(f"{text}=="))]
        assert times.isdisjoint(cursors), sort


def test_filters_by_hidden_fields_and_lists_of_entities_have_ones_own_applications_alone(crowd: Crowd) -> None:
    base, bob = "/ws/v1/cluster/apps", bearer(crowd.tokens["bob"])
    for query in ("startedTimeBegin=1", "startedTimeBegin=1&limit=100&states=ACCEPTED"):
        listed = crowd.made.http.get(f"{base}?{query}", headers=bob).json()["apps"]["app"]
        assert [each["id"] for each in listed] == crowd.own
    entities, after, totals = [], "", set()
    while after is not None:
        parameters = {"limit": "7", "after": after}
        page = crowd.made.http.get("/ops/v1/machines/RMApp/entities", params=parameters, headers=bob).json()
        entities += [each["id"] for each in page["items"]]
        totals.add(page["total"])
        after = page["next"]
    assert (entities, totals) == (crowd.own, {None})
    everything = crowd.made.http.get(f"{base}?startedTimeBegin=1", headers=bearer(crowd.tokens["admin"])).json()
    assert len(everything["apps"]["app"]) == MANY  # or the filters would find nothing for anybody
