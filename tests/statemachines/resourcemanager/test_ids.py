"""Ids of applications and containers: what is one, and what is none."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager.records.ids import cluster_timestamp_of, is_application_id

from .inner import attempt_of

LONGEST = 2**63 - 1


@pytest.mark.parametrize("text", ["application_1_0001", "application_1_1", f"application_{LONGEST}_12345"])
def test_numbers_of_any_length_are_ids(text: str) -> None:
    assert is_application_id(text)
    assert cluster_timestamp_of(text) == int(text.split("_")[1])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "application_1",
        "application_1_0001\n",
        " application_1_0001",
        "application_1_\u0661",
        "application_\uff11_0001",
        "application_1_0001_1",
        "application_-1_0001",
        f"application_{'9' * 5000}_0001",  # Python refuses to read so long a number
    ],
    ids=ascii,
)
def test_whatever_else_is_none(text: str) -> None:
    assert not is_application_id(text)
    assert cluster_timestamp_of(text) == 0


def test_the_attempt_of_a_container() -> None:
    assert attempt_of("container_1_0002_03_000004") == "appattempt_1_0002_000003"
    assert attempt_of("container_e17_1_0002_03_000004") == "appattempt_1_0002_000003"


@pytest.mark.parametrize(
    "text", ["container_1_0002_03", "container_1_0002_\u0663_000004", "container_e_1_2_3_4"], ids=ascii
)
def test_a_container_of_no_attempt(text: str) -> None:
    with pytest.raises(ValueError, match="is not the id of a container"):
        attempt_of(text)
