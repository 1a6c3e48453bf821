"""Events per second through a handler that counts: the dispatcher, its peers in Python, and Hadoop's on the JVM."""

from __future__ import annotations

import gc
import queue
from collections.abc import Callable
from functools import partial

from core import peers
from core.dispatchers import BOUND, async_dispatcher
from core.jvm import Hadoop
from core.mixed import mixed_tables
from load import Kind, Load
from measure import RatePart, RateTable, Row, Settings

from dispatcher import Event

MILLION = 1_000_000


def throughput(settings: Settings, hadoop: Hadoop | None) -> RatePart:
    """Four tables: one producer and four, with events made beforehand and in the loop that posts them.

    Then those of mixed events.
    """
    premade = [Event(Kind.TICK, 0.0) for _ in range(settings.count(MILLION))]
    gc.freeze()  # the collector need not look at these in each round
    tables = []
    for producers, who in ((1, "one producer"), (4, "four producers")):
        for events, how in ((premade, "made beforehand"), (None, "made in the loop")):
            key = f"{'one' if producers == 1 else 'four'}-{'premade' if events is not None else 'made'}"
            rows = _rows(settings, Load(producers, events), key, hadoop)
            tables.append(RateTable(key, f"Events per second: {who}, events {how}", rows))
    return RatePart(*tables, *mixed_tables(settings))


def _rows(settings: Settings, load: Load, table: str, hadoop: Hadoop | None) -> list[Row]:
    million = settings.count(MILLION)
    one, premade = load.producers == 1, load.premade is not None

    def peer(key: str, name: str, count: int, run: peers.Peer) -> Row:
        return Row(key, name, settings.count(count), partial(run, load))

    def ours(key: str, name: str, run: Callable[[int], float]) -> Row:
        return Row(key, f"AsyncDispatcher, {name}", million, run)

    rows = [
        ours("on", "metrics on", async_dispatcher(load)),
        ours("off", "metrics off", async_dispatcher(load, "none", metrics=False)),
        ours("all", "metrics on, each event timed", async_dispatcher(load, "all")),
    ]
    if premade:
        rows.append(ours("bounded", f"metrics on, bound {BOUND:,}", async_dispatcher(load, capacity=BOUND)))
    if one:
        rows.append(peer("bare", "bare loop over a deque (the limit)", MILLION, peers.bare_loop))
    rows += [
        peer("simple", "queue.SimpleQueue and a thread", MILLION, partial(peers.thread_over, queue.SimpleQueue)),
        peer("queue", "queue.Queue and a thread", 200_000, partial(peers.thread_over, queue.Queue)),
        peer("pool", "ThreadPoolExecutor(1)", 60_000, peers.thread_pool),
        peer("asyncio", "asyncio, call_soon_threadsafe", 100_000, peers.asyncio_loop),
        peer("pykka", "pykka actor", 100_000, peers.pykka_actor),
    ]
    if one:  # it takes events on its own event loop only
        rows.append(peer("bubus", "bubus, on its event loop", 2_000, peers.bubus_bus))
    if hadoop is not None:
        rows.append(hadoop.row("hadoop", "Hadoop's AsyncDispatcher (JVM)", table, million))
        if premade:
            bounded = table.replace("premade", "bounded")
            rows.append(hadoop.row("hadoop-bounded", f"Hadoop's, bound {BOUND:,} (JVM)", bounded, million))
    return rows
