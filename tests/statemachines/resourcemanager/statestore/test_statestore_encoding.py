"""Records as JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from statemachines.resourcemanager import (
    ApplicationSubmission,
    Credentials,
    LaunchContext,
    LocalResource,
    LogAggregationContext,
    Resource,
)
from statemachines.resourcemanager.records.stored_state import (
    ApplicationAttemptStateData,
    ApplicationStateData,
    MasterContainerData,
    PreemptedData,
    UsageData,
    decode,
    encode,
)

from ..stores import app_record, attempt_record

NUMBERS = st.integers(-(2**70), 2**70)
TEXTS = st.text(max_size=20)
RESOURCES = st.builds(Resource, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.tuples(st.tuples(TEXTS, NUMBERS)) | st.just(()))
MAPPINGS = st.dictionaries(TEXTS, TEXTS, max_size=3)
LAUNCHES = st.builds(
    LaunchContext,
    commands=st.lists(TEXTS, max_size=3).map(tuple),
    environment=MAPPINGS,
    local_resources=st.dictionaries(
        TEXTS, st.builds(LocalResource, TEXTS, TEXTS, TEXTS, NUMBERS, NUMBERS, st.none() | TEXTS), max_size=2
    ),
    service_data=MAPPINGS,
    acls=MAPPINGS,
    credentials=st.none() | st.builds(Credentials, MAPPINGS, MAPPINGS),
    log_context=st.none() | st.builds(LogAggregationContext, st.none() | TEXTS, st.none() | TEXTS),
)
SUBMISSIONS = st.builds(
    ApplicationSubmission,
    name=TEXTS,
    am_resource=RESOURCES,
    user=TEXTS,
    queue=TEXTS,
    am_host=st.none() | TEXTS,
    gpu_models=st.frozensets(TEXTS, max_size=3),
    max_attempts=st.none() | NUMBERS,
    priority=NUMBERS,
    application_id=st.none() | TEXTS,
    lifetime_s=st.none() | NUMBERS,
    attempt_failures_validity_interval_ms=st.none() | NUMBERS,
    keep_containers_across_attempts=st.booleans(),
    unmanaged_am=st.booleans(),
    node_label=st.none() | TEXTS,
    application_type=TEXTS,
    tags=st.lists(TEXTS, max_size=3).map(tuple),
    am_node_label=st.none() | TEXTS,
    launch=st.none() | LAUNCHES,
)
APPLICATIONS = st.builds(
    ApplicationStateData,
    TEXTS,
    SUBMISSIONS,
    NUMBERS,
    NUMBERS,
    st.sampled_from([None, "FINISHED", "FAILED", "KILLED"]),
    TEXTS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
)
USAGES = st.builds(UsageData, NUMBERS, NUMBERS, NUMBERS)
ATTEMPTS = st.builds(
    ApplicationAttemptStateData,
    TEXTS,
    st.none() | st.builds(MasterContainerData, TEXTS, TEXTS, RESOURCES, TEXTS),
    NUMBERS,
    st.sampled_from([None, "FINISHED", "FAILED", "KILLED"]),
    st.none() | TEXTS,
    st.none() | NUMBERS,
    TEXTS,
    TEXTS,
    st.none() | NUMBERS,
    USAGES,
    st.builds(PreemptedData, NUMBERS, NUMBERS, NUMBERS, NUMBERS, USAGES),
    st.floats(0, 1),
    TEXTS,
    NUMBERS,
    st.lists(TEXTS, max_size=3).map(tuple),
)


def types_in(value: Any) -> Any:
    """The type of a value and of all that is in it: a named tuple equals a plain one."""
    if isinstance(value, dict):
        value = tuple(sorted(value.items()))
    if isinstance(value, (tuple, frozenset)):
        return type(value), sorted(map(repr, map(types_in, value)))
    return type(value)


@pytest.mark.long
@given(APPLICATIONS | ATTEMPTS)
def test_record_comes_back_as_it_was(record: ApplicationStateData | ApplicationAttemptStateData) -> None:
    back = decode(encode(record), type(record))

    assert (back, types_in(back)) == (record, types_in(record))


def test_equal_records_make_equal_texts() -> None:
    submissions = [
        app_record(1).submission._replace(
            gpu_models=frozenset(names), launch=LaunchContext(environment=dict.fromkeys(names, ""))
        )
        for names in (["T4", "V100"], ["V100", "T4"])
    ]

    texts = {encode(app_record(1, submission=submission)) for submission in submissions}

    assert len(texts) == 1


def test_record_with_a_lone_surrogate_is_stored() -> None:
    """A master's diagnostics may hold undecodable bytes of a path, which used to stop the resource manager."""
    record = attempt_record(1, diagnostics="no such file: \udcff\x00.jar")

    assert decode(encode(record), ApplicationAttemptStateData).diagnostics == "no such file: ?\x00.jar"


def test_record_without_a_later_field_gets_its_default() -> None:
    text = json.loads(encode(attempt_record(1, tracking_url="http://n1")))
    del text["tracking_url"]

    assert decode(json.dumps(text), ApplicationAttemptStateData) == attempt_record(1)


@pytest.mark.parametrize(
    "change", [{"start_ms": "soon"}, {"start_ms": None}, {"mood": "good"}, {"master_container": {"node": "n1"}}]
)
def test_record_that_is_none_is_refused(change: dict[str, Any]) -> None:
    text = json.dumps({**json.loads(encode(attempt_record(1))), **change})

    with pytest.raises(ValidationError):
        decode(text, ApplicationAttemptStateData)
