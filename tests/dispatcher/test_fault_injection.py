"""Many events through dispatchers whose handlers fail, hang, stop them, and end each other's threads."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from time import monotonic

import pytest

from dispatcher import AsyncDispatcher, DispatcherConfig
from dispatcher.mailbox import RejectedExecutionError

from ..kit import TIMEOUT_S, Other, Work, assert_accounts_balance, tries

EVENTS = tries(100_000)
PRODUCERS = 8
DEADLINE_S = 100.0
"""For the whole test, on a busy machine."""
DEPTH = 3
"""Longest chain of events that handlers post because of one from outside."""

UNBOUNDED = DispatcherConfig()
BLOCK = DispatcherConfig(queue_capacity=500, queue_full_timeout_s=0.05)
DROP_OLDEST = DispatcherConfig(queue_capacity=500, queue_full_policy="drop_oldest")


class Load:
    """An event. `number` grows with each post of its producer to the dispatcher."""

    __slots__ = ("depth", "number", "producer", "type")

    def __init__(self, producer: int, number: int, depth: int = 0, type: Work | Other = Work.DO) -> None:
        self.type = type
        self.producer = producer
        self.number = number
        self.depth = depth

    def __repr__(self) -> str:
        return f"<Load {self.producer}:{self.number}>"


class Peer:
    """A dispatcher, the faults of its handler, and the counts that it should have."""

    def __init__(self, name: str, config: DispatcherConfig, seed: int, *, keys: int = 0) -> None:
        self.dispatcher = AsyncDispatcher(config, name=name)
        self.keys = keys  # the number of keys that each producer's events alternate between; 0: no coalescing
        self.peers: list[Peer] = []
        self.is_victim = False  # its thread may be ended by another's handler
        self.may_kill = threading.Event()  # from then on handlers end the threads of victims
        self.may_stop = threading.Event()  # from then on, which is late, handlers stop their dispatcher
        self.hung = threading.Event()
        self.let_go = threading.Event()
        self.accepted_inside = 0  # handler threads post to themselves only, so this is the handler thread's
        self.handled = self.raised = 0  # handler thread only
        self.orders: dict[int, list[int]] = {producer: [] for producer in range(PRODUCERS)}  # handler thread only
        self._random = random.Random(seed)  # handler thread only
        self.dispatcher.register(
            Work, self.handle, coalesce_by=(lambda event: (event.producer, event.number % keys)) if keys else None
        )
        self.dispatcher.register(Other, self._hang)

    def handle(self, event: Load) -> None:
        if not event.depth:
            self.orders[event.producer].append(event.number)
        # Most events cost one draw; rare cases are decided below.
        if self._random.random() < 0.002:
            self._make_trouble(event)
        self.handled += 1

    def _make_trouble(self, event: Load) -> None:
        kind = self._random.choice(("raise", "raise", "post", "post", "kill", "stop"))
        if kind == "raise":
            self.raised += 1
            raise self._random.choice((ValueError, IndexError, SystemExit, KeyboardInterrupt))(event)
        if kind == "post":
            for _ in range(self._random.randrange(1, 4) if event.depth < DEPTH else 0):
                self.accepted_inside += self.dispatcher.post(Load(event.producer, 0, event.depth + 1))
        if kind == "kill" and self.may_kill.is_set():
            self._random.choice(self.peers).kill()
        if kind == "stop" and self.may_stop.is_set():
            self.dispatcher.stop()

    def kill(self) -> None:
        """End the handler thread, from any thread."""
        if self.is_victim:
            with contextlib.suppress(RejectedExecutionError):  # it has ended already
                self.dispatcher.mailbox_executor.execute(self._fail, "end the handler thread")

    @staticmethod
    def _fail() -> None:
        raise SystemExit("killed by a peer")

    def _hang(self, event: Load) -> None:
        self.hung.set()
        assert self.let_go.wait(TIMEOUT_S)
        self.handled += 1


@pytest.fixture
def no_logging() -> Iterator[None]:
    """A thousand stack traces take longer than the events."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def make_peers(seed: int) -> list[Peer]:
    peers = [
        Peer("unbounded", UNBOUNDED, seed),
        Peer("unbounded-victim", UNBOUNDED, seed + 1),
        Peer("block", BLOCK, seed + 2),
        Peer("block-victim", BLOCK, seed + 3),
        Peer("drop-oldest", DROP_OLDEST, seed + 4),
        Peer("coalescing", UNBOUNDED, seed + 5, keys=16),
        Peer("coalescing-block-victim", BLOCK, seed + 6, keys=16),
    ]
    for peer in peers:
        peer.is_victim = peer.dispatcher.name.endswith("victim")
        peer.peers = peers
        peer.dispatcher.start()
    return peers


@pytest.mark.slow
@pytest.mark.usefixtures("no_logging")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_events_and_all_that_can_go_wrong_leave_the_accounts_balanced(seed: int) -> None:
    peers = make_peers(seed)
    deadline = monotonic() + DEADLINE_S
    accepted: list[list[list[int]]] = [[[] for _ in peers] for _ in range(PRODUCERS)]
    together = threading.Barrier(PRODUCERS)
    each = EVENTS // PRODUCERS
    late, last = each * 5 // 10, each * 9 // 10

    def produce(producer: int) -> None:
        choose = random.Random(seed * 100 + producer).choices
        posts = [peer.dispatcher.event_handler.handle for peer in peers]
        kept = [numbers.append for numbers in accepted[producer]]
        together.wait(TIMEOUT_S)
        # A short run to one dispatcher, then to another: a producer that blocks there does not keep the others waiting.
        for start in range(0, each, 10):
            (target,) = choose(range(len(peers)))
            post, keep = posts[target], kept[target]
            for number in range(start, start + 10):
                if post(Load(producer, number)):
                    keep(number)
            # All wait for each other: one that ran ahead would have the dispatchers end with few events accepted.
            if start in (late, last):
                together.wait(DEADLINE_S)
                for peer in peers:
                    (peer.may_kill if start == late else peer.may_stop).set()

    producers = [threading.Thread(target=produce, args=(producer,), daemon=True) for producer in range(PRODUCERS)]
    for thread in producers:
        thread.start()
    hangs = [peer.dispatcher.post(Load(0, 0, type=Other.DO)) for peer in peers]
    for peer in peers:
        peer.hung.wait(0.01)
        peer.let_go.set()
    for thread in producers:
        thread.join(max(0.0, deadline - monotonic()))
        assert not thread.is_alive(), "a producer is stuck"
    for peer in peers:
        peer.dispatcher.stop()
    for peer in peers:
        assert peer.dispatcher.wait_for_service_to_stop(max(0.0, deadline - monotonic())), peer.dispatcher.name

    for index, peer in enumerate(peers):
        dispatcher = peer.dispatcher
        total = sum(len(numbers[index]) for numbers in accepted) + peer.accepted_inside + hangs[index]
        assert (dispatcher.queue_size(), dispatcher.stats().in_hand) == (0, 0)
        assert not dispatcher._thread.is_alive()
        assert (dispatcher.stats().handled, dispatcher.stats().failed) == (peer.handled, peer.raised), dispatcher.name
        assert_accounts_balance(dispatcher, accepted=total)
        for producer in range(PRODUCERS):
            handled = peer.orders[producer]
            # A newer event takes the place of the older one of its key, so that order is kept for each key.
            for key in range(peer.keys or 1):
                of_key = [number for number in handled if number % (peer.keys or 1) == key]
                assert all(earlier < later for earlier, later in pairwise(of_key)), (dispatcher.name, producer)
            assert set(handled) <= set(accepted[producer][index])
        refused = Counter(dispatcher.stats().rejected)
        assert set(refused) <= {"draining", "stopped", "timeout"}
    assert sum(len(numbers) for lists in accepted for numbers in lists) > EVENTS // 2
    assert sum(peer.raised for peer in peers) > 0
    assert any(peer.is_victim and isinstance(peer.dispatcher.failure_cause, SystemExit) for peer in peers)
