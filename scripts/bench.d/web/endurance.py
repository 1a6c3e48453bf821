"""A day in miniature: a million requests and ten thousand streams of events; what is left of them in the process."""

from __future__ import annotations

from contextlib import ExitStack

from measure import Figures, Settings
from ops.processes import Answer, Worker
from web.loads import API, clients, expect, resource_manager

REQUESTS = 1_000_000
STREAMS = 10_000
AT_A_TIME = 8
PARTS = 10
"""Requests and streams take turns; the first part of them warms the process up."""
STREAM = "/ops/v1/stream"
MIB = 2**20
SETTLED_S = 1.0
"""After the last answer, so that closed connections are closed on both sides."""


def endurance(settings: Settings) -> Figures:
    """RSS after a tenth of it and at the end; threads and descriptors before and at the end."""
    requests, streams = settings.count(REQUESTS), max(PARTS, settings.count(STREAMS))
    with ExitStack() as stack:
        asking = stack.enter_context(clients())
        manager = stack.enter_context(resource_manager(nodes=100, known=100, per_s=1.0))
        port = manager.started["port"]
        paths = [f"{API}/{path}" for path in ("metrics", "info", "scheduler", "nodes", "apps?limit=20")]
        asking.ask("many", port=port, paths=paths, count=20, connections=1)  # what is imported at first use
        idle = _settled(manager)
        per_s, states = [], []
        for _ in range(PARTS):
            answer = asking.ask("many", port=port, paths=paths, count=requests // PARTS, connections=AT_A_TIME)
            expect(answer, 200)
            per_s.append(answer["per_s"])
            asking.ask("streams", port=port, path=STREAM, count=streams // PARTS, at_a_time=AT_A_TIME, events=0)
            states.append(_settled(manager))
    early, late = states[0], states[-1]
    grown = (late["bytes"] - early["bytes"]) / MIB
    print(f"\nA day in miniature: {requests:,} requests, {streams:,} streams; {per_s[-1]:,.0f} requests/s at the end")
    sizes = [f"{each['bytes'] / MIB:.1f}" for each in states]
    print(f"RSS in MiB after each tenth: {', '.join(sizes)} ({grown:+.1f})")
    threads, descriptors = late["threads"] - idle["threads"], late["descriptors"] - idle["descriptors"]
    print(f"Left: {threads:+d} threads, {descriptors:+d} descriptors, of {idle['threads']} and {idle['descriptors']}")
    return {"web-endurance.growth": grown, "web-endurance.threads": threads, "web-endurance.sockets": descriptors}


def _settled(manager: Worker) -> Answer:
    manager.ask("handled", seconds=SETTLED_S)
    return manager.ask("memory")
