"""The targets, and the figures of this run beside them; misses are marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from measure import Figures


class Target(NamedTuple):
    """A figure, or its ratio to another one, and its bound; None: shown beside the target before it."""

    what: str
    figure: str
    per: str | None
    bound: float | None
    at_most: bool = False
    unit: str = " x"

    def measured(self, figures: Figures) -> float | None:
        if self.figure not in figures or (self.per is not None and self.per not in figures):
            return None
        return figures[self.figure] / (figures[self.per] if self.per is not None else 1)

    def verdict(self, value: float) -> str:
        if self.bound is None:
            return ""
        return "reached" if (value <= self.bound if self.at_most else value >= self.bound) else "MISSED"

    def shown(self, value: float) -> str:
        if self.unit == "%":
            return f"{value:.1%}"
        return f"{value:,.0f}{self.unit}" if value >= 1000 else f"{value:,.2f}{self.unit}"


CORE_TARGETS = (
    Target("one producer, premade, metrics on : Hadoop's", "one-premade.on", "one-premade.hadoop", 1.0),
    Target("    the same : Hadoop's fastest run", "one-premade.on", "one-premade.hadoop-highest", None),
    Target("one producer, premade, metrics on : pykka", "one-premade.on", "one-premade.pykka", 20),
    Target("one producer, premade, metrics on : queue.Queue", "one-premade.on", "one-premade.queue", 10),
    Target("one producer, premade, metrics on : bare loop", "one-premade.on", "one-premade.bare", 0.45),
    *(
        Target(f"{name}, {what} : bare loop", f"mixed-{key}.{types}-share", None, 0.45)
        for key, what in (("functions", "functions"), ("methods", "bound methods"), ("objects", "objects"))
        for types, name in (("one", "one type"), ("two", "two types"), ("four", "four types"))
    ),
    *(
        Target(f"made in the loop, {what} : bare loop", f"made.{key}-share", None, None)
        for key, what in (("event", "Event"), ("dataclass", "dataclass"), ("pydantic", "pydantic"))
    ),
    Target("four producers : one, premade", "four-premade.on", "one-premade.on", 0.9),
    Target("bounded at 10,000 : unbounded, one producer", "one-premade.bounded", "one-premade.on", 0.5),
    Target("bounded at 10,000 : unbounded, four producers", "four-premade.bounded", "four-premade.on", 0.5),
    Target("metrics on : off, one producer, premade", "one-premade.on", "one-premade.off", 0.9),
    Target("sampled : each event timed, one producer, premade", "one-premade.on", "one-premade.all", 4, at_most=True),
    *(
        Target(f"wake-up {name}, {percent} : SimpleQueue", f"wake.{place}.ours-{percent}-ratio", None, bound, True)
        for place, name in (("free", "anywhere"), ("one", "on one core"), ("two", "on two cores"))
        for percent, bound in (("p50", 1.1), ("p99", 1.2), ("p99.9", None))
    ),
    Target("ask and wait : pykka", "ask.ours", "ask.pykka", 3),
    Target("    : ThreadPoolExecutor(1)", "ask.ours", "ask.pool", 1.0),
    *(
        target
        for at_once, who in ((1, "one coroutine"), (100, "100 coroutines"))
        for target in (
            Target(f"aio.ask, {who} : run_in_executor", f"aio-ask-{at_once}.ours", f"aio-ask-{at_once}.pool", None),
            Target("    : asyncio.Queue, no thread", f"aio-ask-{at_once}.ours", f"aio-ask-{at_once}.queue", None),
        )
    ),
    Target("async def, one key : a task each", "coroutines-one.ours", "coroutines-one.tasks", 0.5),
    Target("    a key each : a task each", "coroutines-many.ours", "coroutines-many.tasks", 1.0),
    Target("timers fired and handled : loop.call_later", "fire.ours", "fire.loop", None),
    Target("    memory of each : loop.call_later", "timer-bytes.ours", "timer-bytes.loop", None, at_most=True),
    Target("mails through execute", "mail.execute", None, 1_000_000, unit="/s"),
    Target("state machine : transitions", "machine.ours", "machine.transitions", 20),
    Target("state machine : python-statemachine", "machine.ours", "machine.python-statemachine", 150),
    Target("state machine : written by hand", "machine.ours", "machine.hand", 0.7),
    Target("memory of a state machine, of 1,000,000", "machine.bytes", None, 200, at_most=True, unit=" B"),
    Target("stop() after the last event, median", "stop.ours", None, 5, at_most=True, unit=" ms"),
    *(
        Target(
            f"two partitions : one, {us} us, {feed}, of two bare threads'",
            f"parallel.free.{us}-{feed}-{maker}.of-bare",
            None,
            bound,
        )
        for us, feed, bound in (
            (5, "queued", 0.85),
            (25, "queued", 0.95),
            (100, "queued", 0.95),
            (5, "posted", 0.7),
            (25, "posted", 0.9),
            (100, "posted", 0.9),
        )
        for maker in ("poster", "other")
    ),
    *(
        Target(f"two partitions, {us} us, {feed} : {peer}", f"parallel.free.{us}-{feed}-poster.{peer}", None, 1.2)
        for us in (0, 5, 25, 100)
        for feed in ("queued", "posted")
        for peer in ("queue", "pool", "pykka", "asyncio")
    ),
    Target("RSS growth from 10 % to 100 % of the events", "endurance.growth", None, 0.05, at_most=True, unit="%"),
)

RM_TARGETS = (
    Target("container life cycles, FIFO, 200 nodes", "rm.FIFO.200", None, 22_000, unit="/s"),
    Target("    : the revision before", "rm.FIFO.200.gain", None, None),
    Target("container life cycles, FIFO, 20,000 nodes", "rm.FIFO.20000", None, 20_000, unit="/s"),
    Target("    the same with the journal, 200 nodes", "rm.FIFO, with journal.200", None, 12_000, unit="/s"),
    Target("    : the revision before", "rm.FIFO, with journal.200.gain", None, None),
    Target("    : without the journal", "rm.FIFO, with journal.200", "rm.FIFO.200", None),
    Target("cost of a container, 20,000 : 200 nodes, FIFO", "rm.FIFO.growth", None, 1.5, at_most=True),
    Target("    the same, capacity", "rm.capacity, 3 queues.growth", None, 1.5, at_most=True),
    Target("heartbeats of 10,000 nodes at 1 Hz, of a core", "rm.heartbeats.idle", None, 0.3, at_most=True, unit="%"),
    Target("    the same, each runs 10 containers", "rm.heartbeats.running", None, 0.3, at_most=True, unit="%"),
    Target("200 nodes join, 10,000 living applications", "rm.joining", None, 0.3, at_most=True, unit=" s"),
    Target("life cycles with the model, FIFO, 200 nodes : none", "rm.model.kept.fifo.200", None, 0.95),
    Target("    the same, 2,000 nodes", "rm.model.kept.fifo.2000", None, 0.95),
    Target("    the same, capacity", "rm.model.kept.capacity.2000", None, 0.95),
    Target("events/s of 10,000 nodes with the model : none", "rm.model.load-kept", None, 0.95),
    Target("    age of the model's state, p50", "rm.model.age-p50", None, 350, at_most=True, unit=" ms"),
    Target(
        "    longest mail for the model, processor time", "rm.model.longest-mail", None, 10, at_most=True, unit=" ms"
    ),
    Target("decisions, FIFO, 20,000 nodes : Hydra's fleet", "rm.decisions.fifo.20000", "rm.decisions.hydra", None),
    Target(
        "RSS growth from 10 % to 100 % of the containers", "rm.endurance.growth", None, 0.05, at_most=True, unit="%"
    ),
)

ASYNC_TARGETS = (
    Target("unordered on Spark, 10 ms : the limit", "async.unordered", "async.limit", 0.95),
    Target("ordered on Spark, 10 ms : the limit", "async.ordered", "async.limit", 0.9),
    Target("    the same, async_column", "async.column", "async.limit", None),
    Target("unordered : a bare asyncio loop", "async.unordered", "async.bare", None),
    Target("unordered, 1 in 100 takes 500 ms : the limit", "async-tail.unordered", "async.tail-limit", 0.9),
    Target("    ordered : unordered", "async-tail.ordered", "async-tail.unordered", 0.85),
    Target("    async_column : unordered", "async-tail.column", "async-tail.unordered", 0.85),
    *(
        Target(f"processor time of a row: {name}", f"async-row.{key}", None, bound, at_most=True, unit=" us")
        for key, name, bound in (
            ("tuple", "a tuple", 13.4),
            ("dict", "a dict, ordered", 15),
            ("dict_unordered", "a dict, unordered", 15),
            ("keep_input", "keep_input", 17),
            ("threads", "on threads", 22),
            ("gather", "mapInArrow, gather", None),
            ("identity", "mapInPandas, nothing called", None),
        )
    ),
    Target("no latency, no engine: StreamTask, ordered", "async-core.task-ordered", None, 100_000, unit="/s"),
    Target("no latency, no engine: StreamTask, unordered", "async-core.task-unordered", None, 100_000, unit="/s"),
    Target("no latency, no engine: ordered_wait", "async-core.wait-ordered", None, 100_000, unit="/s"),
    Target("no latency, no engine: unordered_wait", "async-core.wait-unordered", None, 100_000, unit="/s"),
    Target("no latency on Spark, per core: ordered", "async-spark.ordered-per-core", None, 60_000, unit="/s"),
    Target("no latency on Spark, per core: unordered", "async-spark.unordered-per-core", None, 60_000, unit="/s"),
    Target("    async_column", "async-spark.column-per-core", None, None, unit="/s"),
    Target("tasks of 10 rows, unordered: mapInPandas", "async-tasks.pandas", "async-tasks.unordered", 1.15, True),
    Target("    ordered", "async-tasks.pandas", "async-tasks.ordered", 1.15, True),
    Target("    async_column", "async-tasks.pandas", "async-tasks.column", None, True),
    Target(
        "lookup_join, no cache: a query for each batch by hand", "async-lookup.by_hand", "async-lookup.none", 1, True
    ),
    Target(
        '    cache="partial": by hand, and a dict', "async-lookup.by_hand_kept", "async-lookup.partial", 1, at_most=True
    ),
    Target('    cache="full": by hand, and a dict', "async-lookup.by_hand_kept", "async-lookup.full", 1, at_most=True),
    Target("blocking functions, unordered : the limit", "async-blocking.unordered", "async.limit", None),
    Target("HTTP service of 100 ms, unordered : the limit", "async-http.unordered", "async-http.limit", None),
    Target("    : a bare asyncio loop", "async-http.unordered", "async-http.http-bare", None),
    Target("    : gather of a batch in mapInPandas", "async-http.unordered", "async-http.gather", None),
    Target("    : a thread pool with requests", "async-http.unordered", "async-http.threads", None),
    Target("    : arrow.concurrency.level with requests", "async-http.unordered", "async-http.level", None),
    Target("unordered : PyFlink's", "async.unordered", "async.pyflink-unordered", 6),
    Target("ordered : PyFlink's", "async.ordered", "async.pyflink-ordered", 6),
    Target("    ordered : with a process for each task", "async.ordered", "async.pyflink-processes-ordered", None),
    Target("    ordered : with all that slows it left out", "async.ordered", "async.pyflink-fast-ordered", None),
    Target("ordered : asyncio.gather of 100 at a time", "async.ordered", "async.gather", None),
    Target("ordered : asyncio.gather with a semaphore", "async.ordered", "async.semaphore", None),
    Target("ordered : Spark's arrow.concurrency.level", "async.ordered", "async.level", None),
    Target("429 service, adaptive: time : ideal", "async.limits.adaptive-time", None, 1.3, at_most=True),
    Target("    calls refused", "async.limits.adaptive-refused", None, 0.05, at_most=True, unit="%"),
    Target("    a limit that changes: time : ideal", "async.limits.adaptive-changing-time", None, 1.3, at_most=True),
    Target("    calls refused", "async.limits.adaptive-changing-refused", None, 0.05, at_most=True, unit="%"),
    Target("    RetryAfter alone: time : ideal", "async.limits.plain-time", None, None, at_most=True),
    Target("    calls refused", "async.limits.plain-refused", None, None, at_most=True, unit="%"),
    *(
        Target(f"{name}, {ms} ms, {action}: calls beyond", f"async-look.{mode}.{key}.{ms}.beyond", None, 200, True, "")
        for mode, name in (("unordered", "unordered_wait"), ("ordered", "ordered_wait"), ("column", "async_column"))
        for ms in (10, 2000)
        for key, action in (("take", "take(5)"), ("limit", "limit(10)"))
    ),
    Target("unordered, 10 ms, take(5): calls 2 s later", "async-look.unordered.take.10.later", None, 0, True, ""),
    Target("    the same, 2000 ms", "async-look.unordered.take.2000.later", None, 0, True, ""),
    Target("calls of a cached job's second run", "async-cached.second", None, 0, at_most=True, unit=""),
    Target("RSS growth from 10 % to 100 % of the rows", "async.memory.growth", None, 0.05, at_most=True, unit="%"),
    Target("processor time at a rate limit : gather by hand", "async.limits.cost", None, 1.2, at_most=True),
    Target("    its calls refused", "async.limits.cost-refused", None, 0, at_most=True, unit=""),
    Target("10,000,000 rows on a cluster", "async.millions.rate", None, None, unit="/s"),
    Target("    requests refused", "async.millions.refused", None, 0, at_most=True, unit=""),
    Target(
        "    RSS of the driver from 10 % to 100 %", "async.millions.driver-growth", None, 0.05, at_most=True, unit="%"
    ),
    Target("    of the workers", "async.millions.workers-growth", None, 0.05, at_most=True, unit="%"),
)

JOURNAL_TARGETS = (
    Target("journaled events, no fsync, one core", "journal.none", None, 300_000, unit="/s"),
    Target("    the same, fsync every second", "journal.interval", None, 300_000, unit="/s"),
    Target("    the same, fsync with each write", "journal.sync", None, 300_000, unit="/s"),
    Target("journaled events : logging to a file", "journal.interval", "journal.logging", 3),
    Target("journaled events : json.dumps lines", "journal.interval", "journal.json", None),
    Target("journaled events : SQLite", "journal.interval", "journal.sqlite", None),
    Target("write-ahead, no fsync, one producer", "journal.ahead-none", None, 80_000, unit="/s"),
    Target("write-ahead, sync: 32 producers : one", "journal.ahead-sync-32", "journal.ahead-sync", 12),
    Target("    8 producers : one", "journal.ahead-sync-8", "journal.ahead-sync", None),
    Target("write-ahead, sync: post_later", "journal.ahead-later", None, 40_000, unit="/s"),
    Target("    one producer : write and fdatasync", "journal.ahead-sync", "journal.write-sync", None),
    Target("    one producer : SQLite, a row a commit", "journal.ahead-sync", "journal.sqlite-full", None),
    Target("    32 producers : SQLite, commits of 32", "journal.ahead-sync-32", "journal.sqlite-full-32", None),
    Target("    post_later : SQLite, commits of 4096", "journal.ahead-later", "journal.sqlite-full-4096", None),
    Target("one entity's history, warm, beside the writer", "history.warm", None, 2000, at_most=True, unit=" ms"),
    Target("    the same, cold: pages dropped", "history.cold", None, 2000, at_most=True, unit=" ms"),
    Target("    the same, first in its process", "history.first", None, 2000, at_most=True, unit=" ms"),
    Target("    longest piece between two waits", "history.piece", None, 5, at_most=True, unit=" ms"),
    Target("report of some dozens of events, warm", "report.few-s", None, 1.5, at_most=True, unit=" s"),
    Target("    of the sample, 205,000 events", "report.sample-s", None, 3, at_most=True, unit=" s"),
    Target("    of 2 million events", "report.2-s", None, 5, at_most=True, unit=" s"),
    Target("    of 10 million events", "report.10-s", None, 14, at_most=True, unit=" s"),
    Target("    of 50 million events", "report.50-s", None, 60, at_most=True, unit=" s"),
    *(
        target
        for key, size in (("sample", "the sample"), ("2", "2 million"), ("10", "10 million"), ("50", "50 million"))
        for target in (
            Target(f"report of {size} : DuckDB, ten tables", f"report.{key}-s", f"report.{key}-duckdb-s", None),
            Target("    : decoding alone", f"report.{key}-s", f"report.{key}-decoding-s", None),
        )
    ),
    Target("cold report of the sample : empty job", "report.cold", "report.cold-empty", 1.6, at_most=True),
    Target("driver's memory, 50 million : 1 million: process", "report.rss-growth", None, 1.1, at_most=True),
    Target("    the same: heap of its JVM", "report.heap-growth", None, 1.1, at_most=True),
    Target("standalone, 10 million: two workers : one", "report.cluster-2", "report.cluster-1", 1.6),
    Target("sweep of 8, two cores : one after the other", "sweep.speedup", None, 1.7),
)

OPS_TARGETS = (
    Target("events/s with a door, nobody asks : without", "ops-rate.door-kept", None, 0.98),
    Target("    with top, a scrape every 5 s and a stream", "ops-rate.watched-kept", None, 0.95),
    Target("    /running asked for at 1,000/s : nobody asks", "ops-storm.stormed-kept", None, 0.9),
    Target("    its answers/s", "ops-storm.per-s", None, None, unit="/s"),
    Target("    its answers that are neither 200 nor 429", "ops-storm.wrong", None, 0, at_most=True, unit=""),
    Target("events/s, times sampled : before timing by type", "ops-timing.sampled-of-before", None, 0.97),
    Target("    the same, eight types", "ops-timing-8.sampled-of-before", None, 0.97),
    Target("events/s, times sampled : none", "ops-timing.sampled-of-none", None, None),
    Target("events/s, times sampled : all", "ops-timing.sampled-of-all", None, 4, at_most=True),
    Target("/dispatchers while the handler hangs, p99", "ops-hangs.door-p99", None, 10, at_most=True, unit=" ms"),
    Target("    aiomonitor, the loop hangs", "ops-hangs.aiomonitor-p99", None, None, unit=" ms"),
    Target("/dispatchers in a flood, p99", "ops-flood.door-p99", None, 150, at_most=True, unit=" ms"),
    Target("    aiomonitor, its loop is flooded", "ops-flood.aiomonitor-p99", None, None, unit=" ms"),
    Target("a scrape with 1,000,000 queued", "ops-scrape.ours-full", None, 50, at_most=True, unit=" ms"),
    Target("    prometheus_client's server", "ops-scrape.peer-full", None, None, unit=" ms"),
    Target("handler's rate during it : between scrapes", "ops-scrape.ours-kept", None, 0.9),
    Target("memory of the door, idle", "ops-memory.door", None, 25, at_most=True, unit=" MiB"),
    Target("    of aiomonitor", "ops-memory.aiomonitor", None, None, unit=" MiB"),
    Target("    growth over 1,000,000 requests", "ops-memory.requests", None, 2, at_most=True, unit=" MiB"),
    Target("processor time of the sampler, 20 dispatchers", "ops-sampling.share", None, 1, at_most=True, unit=" %"),
    Target("memory of its curves", "ops-sampling.memory", None, 5, at_most=True, unit=" MB"),
    Target("slowest page of 100,000 entities", "ops-pages.slowest", None, 100, at_most=True, unit=" ms"),
    Target("import and start of the door", "ops-start.door", None, 150, at_most=True, unit=" ms"),
    Target("    of aiomonitor", "ops-start.aiomonitor", None, None, unit=" ms"),
    Target("packages of extras that the core imports", "ops-start.extras", None, 0, at_most=True, unit=""),
)

WEB_TARGETS = (
    Target("GET /metrics, 8 connections, idle", "web-idle.metrics", None, 2000, unit="/s"),
    Target("    : a bare Starlette route", "web-idle.share", None, 0.6),
    Target("the same under load, 200/s, p50", "web-load.metrics-p50", None, 10, at_most=True, unit=" ms"),
    Target("    p99", "web-load.metrics-p99", None, 60, at_most=True, unit=" ms"),
    Target("    events/s : undisturbed", "web-load.metrics-kept", None, 0.95),
    Target("GET /apps of 10,000 under load, p50", "web-load.apps-p50", None, 1500, at_most=True, unit=" ms"),
    Target("    p99", "web-load.apps-p99", None, None, at_most=True, unit=" ms"),
    Target("    mails to the handler meanwhile, p99", "web-mails.apps-p99", None, 25, at_most=True, unit=" ms"),
    Target("    mails when nobody asks, p99", "web-mails.quiet-p99", None, None, at_most=True, unit=" ms"),
    Target("    events/s : undisturbed", "web-load.apps-kept", None, 0.8),
    Target("GET /apps?states=RUNNING&limit=100, p99", "web-load.running-p99", None, 80, at_most=True, unit=" ms"),
    Target("GET /apps/{app} under load, p99", "web-load.app-p99", None, 60, at_most=True, unit=" ms"),
    Target("age of the state under load, 200/s, p99", "web-age.metrics-p99", None, 350, at_most=True, unit=" ms"),
    Target("any GET while the handler is blocked, p99", "web-blocked.any-p99", None, 50, at_most=True, unit=" ms"),
    Target("applications acknowledged, SQLite", "web-submit.rate", None, 300, unit="/s"),
    Target("    p99 of the two requests", "web-submit.app-p99", None, 150, at_most=True, unit=" ms"),
    Target("kill: PUT to KILLED visible, p50", "web-kill.kill-p50", None, 300, at_most=True, unit=" ms"),
    Target("/cluster/apps, 10,000 applications: first byte", "web-page.byte", None, 60, at_most=True, unit=" ms"),
    Target("    first contentful paint", "web-page.paint", None, 250, at_most=True, unit=" ms"),
    Target("    HTML, packed", "web-page.html", None, 60, at_most=True, unit=" KB"),
    Target("    own JavaScript", "web-page.js", None, 20, at_most=True, unit=" KB"),
    Target("    style sheets", "web-page.css", None, 20, at_most=True, unit=" KB"),
    Target("    requests to other places", "web-page.outside", None, 0, at_most=True, unit=""),
    Target("five live tabs under load: growth of a tab", "web-live.tab", None, 20, at_most=True, unit=" MiB"),
    Target("    of the resource manager", "web-live.rm", None, 10, at_most=True, unit=" MiB"),
    Target("    of the same without tabs", "web-live.alone", None, None, at_most=True, unit=" MiB"),
    Target("    the web thread's share of a core", "web-live.share", None, 0.15, at_most=True, unit="%"),
    Target("RSS after a day in miniature", "web-endurance.growth", None, 5, at_most=True, unit=" MiB"),
    Target("    threads left", "web-endurance.threads", None, 0, at_most=True, unit=""),
    Target("    sockets left", "web-endurance.sockets", None, 0, at_most=True, unit=""),
)


def print_targets(figures: Figures, targets: Sequence[Target], *, everything: bool) -> None:
    """Print the targets measured in this run; with `everything`, also those that could not be measured."""
    measured_here = [(target, target.measured(figures)) for target in targets]
    shown = [(target, value) for target, value in measured_here if value is not None or everything]
    if not shown:
        return
    print(f"\n{'Targets':50} {'must be':>15} {'measured':>15}")
    for target, value in shown:
        bound = f"{'<=' if target.at_most else '>='} {target.shown(target.bound)}" if target.bound is not None else "-"
        measured = "not measured" if value is None else target.shown(value)
        verdict = "" if value is None else target.verdict(value)
        print(f"{target.what:50} {bound:>15} {measured:>15}  {verdict}".rstrip())
