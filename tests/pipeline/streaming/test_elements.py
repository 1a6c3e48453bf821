"""Stream elements are values: equal by content, immutable, and fit for a snapshot."""

from __future__ import annotations

import pickle
import pkgutil
from dataclasses import FrozenInstanceError

import pytest

import pipeline.streaming
from pipeline.streaming import StreamRecord, Watermark


def test_a_record_has_no_timestamp_unless_it_is_given_one() -> None:
    assert StreamRecord("a").timestamp_ms is None
    assert StreamRecord("a", 5).timestamp_ms == 5


def test_elements_are_equal_by_value() -> None:
    assert StreamRecord("a", 5) == StreamRecord("a", 5)
    assert hash(StreamRecord("a", 5)) == hash(StreamRecord("a", 5))
    assert Watermark(5) == Watermark(5)
    assert hash(Watermark(5)) == hash(Watermark(5))


@pytest.mark.parametrize(
    ("element", "other"),
    [
        *((StreamRecord("a", 5), other) for other in (StreamRecord("b", 5), StreamRecord("a", 6), ("a", 5))),
        *((Watermark(5), other) for other in (Watermark(6), StreamRecord(5), (5,), 5)),
    ],
)
def test_elements_that_differ_in_anything_are_not_equal(element: object, other: object) -> None:
    assert element != other


def test_a_record_may_hold_a_value_that_cannot_be_hashed() -> None:
    assert StreamRecord(["a"], 5) == StreamRecord(["a"], 5)


@pytest.mark.parametrize(
    ("element", "field"),
    [(StreamRecord("a", 5), "value"), (StreamRecord("a", 5), "timestamp_ms"), (Watermark(5), "timestamp_ms")],
)
def test_elements_cannot_be_changed(element: object, field: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(element, field, 7)


@pytest.mark.parametrize("element", [StreamRecord("a", 5), Watermark(5)])
def test_elements_have_slots_only(element: object) -> None:
    assert not hasattr(element, "__dict__")


def test_elements_show_their_values() -> None:
    assert repr(StreamRecord("a", 5)) == "StreamRecord(value='a', timestamp_ms=5)"
    assert repr(Watermark(5)) == "Watermark(timestamp_ms=5)"


@pytest.mark.parametrize("element", [StreamRecord("a", 5), StreamRecord(None), Watermark(5)])
def test_elements_survive_a_snapshot(element: object) -> None:
    assert pickle.loads(pickle.dumps(element)) == element


def test_the_package_exports_what_it_promises() -> None:
    submodules = {module.name for module in pkgutil.iter_modules(pipeline.streaming.__path__)}
    public = {name for name in vars(pipeline.streaming) if name[0].isalpha()}

    assert public - submodules == set(pipeline.streaming.__all__)
