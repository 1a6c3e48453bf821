"""Hostile bodies, made up by hypothesis: each is taken, or refused without a trace. `fuzzing` has whole requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager import ApplicationSubmission
from statemachines.resourcemanager.web.rest.writing.bodies import object_of
from statemachines.resourcemanager.web.rest.writing.submission_body import submission_of

from .front import BASE, Front, front

pytestmark = pytest.mark.long

APP = "application_1_0001"

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


def refusal(read: Callable[[], Any]) -> Refusal | None:
    """Why it was refused; None: it was taken."""
    try:
        read()
    except Refusal as error:
        return error
    return None


@given(bodies)
def test_a_body_is_read_or_refused(body: bytes) -> None:
    error = refusal(lambda: object_of(body))

    assert error is None or (error.status, bool(error.reason)) == (400, True)


@given(submissions)
@example({"application-id": APP, "resource": {"memory": 1, "vCores": 1}})
def test_a_submission_is_taken_or_refused(content: dict[str, Any]) -> None:
    taken: list[ApplicationSubmission] = []

    error = refusal(lambda: taken.append(submission_of(object_of(json.dumps(content).encode()), APP, "alice")))

    assert error is None or (error.status, bool(error.reason)) == (400, True)
    for each in taken:
        assert each.am_resource.is_possible()
        json.dumps(each, ensure_ascii=False, default=sorted).encode(
            "utf-8"
        )  # what no store could write has been refused


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> Iterator[Front]:
    with front(web={"write_timeout_s": 5.0}) as made:
        yield made


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


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(PATHS, bodies)
def test_a_refused_body_leaves_no_trace(served: Front, where: tuple[str, str], body: bytes) -> None:
    method, path = where
    before = served.apps()
    path = BASE + path.format(app=next(iter(before), APP))

    answer = served.http.request(method, path, content=body, headers={"Content-Type": "application/json"})

    if answer.status_code >= 400:
        assert served.apps() == before
        assert answer.json()
