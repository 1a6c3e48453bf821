"""The resource manager that clients ask, in a process of its own: rm_worker.py OPTIONS-AS-JSON.

It is put together as `dispatcher run` does, with simulated nodes that send a heartbeat each second in real time.
"""

from __future__ import annotations

import gc
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ops.processes import Answer, resident_bytes, serve, wait_until

from dispatcher import CompositeService
from dispatcher.util.garbage import tune_garbage_collection
from statemachines.resourcemanager import Resource, ResourceManager
from statemachines.resourcemanager.records.config import ResourceManagerConfig
from statemachines.resourcemanager.web import RMDoor
from statemachines.simulation.cluster import SimulatedCluster
from statemachines.simulation.specs import ApplicationSpec, ContainerSpec
from statemachines.simulation.workload import NodeSpec, Workload

NAME = "rm"
SLOT = Resource(1024, 1000)
NODE = Resource(16 * 1024, 16_000)
NODES_PER_RACK = 40
KNOWN_PER_S = 1000
"""How fast the first applications come, until as many are known as shall be."""
TASK_MS = 1000
PROBE_EVERY_S = 0.01


class Applications:
    """The first ones quickly, then so many per second, for ever."""

    def __init__(self, known: int, per_s: float) -> None:
        self._known = known
        self._per_s = per_s

    def __iter__(self) -> Iterator[ApplicationSpec]:
        for number in range(self._known):
            yield self._spec(number, number * 1000 // KNOWN_PER_S, ())
        if not self._per_s:
            return
        begins_ms = self._known * 1000 // KNOWN_PER_S
        for number in itertools.count():
            at_ms = begins_ms + round(number * 1000 / self._per_s)
            yield self._spec(self._known + number, at_ms, (ContainerSpec(SLOT, TASK_MS),))

    def __len__(self) -> int:
        return self._known

    def __contains__(self, _: object) -> bool:
        return False

    def _spec(self, number: int, submit_ms: int, tasks: tuple[ContainerSpec, ...]) -> ApplicationSpec:
        return ApplicationSpec(f"query {number}", submit_ms, SLOT, tasks, user=f"user{number % 20}")


class Daemon:
    """A started resource manager behind its door, and what it can be asked for."""

    def __init__(
        self,
        nodes: int,
        known: int,
        per_s: float = 0.0,
        door: bool = True,
        sqlite: bool = False,
        transitions_kept: int = 200_000,
        core: int | None = None,
    ) -> None:
        """`known`: applications that have ended before it is ready; then `per_s` come and go each second."""
        if core is not None:
            os.sched_setaffinity(0, {core})
        self._folder = tempfile.TemporaryDirectory()
        store = {"kind": "sqlite", "path": str(Path(self._folder.name) / "store.db")} if sqlite else {"kind": "memory"}
        config = ResourceManagerConfig.model_validate(
            {
                "name": NAME,
                "metrics": {"enabled": False},
                "state_store": store,
                "ops": {"transitions_kept": transitions_kept},
                "max_completed_applications": max(known, 100),
                "web": {
                    "port": 0,
                    "socket_path": str(Path(self._folder.name) / "rm.sock"),
                    "requests_per_s": 1e6,
                    "connections": 1000,
                    "event_streams": 1000,
                },
            }
        )
        self._manager = ResourceManager(config, node_managers=SimulatedCluster)
        specs = tuple(NodeSpec(f"node{n:05d}", NODE, f"/rack{n // NODES_PER_RACK}") for n in range(nodes))
        self._manager.bring(Workload("load", specs, Applications(known, per_s)))
        self._daemon = CompositeService("daemon")
        self._door = RMDoor(self._manager) if door else None
        if self._door is not None:
            self._daemon.add_service(self._door)
        self._daemon.add_service(self._manager)
        self._release = threading.Event()  # ends what blocks the handler
        self._probing: _Probe | None = None
        self._pauses = _Pauses()
        tune_garbage_collection(regularly=True)
        self._daemon.init()
        self._daemon.start()
        wait_until(lambda: self._ended() >= known and self._active() >= nodes, 600)
        url = self._door.url if self._door is not None else None
        self.started = {"port": int(url.rpartition(":")[2]) if url is not None else None, "pid": os.getpid()}

    def close(self) -> None:
        self._release.set()
        self._daemon.stop()
        self._folder.cleanup()

    def handled(self, seconds: float) -> Answer:
        """Events per second of all dispatchers, over some seconds."""
        before, begun = self._handled(), time.perf_counter()
        time.sleep(seconds)
        return {"rate": (self._handled() - before) / (time.perf_counter() - begun)}

    def mark(self, probe: bool = False) -> Answer:
        """Begin to measure, until `measured`. `probe`: mails to the handler thread, 100 a second."""
        self._probing = _Probe(self._manager) if probe else None
        self._pauses.longest_ms.clear()
        self._marked = self._handled(), time.perf_counter(), self._web_cpu_s(), time.process_time()
        return {}

    def measured(self) -> Answer:
        """Events/s since `mark`, the latencies of mails, the longest garbage collections by generation, and the shares
        of a core that the web thread and all threads took."""
        handled, begun, web_s, cpu_s = self._marked
        took_s = time.perf_counter() - begun
        return {
            "rate": (self._handled() - handled) / took_s,
            "mails_ms": self._probing.stop() if self._probing is not None else [],
            "pauses_ms": self._pauses.longest_ms,
            "web_share": (self._web_cpu_s() - web_s) / took_s,
            "cpu_share": (time.process_time() - cpu_s) / took_s,
        }

    def block(self) -> Answer:
        """Keep the handler thread in a mail until `release`."""
        self._release.clear()
        begun = threading.Event()

        def hold() -> None:
            begun.set()
            self._release.wait()

        self._manager.dispatcher.mailbox_executor.execute(hold, "hold")
        begun.wait()
        return {}

    def release(self) -> Answer:
        self._release.set()
        return {}

    def memory(self) -> Answer:
        """Sizes, and how many applications have ended: fewer than come if it does not keep up with the load."""
        return {
            "bytes": resident_bytes(),
            "ended": self._ended(),
            "threads": threading.active_count(),
            "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        }

    def live_ids(self, count: int) -> Answer:
        """Ids of applications that run."""

        def ids() -> list[str]:
            running = [id for id, app in self._manager.context.apps.items() if app.state.name == "RUNNING"]
            return running[-count:]

        return {"ids": self._manager.context.call(ids)}

    def submit_forever(self, count: int) -> Answer:
        """Applications whose masters run until they are killed; returns their ids once they run."""
        specs = tuple(ApplicationSpec(f"victim {n}", 0, SLOT, am_duration_ms=None) for n in range(count))
        self._manager.bring(Workload("victims", (), specs))

        def ids() -> list[str]:
            apps = self._manager.context.apps.items()
            return [id for id, app in apps if app.submission.name.startswith("victim") and app.state.name == "RUNNING"]

        wait_until(lambda: len(self._manager.context.call(ids)) >= count)
        return {"ids": self._manager.context.call(ids)[-count:]}

    def _handled(self) -> int:
        return sum(dispatcher.stats().handled for dispatcher in self._manager.dispatchers)

    def _ended(self) -> int:
        states = self._manager.recorder.machines.get("RMApp")
        return states.entities().get("FINISHED", 0) if states is not None else 0

    def _active(self) -> int:
        states = self._manager.recorder.machines.get("RMNode")
        return states.entities().get("RUNNING", 0) if states is not None else 0

    def _web_cpu_s(self) -> float:
        for thread in threading.enumerate():
            if thread.name == f"{NAME}-web" and thread.native_id is not None:
                stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
                ticks = stat.rpartition(")")[2].split()
                return (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0


class _Pauses:
    """The longest garbage collection of each generation, in ms. The collector calls it, one call at a time."""

    def __init__(self) -> None:
        self.longest_ms: dict[int, float] = {}
        self._begun = 0.0
        gc.callbacks.append(self)

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._begun = time.perf_counter()
            return
        took_ms, generation = (time.perf_counter() - self._begun) * 1e3, info["generation"]
        self.longest_ms[generation] = max(took_ms, self.longest_ms.get(generation, 0.0))


class _Probe:
    """Sends mails to the handler thread, and measures how long each waits."""

    def __init__(self, manager: ResourceManager) -> None:
        self._executor = manager.dispatcher.mailbox_executor
        self._waits_ms: list[float] = []  # the handler thread appends
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(PROBE_EVERY_S):
            self._executor.execute(partial(self._arrived, time.perf_counter()), "probe")

    def _arrived(self, sent: float) -> None:
        self._waits_ms.append((time.perf_counter() - sent) * 1e3)

    def stop(self) -> list[float]:
        self._is_over.set()
        self._thread.join()
        return self._waits_ms


if __name__ == "__main__":
    serve(lambda options: Daemon(**options))
