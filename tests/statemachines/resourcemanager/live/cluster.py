"""A whole resource manager in virtual time with the timing of a live one, in a cluster that outlives it.

Its scheduler assigns containers on heartbeats, and reserves. It and the store come to what they are sent late, as if on
threads of their own. Silent nodes and masters expire. It may be killed at any moment; the next one starts with what the
store has.

Threading: on the handler thread of the resource manager that there is, but for `run`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from dispatcher import ServiceState
from dispatcher.testing import ManualClock
from statemachines.resourcemanager import (
    ApplicationSubmission,
    Resource,
    ResourceManager,
    RMAppAttemptEventType,
    RMAppEventType,
    RMContainer,
    RMContainerEventType,
    RMNodeEventType,
)
from statemachines.resourcemanager.resource_manager import make_scheduler
from statemachines.simulation.agenda import Agenda, ScheduledCall
from statemachines.simulation.workload import NodeSpec

from ...simulation.replays import TIMEOUT_S, config
from ..inner import (
    FINAL_STATES,
    AMLauncherEventType,
    MemoryRMStateStore,
    NodeManagers,
    NodesListManagerEventType,
    RMAppManagerEventType,
    RMContext,
    RMStateStoreEvent,
    RMStateStoreEventType,
    SchedulerEventType,
)
from ..machines.course import HOSTS, QUEUES, Noting
from . import promises
from .daemons import HEARTBEAT_MS, Master, Node, Plan, suppressed

CAPACITY = Resource(10, 10)
WITHOUT_A = ({**QUEUES[0], "name": "other"}, QUEUES[1])
MOST_EVENTS = 30_000  # far more than any course needs
CHECKED_EVERY = 10  # events
SETTLE_MS = 120_000
EVENT_TYPES = [
    RMAppEventType,
    RMAppAttemptEventType,
    RMContainerEventType,
    RMNodeEventType,
    SchedulerEventType,
    AMLauncherEventType,
    RMStateStoreEventType,
    RMAppManagerEventType,
    NodesListManagerEventType,
]


@dataclass(frozen=True)
class Settings:
    """Of a course."""

    scheduler: str = "capacity"
    store_lag: int = 0
    """The store writes and answers so many events later than it is asked."""
    store_ms: int = 0
    scheduler_lag: int = 0
    """The scheduler handles an event so many events later than it is posted."""
    preemption: bool = False
    work_preserving: bool = True
    has_queue_a: bool = True


@dataclass(frozen=True)
class Step:
    """What is to happen, and when."""

    at_ms: int
    what: Callable[[LiveCluster], object]
    on: str | None = None
    """Only after the next event of this type; `UPDATE_APP written` is when the store has just answered one."""

    def __repr__(self) -> str:
        return f"Step({self.at_ms}, {self.what!r}, {self.on!r})"


class LateStore(MemoryRMStateStore):
    """Writes and answers later than it is asked, in this order; what it has not written yet dies with its manager."""

    def __init__(self, before: LateStore | None = None) -> None:
        super().__init__()
        if before is not None:
            self.__dict__.update(before.__dict__)
            self._store_state = MemoryRMStateStore().store_state
        self.refuses = False
        """New applications, as a full disk does that has room for small changes."""
        self.fails = False
        self.cluster: LiveCluster
        self._asked: deque[RMStateStoreEvent] = deque()

    def handle(self, event: RMStateStoreEvent) -> None:
        self._asked.append(event)
        settings = self.cluster.settings
        if settings.store_ms:
            self.cluster.later(settings.store_ms, self.cluster.of_this_life(self._write))
        else:
            self.cluster.after(settings.store_lag, self._write)

    def _write(self) -> None:
        event = self._asked.popleft()
        if self._store_state.name == "FENCED":
            return
        if self.fails or (self.refuses and event.type._name_ == "STORE_APP"):
            self._fail(event, OSError("no space left on device"))
            if self._store_state.name == "FENCED":
                self.cluster.kill()  # instead of the stop that follows, which would let time pass until its end
        else:
            super().handle(event)
            self.cluster.notice(f"{event.type._name_} written")


class LiveCluster(NodeManagers):
    """A course of a cluster: what its steps bring, then all that is broken is repaired, and all applications end."""

    def __init__(self, settings: Settings, steps: Iterable[Step]) -> None:
        self.settings = settings
        self.manager: ResourceManager
        self.nodes: dict[str, Node] = {}
        self.masters: dict[str, Master] = {}  # by attempt
        self.plans: dict[str, Plan] = {}  # by application, in the order of submission
        self.acknowledged: set[str] = set()  # applications that may not get lost
        self.reached: set[tuple[str, str, str]] = set()  # (machine, state, event) of each transition
        self.refused: list[tuple[str, str, str]] = []  # of each that is not valid
        self.problems: list[str] = []  # what did not hold
        self.lives = 0
        self.store = LateStore()
        self._agenda = Agenda(self.now_ms)
        self._has_started = threading.Event()
        self._is_over = threading.Event()
        self._has_ended = False
        self._events = 0
        self._has_begun = False  # the present resource manager has recovered
        self._waiting: list[list[Any]] = []  # [events until it happens, life, action]
        self._watching: list[tuple[str, Callable[[], None]]] = []  # what is to happen after an event of this type
        self._scheduler_events: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._last: deque[str] = deque(maxlen=20)
        self._time_ms = 0  # before there is a resource manager, and between two
        last_ms = 0
        for step in steps:
            last_ms = max(last_ms, step.at_ms)
            self.later(step.at_ms, lambda step=step: self._take(step))  # type: ignore[misc]
        self.later(last_ms + 1, self._repair)
        for number, host in enumerate(HOSTS):
            node = Node(self, NodeSpec(host, CAPACITY))
            self.nodes[node.id] = node
            self.later(number * HEARTBEAT_MS // len(HOSTS), node.beat)

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def deadlines(self) -> Agenda:
        return self._agenda

    def now_ms(self) -> int:
        return self._time_ms if self._is_between_lives() else self.manager.context.now_ms()

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._agenda.at(self.now_ms() + delay_ms, lambda call: call.about(), ScheduledCall(action))

    def after(self, events: int, action: Callable[[], None]) -> None:
        """Do it after so many more events, or once nothing else is left to do at this time."""
        if events == 0:
            action()
            return
        self._waiting.append([events, self.lives, action])
        self.later(0, self._do_first)

    def of_this_life(self, action: Callable[[], None]) -> Callable[[], None]:
        """The action, but nothing once the present resource manager is gone."""
        life = self.lives
        return lambda: action() if self.lives == life else None

    def _is_between_lives(self) -> bool:
        return not hasattr(self, "manager")

    def _do_first(self) -> None:
        if self._waiting:
            _, life, action = self._waiting.pop(0)
            if life == self.lives:
                action()
            self.later(0, self._do_first)

    def _take(self, step: Step) -> None:
        if step.on is None:
            self.do(step.what)
        else:
            self._watching.append((step.on, lambda: self.do(step.what)))

    def do(self, what: Callable[[LiveCluster], object]) -> None:
        suppressed(lambda: what(self))

    # -- lives --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The whole course."""
        while not self._has_ended:
            self._live()

    def kill(self, **changes: Any) -> None:
        """Kill the resource manager, and start another one, perhaps with other settings."""
        self.settings = replace(self.settings, **changes)
        # As mail: it ends the jump in time, if that has brought it here.
        self.manager.dispatcher.mailbox_executor.execute(self._stop, "a kill")

    def _stop(self) -> None:
        self.manager.dispatcher.set_drain_events_on_stop(False)
        self.manager.dispatcher.stop()

    def _live(self) -> None:
        settings, self.store = self.settings, LateStore(self.store)
        self.store.cluster = self
        queues = QUEUES if settings.has_queue_a else WITHOUT_A
        capacity = {
            "kind": "capacity",
            "queues": queues,
            "preemption": {
                "enabled": settings.preemption,
                "monitoring_interval_ms": 400,
                "max_wait_before_kill_ms": 400,
                "total_preemption_per_round": 1,
                "natural_termination_factor": 1,
            },
        }
        self._is_over.clear()
        self._has_started.clear()
        clock = ManualClock(self._time_ms)
        with mock.patch.multiple(
            "statemachines.resourcemanager.resource_manager", RMContext=_LiveContext, make_scheduler=self._scheduler
        ):
            manager = ResourceManager(
                config(
                    dispatcher={"drain_timeout_s": 1},
                    scheduler=capacity if settings.scheduler == "capacity" else {"kind": "fifo"},
                    work_preserving_recovery=settings.work_preserving,
                    max_attempts=3,
                    am_expiry_interval_s=3,
                    nm_expiry_interval_s=2,
                    container_allocation_expiry_s=1,
                ),
                node_managers=lambda _: self,
                clock=clock,
                recorder=Noting(self),
                store=self.store,
            )
        for event_type in EVENT_TYPES:
            manager.dispatcher.register(event_type, self._observe)
        manager.dispatcher.register_service_listener(lambda each: self._look(each.state))
        manager.dispatcher.mailbox_executor.execute(self._begin, "the cluster")
        self.manager = manager
        with manager:
            self._has_started.set()
            assert self._is_over.wait(TIMEOUT_S), "it does not come to an end"
        assert manager.dispatcher.wait_for_service_to_stop(TIMEOUT_S)
        failure = manager.dispatcher.failure_cause
        if failure is not None and self.store.store_state.name != "FENCED":
            self.problems.append(f"the resource manager failed: {failure!r}")
            self._has_ended = True
        if failed := manager.dispatcher.stats().failed:
            self.problems.append(f"{failed} events failed")
        self._time_ms = clock.current_processing_time() + 1
        self.lives += 1
        self._scheduler_events.clear()
        self._has_begun = False
        del self.manager

    def _scheduler(self, context: Any, on_heartbeat: bool) -> Any:
        made = make_scheduler(context, on_heartbeat=True)
        handle = made.handle

        def handle_late(event: Any) -> None:
            if not self._has_begun:  # it recovers
                handle(event)
                return
            self._scheduler_events.append((handle, event))
            self.after(self.settings.scheduler_lag, self._schedule)

        made.handle = handle_late  # type: ignore[method-assign]
        return made

    def _schedule(self) -> None:
        handle, event = self._scheduler_events.popleft()
        handle(event)

    def _look(self, state: ServiceState) -> None:
        if state is ServiceState.STOPPED:
            self._is_over.set()

    def _begin(self) -> None:
        assert self._has_started.wait(TIMEOUT_S)  # a kill while it starts would wait until it has
        self._has_begun = True
        known = self.manager.context.apps
        self.problems += [f"{app_id} was acknowledged, and is lost" for app_id in self.acknowledged - known.keys()]

    def _observe(self, event: Any) -> None:
        self._events += 1
        name = event.type._name_
        self._last.append(f"{name} {event.entity}")
        if self._events > MOST_EVENTS:
            self.problems.append(f"it does not come to rest: {list(self._last)}")
            self._end()
            return
        if name == "APP_NEW_SAVED":
            self.acknowledged.add(event.entity)
        if self._events % CHECKED_EVERY == 0:
            context = self.manager.context
            self.problems += [f"after {name} for {event.entity}: {each}" for each in promises.wrong_books(context)]
        self.notice(name)
        for waiting in self._waiting:
            waiting[0] -= 1
        due = [waiting for waiting in self._waiting if waiting[0] <= 0]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] > 0]
        for _, life, action in due:
            if life == self.lives:
                action()

    def notice(self, name: str) -> None:
        """Something of this name has happened, before what is late by one event."""
        for watched, action in [each for each in self._watching if each[0] == name]:
            self._watching.remove((watched, action))
            action()

    # -- as node managers are reached ---------------------------------------------------------------------------------

    def start_container(self, container: RMContainer) -> None:
        self.nodes[container.node].start(container)
        master = Master(self, container.attempt, self.plans[container.application], container.entity)
        self.masters[container.attempt] = master
        master.begin()

    def stop_container(self, container_id: str) -> None:
        for node in self.nodes.values():
            node.end(container_id, -1)

    def submit(self, plan: Plan) -> str:
        app_id = self.manager.clients.submit_application(
            ApplicationSubmission(
                "any",
                plan.master,
                plan.user,
                plan.queue,
                priority=plan.priority,
                max_attempts=plan.max_attempts,
                lifetime_s=plan.lifetime_s,
                keep_containers_across_attempts=plan.keeps,
                unmanaged_am=plan.unmanaged,
            )
        )
        self.plans[app_id] = plan
        if plan.unmanaged:
            attempt = f"{app_id.replace('application', 'appattempt')}_000001"
            master = self.masters[attempt] = Master(self, attempt, plan, None)
            master.begin()
        return app_id

    # -- the end ------------------------------------------------------------------------------------------------------

    def _repair(self) -> None:
        """All that is broken works again. Nothing else is to happen any more."""
        self._watching.clear()
        self.store.refuses = self.store.fails = False
        self.settings = replace(self.settings, store_lag=0, store_ms=0, scheduler_lag=0)
        for node in self.nodes.values():
            node.repair()
        admin = self.manager.admin
        admin.recommission(HOSTS)
        admin.refresh_nodes([], include=[])
        self._settle(self.now_ms() + SETTLE_MS)

    def _settle(self, until_ms: int) -> None:
        context = self.manager.context
        endless = {app_id for app_id, plan in self.plans.items() if plan.end == "stay"}
        is_settled = all(app in endless and context.apps[app].state.name == "RUNNING" for app in self._live_apps())
        is_late = self.now_ms() >= until_ms
        stuck = promises.stuck(context, endless) if is_settled or is_late else []
        if not is_late and (stuck or not is_settled):
            self.later(HEARTBEAT_MS, lambda: self._settle(until_ms))
            return
        self.problems += stuck
        self._kill_all(self.now_ms() + SETTLE_MS)

    def _kill_all(self, until_ms: int) -> None:
        for app_id in self._live_apps():
            self.manager.clients.force_kill_application(app_id)
        context, nodes = self.manager.context, list(self.nodes.values())
        left_over = [*promises.left_over(context), *promises.running(nodes)]
        if left_over and self.now_ms() < until_ms:
            self.later(HEARTBEAT_MS, lambda: self._kill_all(until_ms))
            return
        self.problems += left_over
        self._end()

    def _live_apps(self) -> list[str]:
        return [app.entity for app in self.manager.context.apps.values() if app.state not in FINAL_STATES]

    def _end(self) -> None:
        self._has_ended = True
        self.kill()


class _LiveContext(RMContext):
    """Of a resource manager in virtual time of which nodes and masters expire."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **{**more, "expires": True})
