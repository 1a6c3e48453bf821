"""Who leads a shared call, and who waits for it. What an operator makes of it is in test_async_wait_limits."""

from __future__ import annotations

import pytest

from pipeline.streaming.calls.sharing import SharedCalls


def test_who_gives_up_waits_no_more_and_the_first_of_the_others_takes_the_lead() -> None:
    calls: SharedCalls[str, int] = SharedCalls()

    assert [calls.join("k", waiter, 0)[0] for waiter in "abcd"] == ["lead", "wait", "wait", "wait"]
    assert [calls.unjoin("k", waiter) for waiter in ("a", "nobody", "b", "b")] == [False, False, True, False]
    assert (calls.abandon("k"), calls.leader("k")) == ("c", "c")
    assert calls.finish("k", [1], 0) == ["d"]
    assert not calls.unjoin("k", "d")
    for end in (calls.end, calls.abandon, calls.followers):
        with pytest.raises(KeyError):
            end("k")
