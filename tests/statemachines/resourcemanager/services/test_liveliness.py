"""The monitors: which ids must report in time, and which did not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dispatcher.testing import ManualClock
from statemachines.resourcemanager.machines.liveliness import DeadlineMonitor, LivelinessMonitor

from ....kit import tries

INTERVAL_MS = 10
IDS = st.sampled_from(["a", "b", "c", "d"])


class Watch:
    """A monitor of each kind on a clock, and what they have expired."""

    def __init__(self, interval_ms: int | None = INTERVAL_MS) -> None:
        self.clock = ManualClock(1000)
        self.expired: list[str] = []
        self.on_expiry: Callable[[str], None] = lambda id: None
        now_ms = self.clock.current_processing_time
        self.liveliness = LivelinessMonitor("nodes", interval_ms, now_ms, self._expire)
        self.deadlines = DeadlineMonitor("lifetimes", now_ms, self._expire)

    def _expire(self, id: str) -> None:
        self.expired.append(id)
        self.on_expiry(id)


@pytest.fixture
def watch() -> Watch:
    return Watch()


# -- silence ----------------------------------------------------------------------------------------------------------


def test_without_an_interval_nothing_is_monitored() -> None:
    watch = Watch(None)

    watch.liveliness.register("a")
    watch.clock.advance(10**12)
    watch.liveliness.expire_due()

    assert (watch.expired, len(watch.liveliness), watch.liveliness.next_deadline_ms()) == ([], 0, None)


# -- what expiring leads to -------------------------------------------------------------------------------------------


def both(watch: Watch, *ids: str) -> None:
    """Have both monitors expire these ids, at the same time, in that order."""
    for id in ids:
        watch.liveliness.register(id)
        watch.deadlines.register(id, 1000 + INTERVAL_MS)
    watch.clock.advance(INTERVAL_MS)


@pytest.mark.parametrize("name", ["liveliness", "deadlines"])
def test_id_unregistered_by_the_expiry_of_another_does_not_expire(watch: Watch, name: str) -> None:
    both(watch, "a", "b", "c")
    monitor = getattr(watch, name)
    watch.on_expiry = lambda id: monitor.unregister("b")

    monitor.expire_due()

    assert watch.expired == ["a", "c"]


def test_id_pinged_by_the_expiry_of_another_does_not_expire(watch: Watch) -> None:
    both(watch, "a", "b")
    watch.on_expiry = lambda id: watch.liveliness.received_ping("b")

    watch.liveliness.expire_due()

    assert (watch.expired, "b" in watch.liveliness) == (["a"], True)


def test_deadline_that_moves_because_another_expired_counts(watch: Watch) -> None:
    both(watch, "a", "b")
    watch.on_expiry = lambda id: watch.deadlines.register("b", 1011)

    watch.deadlines.expire_due()

    assert (watch.expired, watch.deadlines.deadline_ms("b")) == (["a"], 1011)


def test_id_registered_again_by_its_own_expiry_is_checked_next_time(watch: Watch) -> None:
    """Otherwise an id that is due again at once would expire forever."""
    both(watch, "a")
    watch.on_expiry = lambda id: watch.deadlines.register("a", 1000)

    watch.deadlines.expire_due()
    once = list(watch.expired)
    watch.deadlines.expire_due()

    assert (once, watch.expired) == (["a"], ["a", "a"])


@pytest.mark.parametrize("name", ["liveliness", "deadlines"])
def test_ids_after_a_failed_expiry_expire_next_time(watch: Watch, name: str) -> None:
    both(watch, "a", "b")
    monitor = getattr(watch, name)

    def fail(id: str) -> None:
        watch.on_expiry = lambda id: None
        raise OSError("no")

    watch.on_expiry = fail
    with pytest.raises(OSError, match="no"):
        monitor.expire_due()
    left = list(watch.expired), len(monitor), monitor.next_deadline_ms()
    monitor.expire_due()

    assert (left, watch.expired) == ((["a"], 1, 1000 + INTERVAL_MS), ["a", "b"])


# -- against a model --------------------------------------------------------------------------------------------------


class MonitorsAgainstModel(RuleBasedStateMachine):
    """Against a model that checks every id each time."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch()
        self.heard_ms: dict[str, int] = {}  # those heard of last at the end
        self.deadlines_ms: dict[str, int] = {}

    @property
    def now_ms(self) -> int:
        return self.watch.clock.current_processing_time()

    @rule(id=IDS)
    def register(self, id: str) -> None:
        self.watch.liveliness.register(id)
        self.heard_ms.pop(id, None)
        self.heard_ms[id] = self.now_ms

    @rule(id=IDS)
    def ping(self, id: str) -> None:
        self.watch.liveliness.received_ping(id)
        if self.heard_ms.pop(id, None) is not None:
            self.heard_ms[id] = self.now_ms

    @rule(id=IDS, in_ms=st.integers(-5, 30))
    def set_deadline(self, id: str, in_ms: int) -> None:
        self.watch.deadlines.register(id, self.now_ms + in_ms)
        self.deadlines_ms[id] = self.now_ms + in_ms

    @rule(id=IDS)
    def unregister(self, id: str) -> None:
        self.watch.liveliness.unregister(id)
        self.watch.deadlines.unregister(id)
        self.heard_ms.pop(id, None)
        self.deadlines_ms.pop(id, None)

    @rule(ms=st.integers(0, 15))
    def pass_time(self, ms: int) -> None:
        self.watch.clock.advance(ms)

    @rule()
    def expire(self) -> None:
        now_ms, expired = self.now_ms, self.watch.expired
        silent = [id for id, heard_ms in self.heard_ms.items() if heard_ms + INTERVAL_MS <= now_ms]
        over = sorted((deadline_ms, id) for id, deadline_ms in self.deadlines_ms.items() if deadline_ms <= now_ms)
        expired.clear()

        self.watch.liveliness.expire_due()
        self.watch.deadlines.expire_due()

        assert expired == [*silent, *(id for _, id in over)]
        for id in silent:
            del self.heard_ms[id]
        for _, id in over:
            del self.deadlines_ms[id]

    @invariant()
    def both_monitor_what_the_model_does(self) -> None:
        liveliness, deadlines = self.watch.liveliness, self.watch.deadlines
        for id in "abcd":
            assert (id in liveliness, id in deadlines) == (id in self.heard_ms, id in self.deadlines_ms)
            assert deadlines.deadline_ms(id) == self.deadlines_ms.get(id)
        assert (len(liveliness), len(deadlines)) == (len(self.heard_ms), len(self.deadlines_ms))

    @invariant()
    def both_know_their_next_deadline(self) -> None:
        first_ms = min(self.heard_ms.values(), default=None)
        assert self.watch.liveliness.next_deadline_ms() == (None if first_ms is None else first_ms + INTERVAL_MS)
        assert self.watch.deadlines.next_deadline_ms() == min(self.deadlines_ms.values(), default=None)


TestMonitorsAgainstModel = MonitorsAgainstModel.TestCase
TestMonitorsAgainstModel.settings = settings(max_examples=tries(25), deadline=None)


@given(ids=st.lists(IDS, max_size=50), moves_ms=st.integers(1, 5))
def test_heap_stays_in_proportion_to_what_is_monitored(ids: list[str], moves_ms: int) -> None:
    """Only `unregister` removed superseded entries: an id that stayed monitored kept one for each move."""
    watch = Watch()
    for number, id in enumerate(ids * 20):
        watch.deadlines.register(id, 2000 + number * moves_ms)

    assert len(watch.deadlines._heap._entries) <= 2 * len(watch.deadlines) + 64
