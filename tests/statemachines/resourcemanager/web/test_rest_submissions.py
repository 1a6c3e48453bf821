"""POST /apps/new-application and POST /apps, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dispatcher import health
from statemachines.resourcemanager import Credentials, LocalResource, LogAggregationContext

from ....kit.holding import held
from ..stores import change, sqlite_store
from .front import NODE, Front, front, message, submission

pytestmark = pytest.mark.long

GPU_QUEUES = {
    "kind": "capacity",
    "queues": [
        {"name": "default", "capacity": 50, "acl_submit_applications": "*"},
        {"name": "closed", "capacity": 50, "state": "STOPPED"},
    ],
}


@pytest.fixture(scope="module")
def idle() -> Iterator[Front]:
    """Without nodes: applications wait."""
    with front(scheduler=GPU_QUEUES) as made:
        yield made


def test_each_new_application_has_another_id(idle: Front) -> None:
    first, second = idle.post("/apps/new-application"), idle.post("/apps/new-application")

    assert first.json()["application-id"] != second.json()["application-id"]
    assert first.json()["maximum-resource-capability"].keys() == {"memory", "vCores", "resourceInformations"}
    assert idle.apps().isdisjoint({first.json()["application-id"], second.json()["application-id"]})


LARGEST: dict[str, tuple[dict[str, int], tuple[int, int], dict[tuple[int, int], str]]] = {
    "the largest container is that of the largest node": (
        {"maximum_allocation_wait_ms": 0},
        (4096, 4),
        {
            (4097, 1): "resource.memory: is 4,097 MB; the maximum is 4,096 MB",
            (4096, 5): "resource.vCores: is 5; the maximum is 4",
            (4096, 4): "",
        },
    ),
    # A restarted resource manager refused what the nodes that had not come back yet had room for.
    "soon after the start a larger node may still register": (
        {"maximum_allocation_mb": 8192},
        (8192, 2**31 - 1),
        {(8192, 1): ""},
    ),
    "the configured maximum is a limit too": (
        {"maximum_allocation_mb": 2048, "maximum_allocation_vcores": 3},
        (2048, 3),
        {(2049, 1): "resource.memory: is 2,049 MB; the maximum is 2,048 MB"},
    ),
}


@pytest.mark.parametrize(("scheduler", "largest", "asked"), LARGEST.values(), ids=LARGEST)
def test_the_largest_container(
    scheduler: dict[str, int], largest: tuple[int, int], asked: dict[tuple[int, int], str]
) -> None:
    """`asked`: sizes, and why they are refused; empty: they are not."""
    with front(NODE, scheduler=scheduler) as made:
        found = made.post("/apps/new-application").json()["maximum-resource-capability"]
        answers = {
            (memory, cores): made.post("/apps", submission(made.new_id(), resource={"memory": memory, "vCores": cores}))
            for memory, cores in asked
        }
        apps = made.apps()

    assert (found["memory"], found["vCores"]) == largest
    refusals = {size: "" if answer.status_code == 202 else message(answer) for size, answer in answers.items()}
    assert refusals == asked
    assert {answer.status_code for answer in answers.values()} <= {202, 400}
    assert len(apps) == list(asked.values()).count("")


def test_a_full_disk_is_503_and_the_same_submission_succeeds_once_there_is_room(tmp_path: Path) -> None:
    """It was 400, which clients don't repeat, and neither health nor a metric told of it."""
    path = tmp_path / "state.db"
    sqlite_store(path).stop()
    change(
        path,
        "CREATE TRIGGER refuse BEFORE INSERT ON applications"
        " WHEN NEW.record LIKE '%large%' AND (SELECT count(*) FROM applications) = 0"
        " BEGIN SELECT RAISE(ROLLBACK, 'database or disk is full'); END",
    )
    with front(state_store={"kind": "sqlite", "path": path}) as made, health.watching(made.manager):
        large = {**submission(made.new_id()), "application-name": "large"}
        refused = made.post("/apps", large)
        reasons = made.http.get("/readyz").json()["reasons"]
        metrics = made.http.get("/metrics").text
        made.submit()
        accepted = made.post("/apps", large)

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert message(refused).endswith("could not be stored: database or disk is full")
    assert "store" in {each["reason"] for each in reasons}
    assert 'resourcemanager_store_failures_total{dispatcher="ResourceManager"} 1.0' in metrics
    assert accepted.status_code == 202


def test_the_fifo_scheduler_has_one_queue_and_no_other() -> None:
    """Any queue was accepted, and a filter by an unknown queue listed all applications."""
    with front() as made:
        other = made.post("/apps", submission(made.new_id(), queue="reports"))
        app_id = made.submit(queue="default")
        found = {
            queue: [each["id"] for each in made.get(f"/apps?queue={queue}").json()["apps"]["app"]]
            for queue in ("default", "root.default", "nosuch")
        }

    assert other.status_code == 400
    assert message(other).endswith("cannot be submitted: queue 'reports' does not exist")
    assert found == {"default": [app_id], "root.default": [app_id], "nosuch": []}


def test_a_submission_is_answered_once_it_is_stored_and_tells_where_it_is(idle: Front) -> None:
    app_id = idle.new_id()

    answer = idle.post("/apps", submission(app_id), params={"user.name": "alice"})

    assert (answer.status_code, answer.content) == (202, b"")
    assert answer.headers["location"] == f"{idle.door.url}/ws/v1/cluster/apps/{app_id}"
    assert idle.state(app_id) not in ("NEW", "NEW_SAVING")
    assert app_id in idle.door.app.state.rm.model.apps
    assert idle.manager.clients.get_application_report(app_id).user == "alice"


def test_a_submission_that_was_accepted_before_is_accepted_again_and_does_nothing(idle: Front) -> None:
    app_id = idle.new_id()
    first = idle.post("/apps", submission(app_id, **{"application-name": "first"}))

    second = idle.post("/apps", submission(app_id, **{"application-name": "second"}))

    assert (first.status_code, second.status_code) == (202, 202)
    assert idle.manager.clients.get_application_report(app_id).name == "first"


def test_all_that_a_submission_carries_is_kept(idle: Front) -> None:
    app_id = idle.new_id()
    spec = {
        "commands": {"command": ["{{JAVA_HOME}}/bin/java Main", "exit"]},
        "environment": {"entry": [{"key": "A", "value": "1"}, {"key": "B", "value": 2}]},
        "local-resources": {
            "entry": {
                "key": "AppMaster.jar",
                "value": {"resource": "hdfs://nn/a.jar", "type": "ARCHIVE", "visibility": "PUBLIC", "size": "43004"},
            }
        },
        "service-data": {"entry": [{"key": "shuffle", "value": "AAAA"}]},
        "credentials": {"tokens": {"entry": {"key": "t", "value": "dG9r"}}, "secrets": {}},
        "application-acls": {"entry": [{"key": "VIEW_APP", "value": "bob"}]},
    }
    body = submission(
        app_id,
        **{
            "application-name": "job",
            "am-container-spec": spec,
            "priority": 7,
            "max-app-attempts": "1",
            "unmanaged-AM": "false",
            "keep-containers-across-application-attempts": True,
            "application-type": "SPARK",
            "application-tags": {"tag": "nightly"},
            "attempt-failures-validity-interval": 3_600_000,
            "log-aggregation-context": {"log-include-pattern": "file1"},
            "reservation-id": "reservation_1454114874_1",
            "am-black-listing-requests": {"am-black-listing-enabled": True, "disable-failure-threshold": 0.01},
            "some-key-of-the-future": [1, {"x": None}],
        },
    )

    answer = idle.post("/apps", body)

    assert answer.status_code == 202
    kept = idle.manager.context.call(lambda: idle.manager.context.apps[app_id].submission)
    assert (kept.name, kept.priority, kept.max_attempts, kept.application_type) == ("job", 7, 1, "SPARK")
    assert (kept.tags, kept.keep_containers_across_attempts) == (("nightly",), True)
    assert kept.attempt_failures_validity_interval_ms == 3_600_000
    launch = kept.launch
    assert launch.commands == ("{{JAVA_HOME}}/bin/java Main", "exit")
    assert launch.environment == {"A": "1", "B": "2"}
    assert launch.local_resources == {"AppMaster.jar": LocalResource("hdfs://nn/a.jar", "ARCHIVE", "PUBLIC", 43004)}
    assert launch.service_data == {"shuffle": "AAAA"}
    assert launch.acls == {"VIEW_APP": "bob"}
    assert launch.credentials == Credentials({"t": "dG9r"}, {})
    assert launch.log_context == LogAggregationContext("file1")


@pytest.mark.parametrize(
    ("commands", "kept"),
    [
        ({"command": "run"}, ("run",)),
        ({"command": ["a", "b"]}, ("a", "b")),
        ("run", ("run",)),
        (["a", "b"], ("a", "b")),
        ({}, ()),
        (None, ()),
    ],
)
def test_commands_come_as_one_text_or_as_a_list(idle: Front, commands: Any, kept: tuple[str, ...]) -> None:
    app_id = idle.new_id()

    assert idle.post("/apps", submission(app_id, **{"am-container-spec": {"commands": commands}})).status_code == 202

    launch = idle.manager.clients.get_application_report(app_id).launch
    assert launch is not None
    assert launch.commands == kept


# -- refusals ----------------------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"application-id": None}, "application-id"),
    ({"application-id": 7}, "application-id"),
    ({"application-id": "app_1"}, "Invalid ApplicationId"),
    ({"application-id": "application_9000000000000000_1"}, "not from new-application"),
    ({"application-id": f"application_1_{'9' * 400}"}, "Invalid ApplicationId"),
    ({"resource": None}, "resource"),
    ({"resource": []}, "resource"),
    ({"resource": {"vCores": 1}}, "resource.memory"),
    ({"resource": {"memory": -1}}, "resource.memory"),
    ({"resource": {"memory": "much"}}, "resource.memory"),
    ({"resource": {"memory": 1.5}}, "resource.memory"),
    ({"resource": {"memory": True}}, "resource.memory"),
    ({"resource": {"memory": 10**30}}, "resource.memory"),
    ({"resource": {"memory": 1, "vCores": 2**31}}, "resource.vCores"),
    ({"application-name": {}}, "application-name"),
    ({"application-name": "a\0b"}, "application-name"),
    ({"application-name": "\ud800"}, "application-name"),
    ({"application-name": "x" * 1001}, "application-name"),
    ({"priority": []}, "priority"),
    ({"priority": 2**31}, "priority"),
    ({"max-app-attempts": {}}, "max-app-attempts"),
    ({"unmanaged-AM": "perhaps"}, "unmanaged-AM"),
    ({"unmanaged-AM": 1}, "unmanaged-AM"),
    ({"queue": 5}, "queue"),
    ({"queue": "nowhere"}, "nowhere"),
    ({"queue": "closed"}, "closed"),
    ({"queue": "root"}, "queue root is a parent queue"),
    ({"application-tags": {"tag": [1]}}, "application-tags.tag[0]"),
    ({"application-tags": {"tag": ["é"]}}, "printable ASCII"),
    ({"application-tags": {"tag": ["a\nb"]}}, "printable ASCII"),
    ({"application-tags": {"tag": ["x" * 101]}}, "is too long: it has 101 characters; the maximum is 100"),
    ({"application-tags": {"tag": [str(each) for each in range(11)]}}, "Too many"),
    ({"attempt-failures-validity-interval": -2}, "attempt-failures-validity-interval"),
    ({"am-container-spec": []}, "am-container-spec"),
    ({"am-container-spec": {"commands": {"command": [["x"]]}}}, "am-container-spec.commands.command[0]"),
    ({"am-container-spec": {"environment": {"A": "1"}}}, "am-container-spec.environment"),
    ({"am-container-spec": {"environment": {"entry": ["x"]}}}, "am-container-spec.environment.entry[0]"),
    ({"am-container-spec": {"environment": {"entry": [{"value": "x"}]}}}, "environment.entry[0].key"),
    ({"am-container-spec": {"environment": {"entry": [{"key": "A", "value": []}]}}}, "environment.entry[0].value"),
    ({"am-container-spec": {"environment": {"entry": [{"key": "A"}, {"key": "A"}]}}}, "twice"),
    ({"am-container-spec": {"environment": {"entry": {"key": "A=B", "value": "1"}}}}, "name of a variable"),
    ({"am-container-spec": {"local-resources": {"entry": {"key": "x", "value": "y"}}}}, "entry[0].value"),
    (
        {"am-container-spec": {"local-resources": {"entry": {"key": "x", "value": {"resource": "r", "type": "DIR"}}}}},
        "entry[0].value.type",
    ),
    ({"am-container-spec": {"application-acls": {"entry": {"key": "SEE", "value": "*"}}}}, "VIEW_APP or MODIFY_APP"),
    ({"am-container-spec": {"credentials": {"secrets": {"entry": {"key": "s", "value": "!"}}}}}, "base64"),
]


@pytest.mark.parametrize(("change", "named"), WRONG)
def test_a_wrong_submission_is_an_error_that_names_the_key_and_leaves_no_trace(
    idle: Front, change: dict[str, Any], named: str
) -> None:
    app_id, before = idle.new_id(), idle.apps()

    answer = idle.post("/apps", {**submission(app_id), **change})

    assert answer.status_code == 400
    assert named in message(answer)
    assert idle.apps() == before


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b"[]", "expected an object"),
        (b'"x"', "expected an object"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"priority": NaN}', "NaN"),
        (b'{"priority": 1e999}', "too large"),
        (b'{"priority": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"queue": "a", "queue": "b"}', "queue: this key is there twice"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_a_body_that_is_no_json_object_is_an_error(idle: Front, body: bytes, said: str) -> None:
    answer = idle.http.post("/ws/v1/cluster/apps", content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == 400
    assert said in message(answer)


def test_with_submissions_switched_off_hadoop_s_own_text_is_the_answer() -> None:
    with front(web={"submissions": False}) as made:
        answers = [made.post("/apps/new-application"), made.post("/apps", submission("application_1_0001"))]

    assert [(each.status_code, each.text) for each in answers] == [(403, "App submission via REST is disabled.")] * 2


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_a_submission_that_is_not_stored_in_time_is_to_be_sent_again_and_is_not_done_twice(tmp_path: Path) -> None:
    with front(state_store={"kind": "sqlite", "path": tmp_path / "state.db"}) as made:
        app_id, store = made.new_id(), cast(Any, made.manager.store)
        with made.in_a_hurry(), held(store.dispatcher.mailbox_executor.execute, "a slow disk"):
            late = made.post("/apps", submission(app_id))
        again = made.post("/apps", submission(app_id))
        apps = made.apps()

    assert late.status_code == 503
    assert late.headers["retry-after"] == "1"
    assert f"send it again with the same id, {app_id}" in message(late)
    assert again.status_code == 202
    assert apps == {app_id}
