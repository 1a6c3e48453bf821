"""Shared calls: which record leads, which wait, what is remembered and for how long; checked against a model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.streaming.calls.sharing import SharedCalls

from ....kit import tries


class Books(SharedCalls[Any, int]):
    """Shows what there is in them."""

    def under_way(self) -> int:
        return len(self.leaders)

    def remembered(self) -> int:
        return len(self._known)


Calls = Books


def test_equal_keys_are_one() -> None:
    calls = Calls()

    assert [calls.join(key, str(key), 0)[0] for key in (1, 1.0, True)] == ["lead", "wait", "wait"]


def test_unjoin_ignores_unknown_waiters_and_the_leader() -> None:
    calls = Calls()
    calls.join("k", "leader", 0)
    calls.join("k", "b", 0)

    assert not calls.unjoin("k", "leader")
    assert not calls.unjoin("k", "nobody")
    assert not calls.unjoin("other", "b")
    assert calls.finish("k", [1], 0) == ["b"]
    assert not calls.unjoin("k", "b")


def test_a_key_without_a_call_cannot_be_ended() -> None:
    calls = Calls()

    with pytest.raises(KeyError):
        calls.finish("k", [1], 0)
    with pytest.raises(KeyError):
        calls.end("k")
    with pytest.raises(KeyError):
        calls.abandon("k")


def test_remembered_results_do_not_change_with_the_callers_list() -> None:
    calls = Calls(remember=1)
    results = [1]
    calls.join("k", "a", 0)
    calls.finish("k", results, 0)

    results.append(2)

    assert calls.join("k", "b", 0) == ("known", (1,))


def test_the_error_for_an_unhashable_key_says_what_would_be_right() -> None:
    with pytest.raises(TypeError, match=r"dedupe_by returned the key \['a'\].*Return a string"):
        Calls().join(["a"], "a", 0)  # type: ignore[arg-type]


KEYS = st.integers(0, 3)


class SharedCallsAgainstModel(RuleBasedStateMachine):
    """The model: a list of (waiter, key) per call with its leader first, and a list of answers, last used last."""

    @initialize(remember=st.integers(0, 3), remember_ms=st.none() | st.integers(1, 20))
    def begin(self, remember: int, remember_ms: int | None) -> None:
        self.remember, self.remember_ms = remember, remember_ms if remember else None
        self.calls = Books(remember, self.remember_ms)
        self.now_ms = 0
        self.lines: dict[int, list[int]] = {}
        self.answers: list[tuple[int, tuple[int, ...], int]] = []  # key, results, when
        self.waiters = 0
        self.outcomes: dict[int, str] = {}

    def end(self, waiter: int, outcome: str) -> None:
        assert waiter not in self.outcomes, f"{waiter} ends as {outcome} after {self.outcomes[waiter]}"
        self.outcomes[waiter] = outcome

    def a_call(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.lines)))

    @rule(ms=st.integers(0, 15))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule(key=KEYS)
    def join(self, key: int) -> None:
        waiter = self.waiters = self.waiters + 1
        known = next((answer for answer in self.answers if answer[0] == key), None)
        if known and self.remember_ms is not None and self.now_ms >= known[2] + self.remember_ms:
            self.answers.remove(known)
            known = None

        joined = self.calls.join(key, waiter, self.now_ms)

        if key in self.lines:
            assert joined == ("wait", None)
            self.lines[key].append(waiter)
        elif known:
            assert joined == ("known", known[1])
            self.end(waiter, "known")
            self.answers.remove(known)
            self.answers.append(known)
        else:
            assert joined == ("lead", None)
            self.lines[key] = [waiter]

    @precondition(lambda self: self.lines)
    @rule(data=st.data(), results=st.lists(st.integers(), max_size=2))
    def finish(self, data: st.DataObject, results: list[int]) -> None:
        key = self.a_call(data)
        leader, *others = self.lines.pop(key)

        assert self.calls.finish(key, results, self.now_ms) == others

        for waiter in (leader, *others):
            self.end(waiter, "finished")
        self.answers.append((key, tuple(results), self.now_ms))
        del self.answers[: max(len(self.answers) - self.remember, 0)]

    @precondition(lambda self: self.lines)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        key = self.a_call(data)
        leader, *others = self.lines.pop(key)

        assert self.calls.end(key) == others

        for waiter in (leader, *others):
            self.end(waiter, "failed")

    @precondition(lambda self: self.lines)
    @rule(data=st.data())
    def leader_gives_up(self, data: st.DataObject) -> None:
        key = self.a_call(data)
        leader, *others = self.lines[key]

        assert self.calls.abandon(key) == (others[0] if others else None)

        self.end(leader, "gave up")
        if others:
            self.lines[key] = others
        else:
            del self.lines[key]

    @precondition(lambda self: self.lines)
    @rule(data=st.data())
    def somebody_gives_up(self, data: st.DataObject) -> None:
        key = self.a_call(data)
        place = data.draw(st.integers(0, len(self.lines[key]) - 1))
        waiter = self.lines[key][place]

        left = self.calls.unjoin(key, waiter)

        assert left == (place > 0)
        if left:
            self.lines[key].remove(waiter)
            self.end(waiter, "gave up")

    @invariant()
    def as_many_calls_and_answers_as_in_the_model(self) -> None:
        if hasattr(self, "calls"):
            assert self.calls.under_way() == len(self.lines)
            for key, (leader, *others) in self.lines.items():
                assert (self.calls.leader(key), self.calls.followers(key)) == (leader, others)
            assert self.calls.remembered() == len(self.answers) <= self.remember

    @invariant()
    def every_waiter_waits_or_has_one_outcome(self) -> None:
        if hasattr(self, "calls"):
            waiting = [waiter for line in self.lines.values() for waiter in line]
            assert sorted([*waiting, *self.outcomes]) == list(range(1, self.waiters + 1))

    def teardown(self) -> None:
        if hasattr(self, "calls"):
            for key, (_, *others) in self.lines.items():
                assert self.calls.end(key) == others


TestSharedCallsAgainstModel = SharedCallsAgainstModel.TestCase
TestSharedCallsAgainstModel.settings = settings(max_examples=tries(25), stateful_step_count=30, deadline=None)
