"""Whatever a client asks for: an answer in JSON, and never a fault of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from statemachines.resourcemanager import Resource  # noqa: E402
from statemachines.resourcemanager.events import ContainerRequest  # noqa: E402
from statemachines.simulation.workload import NodeSpec  # noqa: E402

from ..daemon.yarn_cluster import Yarn  # noqa: E402
from .served import BASE, Served  # noqa: E402

pytestmark = pytest.mark.long

PARAMETERS = [
    "states", "state", "finalStatus", "user", "queue", "name", "limit", "startedTimeBegin", "startedTimeEnd",
    "finishedTimeBegin", "finishedTimeEnd", "applicationTypes", "applicationTags", "deSelects", "labels", "user.name",
    "healthy",
]  # fmt: skip
WORDS = ["", "..", "apps", "nodes", "appattempts", "containers", "state", "timeouts", "LIFETIME", "metrics", "info"]
WORDS += ["scheduler", "queue", "appstatistics", "label-mappings", "n1:45454", "reservation", "containers", "signal"]
WORDS += ["application_0_0001", "appattempt_0_0001_000001", "container_0_0001_01_000001", "container_e9_0_1_1_1"]
VALUES = st.one_of(
    st.sampled_from(["RUNNING", "running,KILLED", "SUCCEEDED", "0", "-1", "1", "9" * 30, "default", "root", ",", "x"]),
    st.integers().map(str),
    st.text(max_size=20),
)
ENCODED = st.one_of(
    st.text(max_size=10).map(lambda text: quote(text, safe="", errors="replace")),
    st.binary(max_size=10).map(lambda raw: quote(raw, safe="")),
)
PATHS = st.lists(st.one_of(st.sampled_from(WORDS), ENCODED), max_size=7).map(lambda parts: "/".join(["", *parts]))
QUERIES = st.lists(st.tuples(st.one_of(st.sampled_from(PARAMETERS), st.text(max_size=5)), VALUES), max_size=5)
ACCEPTS = st.sampled_from(["*/*", "application/json", "", "text/html", ";q=,,", "*/*;q=0", "application/xml"])


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Yarn(NodeSpec("n1", Resource(1000, 4000))) as yarn:
        master = yarn.submit_and_run("app", am_mb=100)
        master.get_running(ContainerRequest(Resource(1, 1), tag=1))
        with Served(yarn.manager) as served:
            served.publish()
            yield served


def check(answer: httpx.Response, method: str) -> None:
    assert answer.status_code in (200, 400, 404, 405, 406), answer.text
    if method != "HEAD":
        content = json.loads(answer.content)
        assert (answer.status_code == 200) != ("RemoteException" in content)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PATHS, QUERIES, ACCEPTS, st.sampled_from(["GET", "HEAD", "DELETE", "OPTIONS"]))
def test_any_path_is_answered(
    served: Served, path: str, query: list[tuple[str, str]], accept: str, method: str
) -> None:
    pairs = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in query)

    answer = served.ask(f"{BASE}{path}?{pairs}", method, headers={"Accept": accept})

    check(answer, method)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["/apps", "/nodes", "/appstatistics", "/label-mappings", "/apps/application_0_0001"]), QUERIES)
def test_any_query_is_answered(served: Served, path: str, query: list[tuple[str, str]]) -> None:
    pairs = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in query)

    answer = served.ask(f"{path}?{pairs}")

    assert answer.status_code in (200, 400), answer.text
    check(answer, "GET")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40).map(lambda raw: quote(raw, safe="&=%+;,")))
def test_any_text_as_a_query_is_answered(served: Served, query: str) -> None:
    check(served.ask(f"/apps?{query}"), "GET")


def _quoted(text: str) -> str:
    return quote(text, safe="", errors="replace")
