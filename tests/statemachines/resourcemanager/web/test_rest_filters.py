"""Which applications and nodes an answer has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Yarn
from .served import Served

pytestmark = pytest.mark.long

CAPACITY = {"kind": "capacity", "queues": [{"name": "a", "capacity": 50}, {"name": "b", "capacity": 50}]}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Four applications, started at 1, 2, 3 and 4 s: running, waiting, killed at 3 s, finished at 4.5 s."""
    with Yarn(NodeSpec("n1", Resource(4096, 4000)), "n2", scheduler=CAPACITY) as yarn:
        yarn.advance(1_000)
        yarn.submit_and_run("first", queue="a", user="ann", tags=("x", "y"), application_type="SPARK")
        yarn.advance(1_000)
        yarn.submit("second", am_mb=99_999, queue="a", user="bob", tags=("y",))
        yarn.advance(1_000)
        yarn.kill(yarn.submit("third", am_mb=99_999, queue="b", user="ann"))
        yarn.advance(1_000)
        last = yarn.submit_and_run("last", queue="b", user="cat", application_type="TEZ")
        yarn.advance(500)
        last.finish_and_exit()
        with Served(yarn.manager) as served:
            served.publish()
            yield served


ALL = ["first", "second", "third", "last"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ALL),
        ("states=RUNNING", ["first"]),
        ("states=running,%20Killed", ["first", "third"]),
        ("states=RUNNING&states=KILLED", ["first", "third"]),
        ("state=accepted", ["second"]),
        ("state=accepted&states=FINISHED", ["second", "last"]),
        ("states=", ALL),
        ("finalStatus=succeeded", ["last"]),
        ("finalStatus=UNDEFINED", ["first", "second"]),
        ("finalStatus=", ALL),
        ("user=ann", ["first", "third"]),
        ("user=ANN", []),
        ("queue=a", ["first", "second"]),
        ("queue=root.a", ["first", "second"]),
        ("queue=none", []),
        ("name=last", ["last"]),
        ("name=las", []),
        ("limit=1", ["first"]),
        ("limit=2&user=ann", ["first", "third"]),
        ("limit=", ALL),
        ("startedTimeBegin=2000", ["second", "third", "last"]),
        ("startedTimeBegin=2000&startedTimeEnd=3000", ["second", "third"]),
        ("startedTimeEnd=999", []),
        ("finishedTimeBegin=0", ALL),
        ("finishedTimeBegin=1", ["third", "last"]),
        ("finishedTimeEnd=3000", ["first", "second", "third"]),
        ("finishedTimeBegin=3001&finishedTimeEnd=4500", ["last"]),
        ("applicationTypes=spark,%20TEZ", ["first", "last"]),
        ("applicationTypes=yarn", ["second", "third"]),
        ("applicationTags=X", ["first"]),
        ("applicationTags=x,y", ["first", "second"]),
        ("user=ann&states=KILLED&queue=b", ["third"]),
        ("unknown=1", ALL),
    ],
)
def test_filters_of_applications(served: Served, query: str, found: list[str]) -> None:
    answer = served.ask(f"/apps?{query}")

    assert [each["name"] for each in answer.json()["apps"]["app"]] == found


@pytest.mark.parametrize(
    ("query", "in_message"),
    [
        ("states=RUNING", "NEW, NEW_SAVING, SUBMITTED, ACCEPTED, RUNNING, FINISHED, FAILED, KILLED"),
        ("state=FINISHING", "FINISHING"),
        ("states=RUNNING,", None),
        ("finalStatus=DONE", "UNDEFINED, SUCCEEDED, FAILED, KILLED"),
        ("limit=0", "limit"),
        ("limit=ten", "ten"),
        ("limit=%D9%A1", "limit"),
        ("limit=99999999999999999999", "limit"),
        ("startedTimeBegin=-1", "startedTimeBegin"),
        ("startedTimeEnd=1e3", "startedTimeEnd"),
        ("finishedTimeBegin=x", "finishedTimeBegin"),
        ("startedTimeBegin=2&startedTimeEnd=1", "startedTimeEnd"),
        ("finishedTimeBegin=2&finishedTimeEnd=1", "finishedTimeEnd"),
    ],
)
def test_bad_values_of_filters(served: Served, query: str, in_message: str | None) -> None:
    answer = served.ask(f"/apps?{query}")

    if in_message is None:
        assert answer.status_code == 200
    else:
        assert answer.status_code == 400
        assert answer.json()["RemoteException"]["exception"] == "BadRequestException"
        assert in_message in answer.json()["RemoteException"]["message"]


def test_a_field_that_cannot_be_left_out_is_refused(served: Served) -> None:
    status, text = served.refusal("/apps?deSelects=timeouts,foo")

    assert (status, text) == (
        400,
        "deSelects: 'foo' is not one of resourceRequests, timeouts, appNodeLabelExpression, amNodeLabelExpression, "
        "resourceInfo",
    )


def test_fields_can_be_left_out(served: Served) -> None:
    left_out = {"timeouts", "amNodeLabelExpression", "appNodeLabelExpression", "resourceRequests", "resourceInfo"}

    apps = served.ask("/apps", params={"deSelects": ",".join(left_out).upper()}).json()["apps"]["app"]
    every = served.ask("/apps").json()["apps"]["app"]

    living = {"resourceRequests", "resourceInfo"}
    found = [set(app) - set(less) for app, less in zip(every, apps, strict=True)]
    assert found == [left_out, left_out, left_out - living, left_out - living]


@pytest.mark.parametrize(
    ("query", "count"),
    [("", 2), ("?states=running", 2), ("?states=LOST,UNHEALTHY", 0), ("?states=LOST,running", 2), ("?healthy=true", 2)],
)
def test_filters_of_nodes(served: Served, query: str, count: int) -> None:
    assert len(served.ask(f"/nodes{query}").json()["nodes"]["node"]) == count


@pytest.mark.parametrize("state", ["ACCEPTED", "x", "RUNNING,y"])
def test_bad_states_of_nodes(served: Served, state: str) -> None:
    status, message = served.refusal(f"/nodes?states={state}")

    assert (status, "DECOMMISSIONING" in message) == (400, True)
