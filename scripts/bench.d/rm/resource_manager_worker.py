"""One measurement of the resource manager, in a process of its own: resource_manager_worker.py WHAT OPTIONS-AS-JSON."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from ops.processes import resident_bytes
from rm.clusters import CAPACITY_QUEUES, SLOTS_PER_NODE, busy_cluster, config

from dispatcher.mailbox import ManualClock
from dispatcher.util.garbage import tune_garbage_collection
from statemachines import TransitionRecorder
from statemachines.resourcemanager import ApplicationSubmission, Replay, Resource, ResourceManager
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.records import ContainerRequest
from statemachines.resourcemanager.events.rmcontainer import RMContainerEventType
from statemachines.resourcemanager.events.scheduler import (
    AppAddedSchedulerEvent,
    AppAttemptAddedSchedulerEvent,
    NodeAddedSchedulerEvent,
)
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.resource_manager import make_scheduler
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, NodeSpec, Workload

SLOT = Resource(4096, 1000)


def life_cycles(
    nodes: int, containers: int, scheduler: str, journaled: bool, heartbeat_interval_ms: int
) -> dict[str, Any]:
    """Seconds from the first submission to the last end, of the clock and of the processor, and the resident size after
    each tenth of the containers and at the end.
    """
    workload = busy_cluster(nodes, containers)
    count = workload.container_count  # once, and before the start: it makes all applications
    settings = config(scheduler, simulation={"heartbeat_interval_ms": heartbeat_interval_ms})
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(workload, settings, journal_path=Path(folder) / "journal" if journaled else None)
        # Behind the mail that registers the nodes, whose events have been handled when the first application comes.
        started: list[tuple[float, float]] = []

        def start() -> None:
            started.append((time.perf_counter(), time.process_time()))

        replay.manager.dispatcher.mailbox_executor.execute(start, "start")
        replay.start()
        tenths_bytes: list[int] = []
        while not replay.wait(0.05):
            if replay.progress().containers >= count * (len(tenths_bytes) + 1) // 10:
                tenths_bytes.append(resident_bytes())
        took_s, took_cpu_s = time.perf_counter() - started[0][0], time.process_time() - started[0][1]
        late_bytes = resident_bytes()
        replay.stop()
        replay.raise_failure()
    progress = replay.progress()
    assert progress.containers == progress.applications_by_state["FINISHED"] * (len(SPEC_OF_ONE.containers) + 1)
    return {
        "containers": progress.containers,
        "took_s": took_s,
        "took_cpu_s": took_cpu_s,
        "early_bytes": tenths_bytes[0] if tenths_bytes else late_bytes,
        "late_bytes": late_bytes,
        "tenths_bytes": tenths_bytes,
    }


SPEC_OF_ONE = next(iter(busy_cluster(1, 1).applications))


def decisions(nodes: int, count: int, scheduler: str) -> dict[str, float]:
    """Seconds for `count` times: a container of a full cluster ends, and its room goes to an ask that waits."""
    posted = _Nowhere()
    context = RMContext(
        config(scheduler),
        posted,  # type: ignore[arg-type]
        ManualClock(),
        TransitionRecorder(),
        0,
        scheduler=make_scheduler,
    )
    engine = context.scheduler
    for number in range(nodes):
        spec = NodeSpec(f"node{number}", Resource(SLOTS_PER_NODE * 4096, SLOTS_PER_NODE * 1000), f"/rack{number // 40}")
        node = RMNode(context, spec)
        context.nodes[node.entity] = node
        engine.handle(NodeAddedSchedulerEvent(node.entity))
    attempts = []
    for number in range(30):
        submission = ApplicationSubmission("app", SLOT, user=f"user{number % 7}", queue=_queue(scheduler, number))
        app = RMApp(context, f"application_0_{number:04d}", submission)
        context.apps[app.entity] = app
        engine.handle(AppAddedSchedulerEvent(app.entity))
        app.start_attempt()
        attempts.append(app.attempts[0].entity)
        engine.handle(AppAttemptAddedSchedulerEvent(attempts[-1]))
        engine.ask(attempts[-1], [ContainerRequest(SLOT)])
    request, slots = ContainerRequest(SLOT, priority=20, kind="map"), nodes * SLOTS_PER_NODE
    # A few more asks than there are slots: the cluster is full, and whatever ends is replaced.
    for _ in range(slots // 30 + 2):
        for attempt in attempts:
            engine.ask(attempt, [request])
    live = [(attempt, container.entity) for attempt in attempts for container in engine.pull_newly_allocated(attempt)]
    step, place = 7919, 0  # a prime: containers end all over the cluster
    started = time.perf_counter()
    for _ in range(count):
        place = (place + step) % len(live)
        attempt, container_id = live[place]
        engine.ask(attempt, [request], (container_id,))
        del context.containers[container_id]  # as the handler of its end would do
        attempt = context.containers[posted.started].attempt
        (new,) = engine.pull_newly_allocated(attempt)
        live[place] = (attempt, new.entity)
    return {"took_s": time.perf_counter() - started}


def _queue(scheduler: str, number: int) -> str:
    return str(CAPACITY_QUEUES[number % len(CAPACITY_QUEUES)]["name"]) if scheduler == "capacity" else "default"


class _Nowhere:
    """Stands in for a dispatcher: takes all events, handles none, and knows the container that was allocated last."""

    def __init__(self) -> None:
        self.event_handler = self
        self.started = ""

    def handle(self, event: Any) -> bool:
        if event.type is RMContainerEventType.START:
            self.started = event.entity
        return True


def heartbeats(nodes: int, containers: int, seconds: float) -> dict[str, float]:
    """Cores that a resource manager in real time takes for heartbeats alone, once a second from each node.

    Each node runs `containers` containers, which its heartbeats list.
    """
    manager = ResourceManager(config("fifo"))
    manager.init()
    manager.start()
    capacity = Resource(SLOT.memory_mb * max(1, containers), SLOT.vcores_milli * max(1, containers))
    specs = tuple(NodeSpec(f"node{number}", capacity, f"/rack{number // 40}") for number in range(nodes))
    tasks = (ContainerSpec(SLOT, 10**9),) * 99
    apps = tuple(ApplicationSpec(f"app{number}", 0, SLOT, tasks) for number in range(nodes * containers // 100))
    manager.bring(Workload("nodes", specs, apps))
    running = len(apps) * 100
    while manager.context.call(lambda: _reported(manager)) < (nodes, running):
        time.sleep(0.5)
    tune_garbage_collection()
    time.sleep(2)  # what the last containers have brought is over
    beats = manager.context.call(lambda: _beats(manager))
    cpu_s, begun_s = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    cores = (time.process_time() - cpu_s) / (time.perf_counter() - begun_s)
    beats = manager.context.call(lambda: _beats(manager)) - beats
    took_s = time.perf_counter() - begun_s
    assert manager.context.call(lambda: _reported(manager)) == (nodes, running)
    manager.stop()
    return {"cores": cores, "heartbeats_per_s": beats / took_s}


def _reported(manager: ResourceManager) -> tuple[int, int]:
    """Nodes in service, and the containers that they have reported."""
    nodes = manager.context.nodes.values()
    return sum(node.in_scheduler for node in nodes), sum(len(node.containers) for node in nodes)


def _beats(manager: ResourceManager) -> int:
    stays = manager.recorder.machines["RMNode"].transitions
    return stays["RUNNING", "RUNNING"]


def memory(count: int) -> dict[str, float]:
    """Bytes of an application that waits for room, and of a container that runs."""
    return {"application_bytes": _waiting_applications(count), "container_bytes": _running_containers(count)}


def _waiting_applications(count: int) -> float:
    manager, idle = _manager(Workload("none", (), ()))
    before = resident_bytes()
    submission = ApplicationSubmission("app", SLOT)

    def submit() -> None:
        for _ in range(count):
            manager.clients.submit_application(submission)

    idle.clear()
    manager.dispatcher.mailbox_executor.execute(submit, "submit")
    idle.wait()
    grown = resident_bytes() - before
    assert len(manager.context.scheduler.waiting()) == count
    manager.stop()
    return grown / count


def _running_containers(count: int) -> float:
    node = NodeSpec("node", Resource(SLOT.memory_mb * (count + 1), SLOT.vcores_milli * (count + 1)))
    tasks = (ContainerSpec(SLOT, 10**12),) * count
    manager, _ = _manager(Workload("none", (node,), ()))
    before = resident_bytes()
    all_run, hold = threading.Event(), threading.Event()

    def look(_: int) -> None:
        all_run.set()
        hold.wait()

    manager.bring(Workload("tasks", (), (ApplicationSpec("app", 0, SLOT, tasks),)))
    # Long after the tasks have begun, and long before they end.
    manager.context.timers.register_timer(10**9, look)
    all_run.wait()
    grown = resident_bytes() - before
    assert len(manager.context.containers) == count + 1
    hold.set()
    manager.stop()
    return grown / count


def joining(nodes: int, applications: int) -> dict[str, float]:
    """Seconds until all nodes that join are in service, with so many applications whose masters no node could take."""
    manager, idle = _manager(Workload("none", (), ()))
    submission = ApplicationSubmission("app", Resource(10**9, 1000))
    capacity = Resource(SLOTS_PER_NODE * 4096, SLOTS_PER_NODE * 1000)

    def submit() -> None:
        for _ in range(applications):
            manager.clients.submit_application(submission)

    def join() -> None:
        for number in range(nodes):
            manager.tracker.register_node(NodeSpec(f"node{number}", capacity, f"/rack{number // 40}"))

    took_s = 0.0
    for work in (submit, join):
        idle.clear()
        started = time.perf_counter()
        manager.dispatcher.mailbox_executor.execute(work, "work")
        idle.wait()
        took_s = time.perf_counter() - started
    assert len(manager.context.scheduler.waiting()) == applications
    assert manager.clients.get_cluster_metrics().nodes["RUNNING"] == nodes
    manager.stop()
    return {"took_s": took_s}


def _manager(workload: Workload) -> tuple[ResourceManager, threading.Event]:
    """A resource manager in virtual time that has nothing to do."""
    idle = threading.Event()
    manager = ResourceManager(config("fifo"), clock=ManualClock(), on_idle=idle.set)
    manager.bring(workload)
    manager.init()
    manager.start()
    idle.wait()
    return manager, idle


if __name__ == "__main__":
    tune_garbage_collection()
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
