"""Hostile bodies, made up by hypothesis: each is taken, or refused without a trace. `fuzzing` has whole requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ....kit import tries
from .front import BASE, Front, front, message

pytestmark = pytest.mark.long

APP = "application_1_0001"
JSON = {"Content-Type": "application/json"}

numbers = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**31, 2**53, 2**63, 2**64, 10**400, -1, 0, float("inf")])
)
texts = st.one_of(
    st.text(), st.text(alphabet="\0\x1b\r\n\u202e\ud800\udfff'\"\\{}%;é"), st.sampled_from(["x" * 70_000, "1", "true"])
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


def mapped(content: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """What stands where a map is expected: right, nearly right, and wrong."""
    entry = st.fixed_dictionaries({"key": texts, "value": content})
    return st.one_of(st.fixed_dictionaries({"entry": st.one_of(entry, st.lists(entry, max_size=3), values)}), values)


resources = st.one_of(
    st.fixed_dictionaries({"memory": st.one_of(st.integers(0, 10), scalars), "vCores": st.one_of(st.just(1), scalars)}),
    values,
)
local_resource = st.fixed_dictionaries(
    {"resource": texts}, optional={"type": scalars, "visibility": scalars, "size": scalars, "timestamp": scalars}
)
spec = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "commands": st.one_of(st.fixed_dictionaries({"command": st.one_of(st.lists(texts), values)}), values),
            "environment": mapped(scalars),
            "local-resources": mapped(st.one_of(local_resource, values)),
            "service-data": mapped(scalars),
            "application-acls": mapped(scalars),
            "credentials": st.one_of(st.fixed_dictionaries({"tokens": mapped(scalars)}), values),
        },
    ),
    values,
)
submissions = st.fixed_dictionaries(
    {"application-id": st.one_of(st.just(APP), values), "resource": resources},
    optional={
        "application-name": scalars,
        "queue": st.one_of(st.just("default"), scalars),
        "priority": scalars,
        "am-container-spec": spec,
        "max-app-attempts": scalars,
        "unmanaged-AM": scalars,
        "keep-containers-across-application-attempts": scalars,
        "application-type": scalars,
        "application-tags": st.one_of(st.fixed_dictionaries({"tag": st.lists(texts)}), values),
        "app-node-label-expression": scalars,
        "attempt-failures-validity-interval": scalars,
        "log-aggregation-context": values,
    },
)
bodies = st.one_of(
    st.binary(max_size=200),
    values.map(lambda value: json.dumps(value).encode()),
    submissions.map(lambda value: json.dumps(value).encode()),
    st.integers(1, 50_000).map(lambda depth: b"[" * depth),
    st.integers(1, 50_000).map(lambda depth: b'{"state":' * depth),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A resource manager with an SQLite store, which has to store whatever it gets."""
    store = {"kind": "sqlite", "path": tmp_path_factory.mktemp("store") / "state.db"}
    with front(web={"write_timeout_s": 5.0}, state_store=store) as made:
        yield made


@settings(max_examples=tries(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(submissions)
@example({"application-id": APP, "resource": {"memory": 1, "vCores": 1}})
def test_a_submission_is_taken_and_shown_or_refused(served: Front, content: dict[str, Any]) -> None:
    if content["application-id"] == APP:
        content = {**content, "application-id": served.new_id()}

    answer = served.http.post(f"{BASE}/apps", content=json.dumps(content), headers=JSON)

    if answer.status_code == 202:
        app_id = content["application-id"]
        assert served.get(f"/apps/{app_id}").json()["app"]["id"] == app_id
    else:
        assert (answer.status_code, bool(message(answer))) == (400, True)


PATHS = st.sampled_from(
    [
        ("POST", "/apps"),
        ("POST", "/apps/new-application"),
        ("PUT", "/apps/{app}/state"),
        ("PUT", "/apps/{app}/queue"),
        ("PUT", "/apps/{app}/priority"),
        ("PUT", "/apps/{app}/timeout"),
        ("POST", "/nodes/n1:45454/resource"),
        ("POST", "/nodes/{app}/resource"),
    ]
)


@settings(max_examples=tries(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(PATHS, bodies)
def test_a_refused_body_leaves_no_trace(served: Front, where: tuple[str, str], body: bytes) -> None:
    method, path = where
    before = served.apps()
    path = BASE + path.format(app=next(iter(before), APP))

    answer = served.http.request(method, path, content=body, headers=JSON)

    if answer.status_code >= 300:
        assert (400 <= answer.status_code < 500, bool(message(answer))) == (True, True), answer.text
        assert served.apps() == before
