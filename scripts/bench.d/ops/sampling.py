"""What the curves of the last five minutes cost: the sampler's processor time, and its memory once they are full."""

from __future__ import annotations

import gc
import time
import tracemalloc
from contextlib import ExitStack
from enum import Enum
from itertools import count
from typing import Any, NamedTuple

from measure import Figures, Settings, Spread, print_table

from dispatcher import AsyncDispatcher
from dispatcher.ops.sampler import EVERY_S, POINT_S, POINTS, Sampler
from dispatcher.supervision.health import health

DISPATCHERS = 20
TYPES = 10
"""Of each dispatcher."""
WAIT_S = 60.0


class TypedEvent(NamedTuple):
    type: Enum


def sampling(settings: Settings) -> Figures:
    """20 dispatchers with 10 types each, all of which have events each second."""
    seconds = count()
    sampler = Sampler(clock_s=lambda: EVERY_S * next(seconds) / DISPATCHERS)
    with ExitStack() as stack:
        daemon = [_dispatcher(stack, number) for number in range(DISPATCHERS)]
        _sample(sampler, daemon)
        tracemalloc.start()
        for _ in range(int(POINTS * POINT_S / EVERY_S)):
            _sample(sampler, daemon)
        gc.collect()
        size_mb = tracemalloc.get_traced_memory()[0] / 1e6
        tracemalloc.stop()
        shares = [100 * _sample(sampler, daemon) / EVERY_S for _ in range(settings.count(60))]
    print_table(
        "The sampler's processor time, in % of a core", {"20 dispatchers, 200 types": Spread.of(shares)}, digits=2
    )
    print(f"memory of 300 samples: {size_mb:.2f} MB")
    return {"ops-sampling.share": sum(shares) / len(shares), "ops-sampling.memory": size_mb}


def _dispatcher(stack: ExitStack, number: int) -> tuple[AsyncDispatcher, list[TypedEvent]]:
    kinds: Any = Enum(f"Kind{number}", [f"TYPE_{each}" for each in range(TYPES)])
    dispatcher = AsyncDispatcher(name=f"dispatcher-{number}")
    dispatcher.register(kinds, lambda event: None)
    return stack.enter_context(dispatcher), [TypedEvent(kind) for kind in kinds]


def _sample(sampler: Sampler, daemon: list[tuple[AsyncDispatcher, list[TypedEvent]]]) -> float:
    """A second has passed; returns the processor time that its sample took."""
    for dispatcher, events in daemon:
        for event in events:
            dispatcher.post(event)
        assert dispatcher.await_drained(WAIT_S)
    began_s = time.thread_time()
    sampler.sample()
    health.glance()
    return time.thread_time() - began_s
