"""How fast the resource manager takes applications by REST, and kills them."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median

from measure import Figures, Settings, Spread, print_table
from ops.rates import rounds
from web.loads import Latencies, clients, expect, resource_manager

SUBMITTED = 3000
CONNECTIONS = 16
KILLED = 100
NODES = 100


def submissions(settings: Settings) -> Figures:
    """POST new-application and POST apps, acknowledged once the application is in SQLite."""
    count = settings.count(SUBMITTED)
    waits = Latencies("An application's two requests", {"app": "POST new-application + POST apps"})
    rates = []
    with ExitStack() as stack:
        asking = stack.enter_context(clients())
        for _ in range(rounds(settings)):
            with resource_manager(nodes=NODES, known=0, sqlite=True) as manager:
                answer = asking.ask("submit", port=manager.started["port"], count=count, connections=CONNECTIONS)
            expect(answer, 202)
            rates.append(answer["per_s"])
            waits.add("app", answer["latencies_ms"])
    print_table("Applications acknowledged per second", {f"{CONNECTIONS} connections, SQLite": Spread.of(rates)})
    return waits.report("web-submit") | {"web-submit.rate": median(rates)}


def kills(settings: Settings) -> Figures:
    """From the PUT until a GET shows KILLED, one application after the other."""
    count = settings.count(KILLED)
    waits = Latencies("PUT to KILLED visible", {"kill": "of applications that run"})
    with ExitStack() as stack:
        asking = stack.enter_context(clients())
        manager = stack.enter_context(resource_manager(nodes=NODES, known=0))
        for _ in range(rounds(settings)):
            ids = manager.ask("submit_forever", count=count)["ids"]
            waits.add("kill", asking.ask("kill", port=manager.started["port"], ids=ids)["latencies_ms"])
    return waits.report("web-kill")
