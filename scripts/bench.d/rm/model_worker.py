"""One measurement of the web address's read model, in a process of its own: model_worker.py WHAT OPTIONS-AS-JSON."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from rm.clusters import SLOTS_PER_NODE, busy_cluster, config

from dispatcher.util.garbage import tune_garbage_collection
from statemachines.resourcemanager import ApplicationSubmission, Replay, Resource, ResourceManager
from statemachines.resourcemanager.read.model import ReadModel
from statemachines.resourcemanager.read.published import Cost, Publication
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, NodeSpec, Workload

_LOOK_EVERY_S = 0.02
_SLOT = Resource(4096, 1000)
_TIMEOUT_S = 120.0


class MeasuredModel(ReadModel):
    """A read model that notes what its publications cost, and how old the state was when the next one came."""

    def __init__(self, manager: ResourceManager) -> None:
        super().__init__(manager)
        self.costs: list[Cost] = []  # the loop's thread writes; read when it has ended
        self.ages_ms: list[int] = []  # as above

    def apply(self, publication: Publication) -> None:
        self.costs.append(publication.cost)
        self.ages_ms.append(self.age_ms())
        super().apply(publication)


class Collections:
    """The longest pause of the garbage collector, which stops all threads."""

    def __init__(self) -> None:
        self.longest_ns = 0  # written by whichever thread collects; read when the load has ended
        self._begun_ns = 0  # as above

    def note(self, phase: str, _: dict[str, int]) -> None:
        """For `gc.callbacks`."""
        if phase == "start":
            self._begun_ns = time.thread_time_ns()
        else:
            self.longest_ns = max(self.longest_ns, time.thread_time_ns() - self._begun_ns)


class Follower:
    """A read model on a loop of its own thread, as the web address has it."""

    def __init__(self, manager: ResourceManager) -> None:
        self._model = MeasuredModel(manager)
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="follower")
        self._from = 0

    def start(self) -> None:
        self._thread.start()

    def measure(self) -> None:
        """Count from now on."""
        self._from = len(self._model.costs)

    def end(self) -> dict[str, float]:
        """The figures since `measure`."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        costs, ages_ms = self._model.costs[self._from :], sorted(self._model.ages_ms[self._from :])
        return {
            "publications": len(costs),
            "mails": sum(cost.mails for cost in costs),
            "cpu_s": sum(cost.cpu_ns for cost in costs) / 1e9,
            "longest_mail_ms": max(cost.longest_ns for cost in costs) / 1e6,
            "age_p50_ms": ages_ms[len(ages_ms) // 2],
            "age_p99_ms": ages_ms[len(ages_ms) * 99 // 100],
        }

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._follow())

    async def _follow(self) -> None:
        self._model.follow()
        await self._end.wait()
        await self._model.close()


def life_cycles(nodes: int, containers: int, scheduler: str, followed: bool) -> dict[str, float]:
    """Seconds of wall and processor time from the first submission to the last end."""
    settings = config(scheduler, simulation={"heartbeat_interval_ms": 1000})
    replay = Replay(busy_cluster(nodes, containers), settings)
    started: list[tuple[float, float]] = []
    follower = Follower(replay.manager) if followed else None

    def start() -> None:
        started.append((time.perf_counter(), time.process_time()))

    replay.manager.dispatcher.mailbox_executor.execute(start, "start")
    if follower is not None:
        follower.start()
        follower.measure()
    replay.start()
    replay.wait()
    took_s, took_cpu_s = time.perf_counter() - started[0][0], time.process_time() - started[0][1]
    figures = follower.end() if follower is not None else {}
    replay.stop()
    replay.raise_failure()
    return {"containers": replay.progress().containers, "took_s": took_s, "took_cpu_s": took_cpu_s, **figures}


@dataclass(frozen=True)
class Arrivals(Collection[ApplicationSpec]):
    """Applications that come at a rate, each of a master and two tasks of some seconds."""

    count: int
    per_s: int

    def __len__(self) -> int:
        return self.count

    def __contains__(self, spec: object) -> bool:
        return any(spec == each for each in self)

    def __iter__(self) -> Iterator[ApplicationSpec]:
        tasks = tuple(ContainerSpec(_SLOT, 3_000 + 500 * number) for number in range(2))
        for number in range(self.count):
            yield ApplicationSpec(f"app{number}", number * 1000 // self.per_s, _SLOT, tasks, user=f"user{number % 7}")


def load(nodes: int, applications: int, per_s: int, warm_s: float, seconds: float, followed: bool) -> dict[str, float]:
    """A resource manager in real time whose nodes report each second, while applications come and go."""
    manager = ResourceManager(config("fifo", max_completed_applications=applications))
    manager.init()
    manager.start()
    for _ in range(applications // 500):
        manager.context.call(lambda: _come_and_go(manager, 500))
    capacity = Resource(SLOTS_PER_NODE * 4096, SLOTS_PER_NODE * 1000)
    specs = tuple(NodeSpec(f"node{number}", capacity, f"/rack{number // 40}") for number in range(nodes))
    arrivals = Arrivals(int(per_s * (warm_s + seconds + _TIMEOUT_S)), per_s)
    manager.bring(Workload("load", specs, arrivals))
    tune_garbage_collection()
    follower = Follower(manager) if followed else None
    if follower is not None:
        follower.start()
    time.sleep(warm_s)
    if follower is not None:
        follower.measure()
    collections = Collections()
    gc.callbacks.append(collections.note)
    handled, cpu_s, begun_s = manager.dispatcher.stats().handled, time.process_time(), time.perf_counter()
    delays_ms = list(_delays_ms(manager, begun_s + seconds))
    took_s = time.perf_counter() - begun_s
    figures = {
        "events_per_s": (manager.dispatcher.stats().handled - handled) / took_s,
        "cores": (time.process_time() - cpu_s) / took_s,
    }
    figures["mailbox_p99_ms"] = sorted(delays_ms)[len(delays_ms) * 99 // 100]
    figures["longest_collection_ms"] = collections.longest_ns / 1e6
    if follower is not None:
        figures |= follower.end()
        figures["share"] = figures["cpu_s"] / took_s
    manager.stop()
    return figures


def _delays_ms(manager: ResourceManager, until_s: float) -> Iterator[float]:
    """How long a mail waits, again and again."""
    while (begun_s := time.perf_counter()) < until_s:
        manager.context.call(lambda: None)
        yield (time.perf_counter() - begun_s) * 1e3
        time.sleep(_LOOK_EVERY_S)


def _come_and_go(manager: ResourceManager, count: int) -> None:
    for _ in range(count):
        app_id = manager.clients.submit_application(ApplicationSubmission("app", _SLOT))
        manager.clients.force_kill_application(app_id)


if __name__ == "__main__":
    tune_garbage_collection()
    print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
