"""One resource manager after another, each killed before its work is done, in a world that lives on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dispatcher import ServiceState
from dispatcher.testing import ManualClock
from statemachines.resourcemanager import ResourceManager

from ...simulation.replays import TIMEOUT_S, config
from ..daemon.outside import Job, World
from ..inner import MemoryRMStateStore, RMStateStore
from ..live.cluster import EVENT_TYPES

AM_EXPIRY_MS = 3000
TICK_MS = 100


class Life:
    """One resource manager's life in a world: until all has ended there, or until it is killed.

    It is killed after `events` events were handled, or at `at_ms`: what is queued is silently lost.
    """

    def __init__(
        self,
        world: World,
        store: RMStateStore,
        *,
        events: int | None = None,
        at_ms: int | None = None,
        **settings: Any,
    ) -> None:
        self._world = world
        self._clock = ManualClock(world.now_ms)
        self._has_started = threading.Event()
        self._is_over = threading.Event()
        self._kill_after = events
        self.handled = 0
        self.was_killed = False
        self.manager = manager = ResourceManager(
            config(**{"max_attempts": 3, **settings}),
            node_managers=lambda _: world,
            clock=self._clock,
            store=store,
            on_idle=self._is_over.set,
        )
        # In virtual time nothing expires until `expire_due` is called: see _tick.
        self._expiring = (manager.context.am_liveliness_monitor, manager.context.am_finishing_monitor)
        for monitor in self._expiring:
            monitor.interval_ms = AM_EXPIRY_MS
        for event_class in EVENT_TYPES:
            manager.dispatcher.register(event_class, self._count)
        # Also if the handler thread fails.
        manager.dispatcher.register_service_listener(lambda dispatcher: self._look(dispatcher.state))
        manager.dispatcher.mailbox_executor.execute(lambda: self._begin(at_ms), "the world")

    def run(self) -> None:
        """To its end; nothing must have gone wrong on the way."""
        self._world.manager = self.manager
        with self.manager:
            self._has_started.set()
            assert self._is_over.wait(TIMEOUT_S), "neither killed nor at rest"
        assert self.manager.dispatcher.wait_for_service_to_stop(TIMEOUT_S)
        self._world.now_ms = self._clock.current_processing_time() + 1
        dispatcher = self.manager.dispatcher
        invalid = {machine: stats.invalid for machine, stats in self.manager.recorder.machines.items() if stats.invalid}
        problems = (dispatcher.failure_cause, dispatcher.stats().failed, invalid)
        assert problems == (None, 0, {}), problems

    def at(self, delay_ms: int, action: Callable[[], Any]) -> None:
        """Do something so long after the beginning."""
        self.manager.dispatcher.mailbox_executor.execute(
            lambda: self.manager.context.timers.register_timer(self._world.now_ms + delay_ms, lambda _: action()), "at"
        )

    def _begin(self, kill_at_ms: int | None) -> None:
        assert self._has_started.wait(TIMEOUT_S)  # a kill while it starts would wait until it has
        for node in self._world.nodes:
            node.register()
        if kill_at_ms is not None:
            self.manager.context.timers.register_timer(kill_at_ms, lambda _: self._kill())
        self._tick()

    def _tick(self) -> None:
        """Heartbeats of the nodes, and what is due; until the world is at rest, which leaves nothing to wait for."""
        if self.was_killed:
            return
        assert self.manager.context.now_ms() < 3_600_000, "no end in sight"
        for monitor in self._expiring:
            monitor.expire_due()
        self._world.pass_time()
        for node in self._world.nodes:
            node.heartbeat()
        if not self._world.is_at_rest():
            self.manager.context.timers.register_timer(self.manager.context.now_ms() + TICK_MS, lambda _: self._tick())

    def _look(self, state: ServiceState) -> None:
        if state is ServiceState.STOPPED:
            self._is_over.set()

    def _count(self, event: Any) -> None:
        self.handled += 1
        if self.handled == self._kill_after:
            self._kill()

    def _kill(self) -> None:
        self.was_killed = True
        self.manager.dispatcher.set_drain_events_on_stop(False)
        self.manager.dispatcher.stop()


class Lives:
    """One resource manager after another on one store, in one world."""

    def __init__(self, *jobs: Job, nodes: int = 2) -> None:
        self.world = World(nodes, *jobs)
        self.store = MemoryRMStateStore()
        self.last: Life

    def until(self, at_ms: int, **settings: Any) -> Life:
        """One that is killed at that time."""
        return self._live(Life(self.world, self.store, at_ms=at_ms, **settings))

    def to_the_end(self, **settings: Any) -> Life:
        return self._live(Life(self.world, self.store, **settings))

    def _live(self, life: Life) -> Life:
        self.last = life
        life.run()
        return life

    def ends(self) -> dict[str, tuple[str, int]]:
        """By name of the job: how its application ended, and after how many attempts."""
        apps = self.last.manager.context.apps
        ends = {client.job.name: apps[client.id or ""] for client in self.world.clients}
        assert len(apps) == len(ends), "an application that nobody submitted"
        return {name: (app.state.name, len(app.attempts)) for name, app in ends.items()}


def check_nothing_is_left(manager: ResourceManager) -> None:
    context = manager.context
    assert context.containers == {}
    assert context.scheduler.waiting() == []
    for node in context.scheduler.nodes():
        assert (node.free_memory_mb, node.free_vcores_milli) == (node.capacity.memory_mb, node.capacity.vcores_milli)
