"""How fast the REST API answers: an idle resource manager, one under load L, one whose handler is blocked."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

from measure import Figures, Settings, Spread, print_table
from ops.processes import Answer, Worker
from ops.rates import rounds, seconds
from web.loads import API, Latencies, clients, cores, expect, loaded, resource_manager, worker

METRICS = f"{API}/metrics"
CONNECTIONS = 8
IDLE_S = 10.0
LOADED_S = 20.0
BLOCKED_S = 30.0
PACED_PER_S = 200.0
OTHERS_PER_S = 20.0


def idle(settings: Settings) -> Figures:
    """GET /metrics of an idle resource manager, beside a bare Starlette route that sends as many bytes."""
    turn_s = seconds(settings, IDLE_S)
    rates: dict[str, list[float]] = {"ours": [], "bare": []}
    with ExitStack() as stack:
        asking = stack.enter_context(clients())
        manager = stack.enter_context(resource_manager(nodes=settings.count(100), known=0))
        size = asking.ask("loop", port=manager.started["port"], path=METRICS, count=20)["bytes"]
        bare = stack.enter_context(worker("bare_worker.py", core=cores()[0], size=size))
        paths = {"ours": (manager, METRICS), "bare": (bare, "/metrics")}
        for number in range(rounds(settings)):
            for key in sorted(paths, reverse=bool(number % 2)):
                served, path = paths[key]
                rates[key].append(_requests_per_s(asking, served.started["port"], path, turn_s))
    spreads = {"GET /metrics": Spread.of(rates["ours"]), "a bare Starlette route": Spread.of(rates["bare"])}
    with_what = "wrk" if shutil.which("wrk") else "a client in Python, which may be slower than the server"
    print_table(f"Requests per second, {CONNECTIONS} connections, {size:,} bytes each, by {with_what}", spreads)
    share = median([ours / theirs for ours, theirs in zip(rates["ours"], rates["bare"], strict=True)])
    return {"web-idle.metrics": median(rates["ours"]), "web-idle.bare": median(rates["bare"]), "web-idle.share": share}


def _requests_per_s(asking: Worker, port: int, path: str, turn_s: float) -> float:
    program = shutil.which("wrk")
    if program is None:
        answer = asking.ask("loop", port=port, path=path, seconds=turn_s, connections=CONNECTIONS)
        expect(answer, 200)
        return float(answer["per_s"])
    core = cores()[1]
    pin = ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []
    url = f"http://127.0.0.1:{port}{path}"
    command = [*pin, program, "-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(turn_s))}s", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Requests/sec:\s*([\d.]+)", done)
    if found is None or "Non-2xx" in done:
        raise RuntimeError(f"{' '.join(command)}: {done}")
    return float(found[1])


def under_load(settings: Settings) -> Figures:
    """Under load L: what clients wait, and what the resource manager still does beside them.

    Undisturbed turns come before and after each turn with clients; events per second are compared with their mean.
    """
    turn_s = seconds(settings, LOADED_S)
    names = {
        "metrics": f"GET /metrics, {PACED_PER_S:.0f}/s",
        "app": f"GET /apps/{{app}}, {OTHERS_PER_S:.0f}/s",
        "running": f"GET /apps?states=RUNNING&limit=100, {OTHERS_PER_S:.0f}/s",
        "apps": "GET /apps, one client in a loop",
    }
    waits = Latencies("Answers under load", names)
    mails = Latencies("Mails to the handler thread", {"quiet": "nobody asks", **names})
    ages = Latencies("Age of the state in the answers", names)
    kept: dict[str, list[float]] = {key: [] for key in names}
    quiet_rates: list[float] = []
    shares: dict[str, list[float]] = {key: [] for key in ("quiet", *names)}
    pauses_ms: dict[str, list[float]] = {key: [] for key in shares}
    sizes: list[int] = []
    with ExitStack() as stack:
        asking = stack.enter_context(clients())
        manager = stack.enter_context(loaded(settings))

        def measured(key: str, ask: Callable[[], Answer]) -> tuple[float, Answer]:
            manager.ask("mark", probe=True)
            answer = ask()
            found = manager.ask("measured")
            mails.add(key, found["mails_ms"])
            shares[key].append(found["cpu_share"])
            pauses_ms[key].append(max(found["pauses_ms"].values(), default=0.0))
            return float(found["rate"]), answer

        def quiet() -> float:
            return measured("quiet", lambda: manager.ask("handled", seconds=turn_s / 2))[0]

        asks = _asks(manager, asking, turn_s)
        for _ in range(rounds(settings)):
            before = quiet()
            for key, ask in asks.items():
                rate, answer = measured(key, ask)
                expect(answer, 200)
                waits.add(key, answer["latencies_ms"])
                ages.add(key, answer["ages_ms"])
                sizes.append(answer.get("bytes", 0))
                after = quiet()
                kept[key].append(rate / ((before + after) / 2))
                quiet_rates.append(after)
                before = after
    _report_rates(names, kept, quiet_rates, shares)
    longest = ", ".join(f"{name} {max(pauses_ms[key]):,.0f}" for key, name in {"quiet": "nobody asks", **names}.items())
    print(f"The longest garbage collection in ms: {longest}")
    print(f"An answer to GET /apps has {max(sizes):,} bytes.")
    figures = waits.report("web-load") | mails.report("web-mails") | ages.report("web-age")
    figures |= {f"web-load.{key}-kept": median(kept[key]) for key in names}
    return figures | {"web-load.quiet": median(quiet_rates)}


def _asks(manager: Worker, asking: Worker, turn_s: float) -> dict[str, Callable[[], Answer]]:
    port = manager.started["port"]

    def paced(paths: Callable[[], list[str]], per_s: float) -> Callable[[], Answer]:
        return lambda: asking.ask("paced", port=port, paths=paths(), per_s=per_s, seconds=turn_s)

    def applications() -> list[str]:
        return [f"{API}/apps/{id}" for id in manager.ask("live_ids", count=100)["ids"]]

    return {
        "metrics": paced(lambda: [METRICS], PACED_PER_S),
        "app": paced(applications, OTHERS_PER_S),
        "running": paced(lambda: [f"{API}/apps?states=RUNNING&limit=100"], OTHERS_PER_S),
        "apps": lambda: asking.ask("loop", port=port, path=f"{API}/apps", seconds=turn_s),
    }


def _report_rates(
    names: dict[str, str], kept: dict[str, list[float]], quiet: list[float], shares: dict[str, list[float]]
) -> None:
    events = Spread.of(quiet)
    print(f"\nUndisturbed: {events.median:,.0f} events/s ({events.lowest:,.0f} to {events.highest:,.0f}),", end=" ")
    print(f"{median(shares['quiet']):.0%} of a core")
    print_table(
        "Events per second beside clients : undisturbed",
        {names[key]: Spread.of(kept[key]) for key in names},
        digits=3,
        extra={"of a core": [f"{median(shares[key]):.0%}" for key in names]},
    )


def blocked(settings: Settings) -> Figures:
    """While one mail blocks the handler: reads go on from the last publication."""
    turn_s = seconds(settings, BLOCKED_S)
    waits = Latencies(
        f"Answers while the handler is blocked, {PACED_PER_S:.0f}/s in all",
        {"any": "/metrics, /scheduler, a node, applications"},
    )
    with ExitStack() as stack:
        asking = stack.enter_context(clients())
        manager = stack.enter_context(loaded(settings))
        port = manager.started["port"]
        paths = [METRICS, f"{API}/scheduler", f"{API}/nodes/node00007:45454", f"{API}/apps?states=RUNNING&limit=100"]
        paths += [f"{API}/apps/{id}" for id in manager.ask("live_ids", count=20)["ids"]]
        for _ in range(rounds(settings)):
            manager.ask("block")
            answer = asking.ask("paced", port=port, paths=paths, per_s=PACED_PER_S, seconds=turn_s)
            manager.ask("release")
            expect(answer, 200)
            waits.add("any", answer["latencies_ms"])
    return waits.report("web-blocked")
