"""PUT of an application's state, queue, priority and timeout, over HTTP."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Yarn
from .front import NODE, NODE_ID, WRITE_TIMEOUT_S, Front, front, message, submission, until
from .served import Served, amount

pytestmark = pytest.mark.long

QUEUES = {
    "kind": "capacity",
    "queues": [{"name": "default", "capacity": 60}, {"name": "other", "capacity": 40, "maximum_lifetime_s": 1000}],
}
UNKNOWN = "application_1_0001"


@pytest.fixture(scope="module")
def idle() -> Iterator[Front]:
    """Without nodes: applications wait."""
    with front(scheduler=QUEUES) as made:
        yield made


@pytest.fixture
def app(idle: Front) -> str:
    """Its scheduler has taken it, and the model shows that."""
    app_id = idle.submit()
    until(lambda: shown_state(idle, app_id) == "ACCEPTED", "the model has it as accepted")
    return app_id


def shown_state(made: Front, app_id: str) -> str:
    """As of the last publication: answers that are not given time to wait show this state."""
    return str(made.door.app.state.rm.model.apps[app_id].state)


# -- kill --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient_kills")
def test_a_kill_that_is_done_at_once_is_answered_with_the_end(idle: Front, app: str) -> None:
    answer = idle.put(f"/apps/{app}/state", {"state": "KILLED", "diagnostics": "not needed"})

    assert (answer.status_code, answer.json()) == (200, {"state": "KILLED"})
    diagnostics = idle.manager.clients.get_application_report(app).diagnostics
    assert diagnostics.endswith("killed by user dr.who: REST client at 127.0.0.1: not needed")
    assert diagnostics.count("killed by") == 1


def test_a_kill_that_takes_longer_is_answered_within_a_tenth_of_a_second(idle: Front, app: str) -> None:
    with idle.hanging():
        begin_s = time.monotonic()
        first = idle.put(f"/apps/{app}/state", {"state": "KILLED"})
        took_s = time.monotonic() - begin_s
    until(lambda: shown_state(idle, app) == "KILLED", "the kill that was begun is done and shown")
    second = idle.put(f"/apps/{app}/state", {"state": "KILLED"})

    assert (first.status_code, first.json()) == (202, {"state": "ACCEPTED"})
    assert first.headers["location"] == f"{idle.door.url}/ws/v1/cluster/apps/{app}/state"
    assert 0.09 < took_s < WRITE_TIMEOUT_S / 2  # not the deadline of other changes
    assert (second.status_code, second.json()) == (200, {"state": "KILLED"})


@pytest.mark.parametrize("blank", ["%0d%0a%0d%0a", "%0b", "%1f", "%e2%80%83"])
def test_blanks_around_an_id_do_not_get_into_the_header_with_the_address(idle: Front, app: str, blank: str) -> None:
    with idle.hanging():
        answer = idle.put(f"/apps/{blank}{app}{blank}/state?user.name=ann", {"state": "KILLED"})
    idle.http.cookies.clear()

    assert answer.status_code == 202
    assert answer.headers["location"] == f"{idle.door.url}/ws/v1/cluster/apps/{app}/state"


def test_an_application_that_has_ended_stays_as_it_is() -> None:
    with front(NODE) as made:
        app = made.submit()
        until(lambda: made.state(app) == "FINISHED", "it has ended")
        answers = [made.put(f"/apps/{app}/state", {"state": state}) for state in ("KILLED", "FINISHED", "RUNNING")]

    assert [(each.status_code, each.json().get("state")) for each in answers[:2]] == [(200, "FINISHED")] * 2
    assert answers[2].status_code == 400


def test_the_present_state_as_the_target_does_nothing(idle: Front, app: str) -> None:
    answer = idle.put(f"/apps/{app}/state", {"state": "ACCEPTED"})

    assert (answer.status_code, answer.json()) == (200, {"state": "ACCEPTED"})
    assert idle.state(app) == "ACCEPTED"


# -- all of them -------------------------------------------------------------------------------------------------------

CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("state", {"state": "KILLED"}),
    ("queue", {"queue": "other"}),
    ("priority", {"priority": "3"}),
    ("timeout", {"timeout": {"type": "LIFETIME", "expiryTime": "2099-12-31T00:00:00.000+0000"}}),
]


WRONG_TIMEOUTS = [
    {"type": "LIFETIME", "expiryTime": "2001-01-01T00:00:00.000+0000"},
    {"type": "LIFETIME", "expiryTime": "2035-12-05"},
    {"type": "LIFETIME", "expiryTime": "2035-13-05T22:51:00.104+0530"},
    {"type": "LIFETIME", "expiryTime": "2035-12-05T22:51:00"},
    {"type": "LIFETIME", "expiryTime": "0001-01-01T00:00:00+2359"},
    {"type": "LIFETIME"},
    {"type": "IDLE", "expiryTime": "2035-12-05T22:51:00.104+0530"},
]
WRONG: list[tuple[str, Any, str]] = [
    *[
        ("state", {"state": target}, "Only 'KILLED' is allowed as a target state")
        for target in ("RUNNING", "killed", "", "FINISHED", "X" * 5000)
    ],
    ("queue", {"queue": "nowhere"}, " cannot be moved to queue nowhere: "),
    *[("timeout", {"timeout": timeout}, "") for timeout in WRONG_TIMEOUTS],
    *[
        (what, body, "")
        for what, _ in CHANGES
        for body in (None, [], {}, {"state": 1, "queue": [], "priority": "x", "timeout": 1})
    ],
]
"""Bodies that are refused, and what the message says."""
SHOWN = ["state", "queue", "priority", "deadline_ms"]


@pytest.mark.parametrize(("what", "body", "said"), WRONG)
def test_a_wrong_change_is_an_error_and_changes_nothing(idle: Front, app: str, what: str, body: Any, said: str) -> None:
    before = idle.manager.clients.get_application_report(app)

    answer = idle.put(f"/apps/{app}/{what}", body)

    assert (answer.status_code, said in message(answer)) == (400, True)
    after = idle.manager.clients.get_application_report(app)
    assert [getattr(after, each) for each in SHOWN] == [getattr(before, each) for each in SHOWN]


@pytest.mark.parametrize(("what", "body"), CHANGES)
def test_an_unknown_application_is_not_found_and_a_wrong_id_is_an_error(
    idle: Front, what: str, body: dict[str, Any]
) -> None:
    assert idle.put(f"/apps/{UNKNOWN}/{what}", body).status_code == 404
    assert idle.put(f"/apps/nonsense/{what}", body).status_code == 400


@pytest.mark.parametrize(("what", "body"), CHANGES)
def test_nothing_is_done_for_a_client_that_does_not_take_json(
    idle: Front, app: str, what: str, body: dict[str, Any]
) -> None:
    before = idle.manager.clients.get_application_report(app)

    answer = idle.put(f"/apps/{app}/{what}", body, headers={"Accept": "application/xml"})

    assert answer.status_code == 406
    after = idle.manager.clients.get_application_report(app)
    assert [getattr(after, each) == getattr(before, each) for each in SHOWN] == [True] * len(SHOWN)


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
def test_a_compressed_body_is_refused_as_such(idle: Front, app: str, encoding: str) -> None:
    answer = idle.http.put(
        f"/ws/v1/cluster/apps/{app}/state",
        content=gzip.compress(b'{"state": "KILLED"}'),
        headers={"Content-Type": "application/json", "Content-Encoding": encoding},
    )

    assert answer.status_code == 415
    assert encoding in message(answer)
    assert idle.state(app) == "ACCEPTED"


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
def test_the_identity_is_no_compression(idle: Front, app: str, encoding: str) -> None:
    answer = idle.put(f"/apps/{app}/priority", {"priority": 2}, headers={"Content-Encoding": encoding})

    assert answer.json() == {"priority": 2}


@pytest.mark.usefixtures("patient_kills")
@pytest.mark.parametrize(("what", "body"), CHANGES)
def test_a_change_is_in_the_model_when_it_is_answered(idle: Front, app: str, what: str, body: dict[str, Any]) -> None:
    model = idle.door.app.state.rm.model

    answer = idle.put(f"/apps/{app}/{what}", body)

    report = model.apps[app]
    assert answer.status_code == 200
    assert {
        "state": report.state == "KILLED",
        "queue": report.queue == "other",
        "priority": report.priority == 3,
        "timeout": report.deadline_ms is not None,
    }[what]


def test_while_the_handler_hangs_a_change_or_a_submission_ends_with_its_deadline(idle: Front, app: str) -> None:
    new, before = submission(idle.new_id()), idle.apps()

    with idle.in_a_hurry(), idle.hanging():
        changes = [idle.put(f"/apps/{app}/{what}", body) for what, body in CHANGES[1:]]
        submissions = [idle.post("/apps/new-application"), idle.post("/apps", new)]

    for answer in changes + submissions:
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "within 0.2 s" in message(answer)
    assert all("send it again" in message(answer) for answer in changes)
    assert idle.apps() == before


# -- lifetime ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("2035-12-05T22:51:00.104+0530", "2035-12-05T17:21:00"),
        ("2035-12-05T22:51:00Z", "2035-12-05T22:51:00"),
        ("2035-12-05T22:51:00.5-03:00", "2035-12-06T01:51:00"),
    ],
)
def test_a_lifetime_is_given_as_the_time_of_its_end(idle: Front, app: str, given: str, shown: str) -> None:
    answer = idle.put(f"/apps/{app}/timeout", {"timeout": {"type": "LIFETIME", "expiryTime": given}})

    timeout = answer.json()["timeout"]
    assert timeout["type"] == "LIFETIME"
    assert timeout["expiryTime"][:17] == shown[:17]  # whole seconds since the submission
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}\+0000", timeout["expiryTime"])
    assert 4e8 > timeout["remainingTimeInSeconds"] > 0


def test_a_lifetime_may_be_taken_back_and_a_queue_limits_it(idle: Front, app: str) -> None:
    far = {"timeout": {"type": "LIFETIME", "expiryTime": "2035-12-05T22:51:00.104+0530"}}
    idle.put(f"/apps/{app}/timeout", far)

    unlimited = idle.put(f"/apps/{app}/timeout", {"timeout": {"type": "LIFETIME", "expiryTime": "UNLIMITED"}})
    idle.put(f"/apps/{app}/queue", {"queue": "other"})
    limited = idle.put(f"/apps/{app}/timeout", far)

    assert unlimited.json() == {
        "timeout": {"type": "LIFETIME", "expiryTime": "UNLIMITED", "remainingTimeInSeconds": -1}
    }
    assert 900 < limited.json()["timeout"]["remainingTimeInSeconds"] <= 1000


# -- nodes and queues --------------------------------------------------------------------------------------------------


def test_a_node_gets_another_size() -> None:
    with front(NODE) as made:
        answer = made.post(
            f"/nodes/{NODE_ID}/resource", {"resource": {"memory": 2048, "vCores": 2}, "overCommitTimeout": -1}
        )
        escaped = made.post("/nodes/n1%3A45454/resource", {"resource": {"memory": "1024", "vCores": 1}})
        unknown = made.post("/nodes/n2:1/resource", {"resource": {"memory": 1, "vCores": 1}})
        nonsense = made.post("/nodes/n1/resource", {"resource": {"memory": 1, "vCores": 1}})
        wrong = made.post(f"/nodes/{NODE_ID}/resource", {"resource": {"memory": 1}})
        [node] = made.manager.clients.get_cluster_nodes()

    assert (answer.status_code, answer.json()) == (200, {"resourceInfo": amount(Resource(2048, 2000))})
    assert escaped.json() == {"resourceInfo": amount(Resource(1024, 1000))}
    assert (unknown.status_code, nonsense.status_code, wrong.status_code) == (404, 400, 400)
    assert node.capacity.memory_mb == 1024


def test_a_node_that_drains_keeps_its_gpus_and_has_its_new_size_once_recommissioned() -> None:
    node = NodeSpec("n1", Resource(4096, 4000, gpus=2, others=(("fpga", 3),)))
    wanted = Resource(2048, 2000, gpus=2, others=(("fpga", 3),))
    with Yarn(node, scheduler=QUEUES) as yarn, Served(yarn.manager) as served:
        yarn.submit_and_run(am_mb=1024)
        yarn.do(lambda: yarn.admin.refresh_nodes(["n1"], graceful=True))
        served.publish()

        answer = served.ask(f"/nodes/{NODE_ID}/resource", "POST", json={"resource": {"memory": 2048, "vCores": 2}})
        draining = served.get(f"/nodes/{NODE_ID}")["node"]["totalResource"]
        yarn.do(lambda: yarn.admin.recommission(["n1"]))
        back = served.get(f"/nodes/{NODE_ID}")["node"]["totalResource"]

        stored = yarn.context.node_capacities
    assert (answer.status_code, answer.json()) == (200, {"resourceInfo": amount(wanted)})
    assert (draining, back) == (amount(Resource(1024, 1)), amount(wanted))
    assert stored == {NODE_ID: wanted}


def test_administrators_of_a_queue_ask_who_may_use_it() -> None:
    queues = [
        {"name": "a", "capacity": 50, "acl_submit_applications": "bob", "acl_administer_queue": "carl"},
        {"name": "b", "capacity": 50},
    ]
    settings = {"kind": "capacity", "queues": queues, "acl_submit_applications": " ", "acl_administer_queue": " "}
    with front(scheduler=settings) as made:

        def ask(caller: str, queue: str, acl: str, user: str) -> Any:
            parameters = {"user.name": caller, "queue-acl-type": acl, "user": user}
            return made.get(f"/queues/{queue}/access", params=parameters)

        allowed = ask("carl", "a", "SUBMIT_APPLICATIONS", "bob")
        by_path = ask("carl", "root.a", "ADMINISTER_QUEUE", "bob")
        statuses = [
            ask("bob", "a", "SUBMIT_APPLICATIONS", "bob").status_code,
            ask("carl", "x", "SUBMIT_APPLICATIONS", "bob").status_code,
            ask("carl", "a", "SUBMIT", "bob").status_code,
            ask("carl", "a", "SUBMIT_APPLICATIONS", "").status_code,
        ]

    assert allowed.json() == {"allowed": True, "user": "bob", "diagnostics": ""}
    assert by_path.json()["allowed"] is False
    assert "acl-type=ADMINISTER_QUEUE" in by_path.json()["diagnostics"]
    assert statuses == [403, 404, 400, 400]
