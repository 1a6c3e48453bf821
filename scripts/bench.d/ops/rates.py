"""Events per second beside a door that is there, that is looked through, and that is stormed; and what timing costs.

The processes with and without take turns of a few seconds. What is kept is the ratio of turns of one round, which are
neighbours in time; the medians are of these ratios.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from measure import Figures, Settings, Spread, print_table
from ops.processes import Answer, Worker, in_turns, source_of

MILLION = 1_000_000
TURN_S = 5.0
SCRAPE_EVERY_S = 5.0
TIMING_TURN_S = 3.0
STORM_S = 10.0
STORM_PER_S = 1_000.0
STORM_CLIENTS = 32
REPEATS = 5
RUNNING = "/ops/v1/dispatchers/central/running"


def rounds(settings: Settings) -> int:
    return min(settings.repeats, REPEATS)


def seconds(settings: Settings, of: float) -> float:
    """A length of time, scaled."""
    return max(0.3, of * settings.scale)


def throughput(settings: Settings) -> Figures:
    """core.throughput's first row: one producer, events made beforehand, metrics on."""
    turn_s, events = seconds(settings, TURN_S), settings.count(MILLION)
    scrape_every_s = min(SCRAPE_EVERY_S, turn_s)
    with ExitStack() as stack:
        clients = stack.enter_context(Worker("asking_worker.py"))
        doors: dict[str, dict[str, Any]] = {
            "plain": {},
            "door": {"door": True},
            "watched": {"door": True, "metrics": True},
        }
        workers = _started(stack, {name: {"events": events, **options} for name, options in doors.items()})
        seen: Counter[str] = Counter()

        def turn(name: str, worker: Worker) -> Answer:
            if name != "watched":
                return worker.ask("flood", seconds=turn_s)
            where = worker.started["socket"]
            clients.send(
                "watch",
                socket=where,
                metrics=worker.started["metrics"],
                seconds=turn_s,
                scrape_every_s=scrape_every_s,
            )
            flooded = worker.ask("flood", seconds=turn_s)
            seen.update(clients.answer())
            return flooded

        _warm_up(workers, settings)
        answers = in_turns(workers, rounds(settings), turn)
    names = {
        "plain": "without a door",
        "door": "with a door, nobody asks",
        "watched": "top, a scraper and a stream's client",
    }
    figures = _report("ops-rate", "Events per second: one producer, events made beforehand", names, answers)
    print(f"They saw {seen['frames']} frames of top, {seen['scrapes']} scrapes and {seen['events']} events.")
    return figures


def storm(settings: Settings) -> Figures:
    """What runs now, asked for a thousand times a second, while events are handled at full speed."""
    turn_s = seconds(settings, STORM_S)
    options = {"door": True, "events": settings.count(MILLION)}
    with ExitStack() as stack:
        clients = stack.enter_context(Worker("asking_worker.py"))
        workers = _started(stack, {"quiet": options, "stormed": options})
        statuses: Counter[str] = Counter()
        per_s = []

        def turn(name: str, worker: Worker) -> Answer:
            if name == "stormed":
                asking = {"where": worker.started["socket"], "path": RUNNING, "per_s": STORM_PER_S}
                clients.send("storm", **asking, seconds=turn_s, clients=STORM_CLIENTS)
            flooded = worker.ask("flood", seconds=turn_s)
            if name == "stormed":
                answer = clients.answer()
                statuses.update(answer["statuses"])
                per_s.append(answer["per_s"])
            return flooded

        _warm_up(workers, settings)
        answers = in_turns(workers, rounds(settings), turn)
    names = {"quiet": "door, nobody asks", "stormed": f"/running asked for at {STORM_PER_S:,.0f}/s"}
    figures = _report("ops-storm", "Events per second: one producer, events made beforehand", names, answers)
    title = ", ".join(f"{count:,} of status {status}" for status, count in sorted(statuses.items()))
    print(f"{STORM_CLIENTS} clients had {title}; {statistics.median(per_s):,.0f} answers/s.")
    refused = sum(count for status, count in statuses.items() if status not in ("200", "429"))
    return figures | {"ops-storm.per-s": statistics.median(per_s), "ops-storm.wrong": refused}


def timing(settings: Settings) -> Figures:
    """Timing by type: sampled, none and all, for one type and for eight; with `--before`, also of that revision."""
    turn_s, events = seconds(settings, TIMING_TURN_S), settings.count(MILLION)
    figures: Figures = {}
    with source_of(settings.before) as source:
        for types, which in ((1, "one type"), (8, "eight types in turn")):
            options = {
                times: {"times": times, "types": types, "events": events} for times in ("sampled", "none", "all")
            }
            names = {"sampled": "sampled", "none": "measure_times: none", "all": "measure_times: all"}
            with ExitStack() as stack:
                workers = _started(stack, options)
                if source is not None:
                    before = Worker("daemon_worker.py", source=source, **options["sampled"])
                    workers["before"] = stack.enter_context(before)
                    names["before"] = f"sampled, at {settings.before}"[:46]
                _warm_up(workers, settings)
                answers = in_turns(workers, rounds(settings), lambda _, worker: worker.ask("flood", seconds=turn_s))
            key = "ops-timing" if types == 1 else "ops-timing-8"
            figures |= _report(key, f"Events per second: times, {which}", names, answers)
    return figures


def _started(stack: ExitStack, options: Mapping[str, Mapping[str, Any]]) -> dict[str, Worker]:
    return {name: stack.enter_context(Worker("daemon_worker.py", **each)) for name, each in options.items()}


def _warm_up(workers: Mapping[str, Worker], settings: Settings) -> None:
    for worker in workers.values():
        worker.ask("flood", seconds=seconds(settings, 1.0))


def _report(key: str, title: str, names: Mapping[str, str], answers: list[dict[str, Any]]) -> Figures:
    """Rates, and how much of each other name's rate the first one has, or has of the first, round by round."""
    first = next(iter(names))
    figures: Figures = {}
    spreads, ratios = {}, []
    for name, shown in names.items():
        spreads[shown] = Spread.of([answer[name]["rate"] for answer in answers])
        figures[f"{key}.{name}"] = spreads[shown].median
        kept = statistics.median(answer[name]["rate"] / answer[first]["rate"] for answer in answers)
        figures[f"{key}.{name}-kept"] = kept
        figures[f"{key}.{first}-of-{name}"] = 1 / kept
        ratios.append(f"{kept:.3f} x")
    print_table(title, spreads, extra={"kept": ratios})
    return figures
