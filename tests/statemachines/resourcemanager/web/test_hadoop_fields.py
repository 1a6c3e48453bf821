"""The fields that `docs/rest.md` lists: those that are there have Hadoop's types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from .hadoop_fields import DOCUMENTED, KINDS, Documented, found, there

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def objects() -> Mapping[str, list[Any]]:
    return found()


@pytest.mark.parametrize("documented", DOCUMENTED, ids=lambda each: str(each.name))
def test_fields_have_the_types_that_they_have_in_hadoop(
    objects: Mapping[str, list[Any]], documented: Documented
) -> None:
    of_kind = objects[documented.name]
    assert of_kind, "no such object in our answers"

    wrong = {
        f"{name}: {each[name]!r:.80} is no {documented.fields[name]}"
        for name in there(documented, of_kind)
        for each in of_kind
        if name in each and type(each[name]) not in KINDS[documented.fields[name]]
    }
    assert wrong == set()
