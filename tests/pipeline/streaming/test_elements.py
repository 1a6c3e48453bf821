"""Stream elements are values: equal by content, immutable, and fit for a snapshot."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from pipeline.streaming import StreamRecord, Watermark


@pytest.mark.parametrize("element", [StreamRecord("a", 5), StreamRecord(None), Watermark(5)])
def test_elements_survive_a_snapshot_and_cannot_be_changed(element: StreamRecord[str] | Watermark) -> None:
    assert pickle.loads(pickle.dumps(element)) == element
    with pytest.raises(FrozenInstanceError):
        element.timestamp_ms = 7  # type: ignore[misc]


def test_elements_that_differ_in_anything_are_not_equal() -> None:
    assert StreamRecord("a", 5) not in (StreamRecord("b", 5), StreamRecord("a", 6), ("a", 5))
    assert Watermark(5) not in (Watermark(6), StreamRecord(5), (5,), 5)
