"""How fast the door and its peers answer: handlers that hang, a queue of a million, producers that flood it."""

from __future__ import annotations

import statistics
from bisect import bisect
from contextlib import ExitStack

from measure import Figures, Settings, Spread, print_table
from ops.processes import Answer, Worker
from ops.rates import MILLION, rounds, seconds

DISPATCHERS = "/ops/v1/dispatchers"
ASKED_PER_S = 5.0
ASKED_S = 30.0
PEERS_S = 10.0
PRODUCERS = 3
SCRAPES = 10
SCRAPE_EVERY_S = 0.2
BRIEF, LONG = 20, 500
"""Loops of a handler for each event: some more than a producer takes to post one; about 10 us."""
LEAST_QUEUED = 200_000
"""Enough for the handler to work on until the last scrape."""


def latency(settings: Settings) -> Figures:
    """One client that asks five times a second, of a daemon whose handler hangs, and of one that is flooded."""
    asked = {
        "door": (f"GET {DISPATCHERS}", ASKED_S, "socket", DISPATCHERS, "GET"),
        "metrics": ("GET /metrics of MetricsServer", PEERS_S, "metrics", "/metrics", "GET"),
        "prometheus": ("    of prometheus_client's server", PEERS_S, "peer", "/metrics", "GET"),
        "aiomonitor": ("aiomonitor, tasks of an asyncio daemon", PEERS_S, "web", "/api/live-tasks", "POST"),
    }
    queued = settings.count(MILLION)
    taken: dict[str, dict[str, list[list[float]]]] = {state: {key: [] for key in asked} for state in ("hangs", "flood")}
    with ExitStack() as stack:
        clients = stack.enter_context(Worker("asking_worker.py"))
        daemon = Worker(
            "daemon_worker.py",
            door=True,
            metrics=True,
            peer=True,
            handler="work",
            loops=BRIEF,
            capacity=queued,
            events=1000,
            types=8,
        )
        stack.enter_context(daemon)
        peer = stack.enter_context(Worker("peers_worker.py", monitor=True))

        left: dict[Worker, list[int]] = {daemon: [], peer: []}

        def ask(state: str, key: str, worker: Worker) -> None:
            _, length_s, where, path, method = asked[key]
            answer = clients.ask(
                "poll",
                where=worker.started[where],
                path=path,
                per_s=ASKED_PER_S,
                seconds=seconds(settings, length_s),
                method=method,
            )
            assert set(answer["statuses"]) == {"200"}, answer["statuses"]
            taken[state][key].append(answer["latencies_ms"])

        for _ in range(rounds(settings)):
            for worker, keys in ((daemon, ("door", "metrics", "prometheus")), (peer, ("aiomonitor",))):
                worker.ask("hold")
                for key in keys:
                    ask("hangs", key, worker)
                worker.ask("release")
                worker.ask("pour", producers=PRODUCERS, **({"queued": queued} if worker is peer else {}))
                for key in keys:
                    ask("flood", key, worker)
                left[worker].append(worker.ask("stop_pouring")["queued"])
                if worker is daemon:
                    worker.ask("await_drained")
    figures = _report_latencies(taken, {key: name for key, (name, *_) in asked.items()}, queued)
    print(f"At the ends of the floods {min(left[daemon]):,} events were queued, and {min(left[peer]):,} callbacks.")
    return figures


def _report_latencies(taken: dict[str, dict[str, list[list[float]]]], names: dict[str, str], queued: int) -> Figures:
    figures: Figures = {}
    states = {"hangs": "the handler hangs", "flood": f"{queued:,} queued, {PRODUCERS} producers flood it"}
    for state, shown in states.items():
        for percent in (50, 99):
            spreads = {
                names[key]: Spread.of([percentile(samples, percent) for samples in lists])
                for key, lists in taken[state].items()
            }
            print_table(f"Answers in ms, p{percent}, lower is better: {shown}", spreads, digits=2)
            for key, name in names.items():
                figures[f"ops-{state}.{key}-p{percent}"] = spreads[name].median
    return figures


def scrapes(settings: Settings) -> Figures:
    """A page of metrics with a million events in the queue, and how fast the handler goes on meanwhile."""
    queued, times = max(LEAST_QUEUED, settings.count(MILLION)), max(3, round(SCRAPES * settings.scale))
    paths = {"ours": ("metrics", "MetricsServer"), "peer": ("peer", "prometheus_client's server, same registry")}
    empty: dict[str, list[float]] = {key: [] for key in paths}
    full: dict[str, list[float]] = {key: [] for key in paths}
    kept: dict[str, list[float]] = {key: [] for key in paths}
    options = {"metrics": True, "peer": True, "handler": "work", "loops": LONG, "events": queued, "types": 8}
    with ExitStack() as stack:
        clients = stack.enter_context(Worker("asking_worker.py"))
        worker = stack.enter_context(Worker("daemon_worker.py", **options))

        def scrape(key: str) -> list[tuple[float, float]]:
            where = worker.started[paths[key][0]]
            answer = clients.ask("scrape", where=where, path="/metrics", times=times, every_s=SCRAPE_EVERY_S)
            return [(begun, ended) for begun, ended in answer["windows"]]

        for number in range(rounds(settings)):
            for key in sorted(paths, reverse=bool(number % 2)):
                empty[key].append(_median_ms(scrape(key)))
                worker.ask("hold")
                full[key].append(_median_ms(scrape(key)))
                worker.ask("release")
                windows = scrape(key)
                answer = worker.ask("marks")
                worker.ask("discard")
                kept[key].append(_rate_kept(answer, windows))
    names = {key: name for key, (_, name) in paths.items()}
    figures: Figures = {}
    for state, shown, values in (("empty", "nothing queued", empty), ("full", f"{queued:,} queued", full)):
        spreads = {names[key]: Spread.of(values[key]) for key in paths}
        print_table(f"A scrape in ms, lower is better: {shown}", spreads, digits=2)
        figures |= {f"ops-scrape.{key}-{state}": spreads[names[key]].median for key in paths}
    spreads = {names[key]: Spread.of(kept[key]) for key in paths}
    print_table("The handler's rate during a scrape : between scrapes", spreads, digits=3)
    lost_ms = {key: (1 - spreads[names[key]].median) * figures[f"ops-scrape.{key}-full"] for key in paths}
    print(
        "So a scrape takes "
        + ", ".join(f"{lost_ms[key]:.1f} ms ({names[key]})" for key in paths)
        + " from the handler."
    )
    return figures | {f"ops-scrape.{key}-kept": spreads[names[key]].median for key in paths}


def _rate_kept(answer: Answer, windows: list[tuple[float, float]]) -> float:
    """The handler's rate inside the windows : between them, from the times at which it had handled so many."""
    marks = answer["marks"]
    last = marks[-1]
    assert last > windows[-1][0], "the handler had nothing left to do during the last scrape"
    inside_s = sum(min(ended, last) - begun for begun, ended in windows if begun < last)
    inside = sum(_handled_by(marks, ended) - _handled_by(marks, begun) for begun, ended in windows)
    first, end = windows[0][0], windows[-1][1]
    outside = _handled_by(marks, end) - _handled_by(marks, first) - inside
    outside_s = min(end, last) - first - inside_s
    return (inside / inside_s) / (outside / outside_s)


def _handled_by(marks: list[float], at: float) -> float:
    """How many marks were passed by a moment, with a fraction."""
    place = bisect(marks, at)
    if place == 0 or place == len(marks):
        return float(place)
    before, after = marks[place - 1], marks[place]
    return place + (at - before) / (after - before) if after > before else float(place)


def _median_ms(windows: list[tuple[float, float]]) -> float:
    return statistics.median((ended - begun) * 1e3 for begun, ended in windows)


def percentile(samples: list[float], percent: int) -> float:
    if len(samples) == 1:
        return samples[0]
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]
