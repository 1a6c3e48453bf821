"""A whole resource manager in virtual time to which anything may happen, and what must hold of it at any moment.

Threading: a Course belongs to its resource manager's handler thread, but for `start`, `do` and `stop`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from dispatcher import DispatcherError
from dispatcher.testing import ManualClock
from statemachines import InvalidStateTransitionError, TransitionRecorder
from statemachines.resourcemanager import (
    ApplicationSubmission,
    NMContainerStatus,
    Resource,
    ResourceManager,
    RMAppAttemptEventType,
    RMAppEventType,
    RMContainer,
    RMContainerEventType,
    RMContainerState,
    RMNodeEventType,
)
from statemachines.simulation.agenda import ScheduledCall
from statemachines.simulation.workload import ApplicationSpec, NodeSpec

from ...simulation.replays import config
from ..inner import (
    MemoryRMStateStore,
    RMAppManagerEventType,
    RMContext,
    RMNodeEvent,
    RMStateStoreEvent,
    SchedulerEventType,
    SimulatedCluster,
    add,
    amounts_of,
    node_id,
)
from ..live import promises

HOSTS = ("node1", "node2", "node3")
ENDED = {RMContainerState[name] for name in ("COMPLETED", "EXPIRED", "RELEASED", "KILLED")}
CAPACITY = Resource(10, 10)
SPECS = {host: NodeSpec(host, CAPACITY) for host in HOSTS}
NODES = {node_id(host): host for host in HOSTS}
QUEUES = (
    {"name": "a", "capacity": 50, "maximum_capacity": 70, "maximum_am_resource_percent": 60, "user_limit_factor": 2},
    {
        "name": "b",
        "capacity": 50,
        "maximum_am_resource_percent": 50,
        "minimum_user_limit_percent": 50,
        "user_limit_factor": 3,
        "ordering_policy": "fair",
        "queues": [{"name": "c", "capacity": 40, "priority": 1}, {"name": "d", "capacity": 60}],
    },
)
LEAVES = ("a", "c", "d")
TIMEOUT_S = 60.0
MOST_EVENTS = 50_000  # far more than any course needs to come to rest
SCHEDULERS: dict[str, dict[str, Any]] = {"fifo": {"kind": "fifo"}, "capacity": {"kind": "capacity", "queues": QUEUES}}
_USABLE = ("RUNNING", "DECOMMISSIONING")
_EVENTS = (
    RMAppEventType,
    RMAppAttemptEventType,
    RMContainerEventType,
    RMContainerState,
    RMNodeEventType,
    RMAppManagerEventType,
    SchedulerEventType,
)


class Step(NamedTuple):
    """What is to happen, and when: between two moments, or in the midst of what one moment brings."""

    delay_ms: int
    """After the step before."""
    events: int
    """So many events later than that."""
    happening: Callable[[Course], None]


class SlowStore(MemoryRMStateStore):
    """Answers each write so much later, as one that waits for a disk."""

    def __init__(self, answers_ms: int) -> None:
        super().__init__()
        self._answers_ms = answers_ms

    def _answer(self, event: RMStateStoreEvent) -> None:
        answer, context = super()._answer, self._context
        if self._answers_ms == 0:
            answer(event)
            return
        assert isinstance(context, RMContext)
        context.timers.register_timer(context.now_ms() + self._answers_ms, lambda _: answer(event))


class Notes(Protocol):
    """Of a course."""

    refused: list[tuple[str, str, str]]
    """Machine, state and event of each invalid transition."""
    reached: set[tuple[str, str, str]]
    """The same of the others."""


class Noting(TransitionRecorder):
    """Notes for a course what it brings each machine. Handler thread."""

    def __init__(self, course: Notes) -> None:
        super().__init__(lists_entities=False, ends={RMContainer.machine: ENDED})
        self._course = course

    def pre_transition(self, operand: Any, before: Any, event: Any) -> None:
        self._course.reached.add((operand.machine, before.name, event.type.name))
        super().pre_transition(operand, before, event)

    def transition_refused(self, operand: Any, error: InvalidStateTransitionError) -> None:
        self._course.refused.append((operand.machine, error.state.name, error.event_type.name))


class Course:
    """The course that events take."""

    def __init__(self, scheduler: str, heartbeat_interval_ms: int = 0, store_ms: int = 0) -> None:
        self._idle = threading.Event()
        settings = config(
            dispatcher={"drain_timeout_s": 1},
            scheduler=SCHEDULERS[scheduler],
            simulation={"am_register_delay_ms": 100, "heartbeat_interval_ms": heartbeat_interval_ms},
        )
        self.refused: list[tuple[str, str, str]] = []
        self.reached: set[tuple[str, str, str]] = set()
        self.manager = ResourceManager(
            settings,
            node_managers=SimulatedCluster,
            clock=ManualClock(),
            recorder=Noting(self),
            store=SlowStore(store_ms),
            on_idle=self._idle.set,
        )
        self.context = self.manager.context
        self.apps: list[str] = []  # in the order of their submission
        self.endless: set[str] = set()  # applications that end when they are killed only
        self.problems: list[str] = []  # what did not hold, with the event after which it did not
        self._used: dict[tuple[str, str], int] = {}  # by queue and type of resource, after the event before
        self._events = 0
        self._last: list[str] = []  # events, once there are too many
        self._awaiting: list[list[Any]] = []  # [events until it happens, happening]
        for event_type in _EVENTS:
            self.manager.dispatcher.register(event_type, self._check)

    # -- running ------------------------------------------------------------------------------------------------------

    def enter(self, steps: Iterable[Step]) -> None:
        time_ms = self.context.now_ms()
        for step in steps:
            time_ms += step.delay_ms
            self.manager.node_managers.agenda.at(time_ms, self._begin, ScheduledCall(step))

    def _begin(self, errand: ScheduledCall) -> None:
        step: Step = errand.about
        if step.events:
            self._awaiting.append([step.events, step.happening])
        else:
            self._carry_out(step.happening)

    def _carry_out(self, happening: Callable[[Course], None]) -> None:
        with contextlib.suppress(DispatcherError):  # what a service refuses is refused
            happening(self)

    def _note_event(self) -> None:
        """What awaits an event less now; what awaits none any more happens."""
        for waiting in self._awaiting:
            waiting[0] -= 1
        due = [happening for events, happening in self._awaiting if events <= 0]
        self._awaiting = [waiting for waiting in self._awaiting if waiting[0] > 0]
        for happening in due:
            self._carry_out(happening)

    def start(self) -> None:
        self.manager.init()
        self.manager.start()
        self.do(lambda: [self.manager.node_managers.add_node(spec) for spec in SPECS.values()])

    def do(self, action: Callable[[], Any]) -> Any:
        """Do it on the handler thread, and run until nothing is left to happen; returns its result."""

        def act() -> Any:
            self._idle.clear()  # here, so that it is set again by what follows only
            return action()

        result = self.manager.dispatcher.mailbox_executor.submit(act, "an action of the test").result(TIMEOUT_S)
        assert self._idle.wait(TIMEOUT_S), self.manager.dispatcher.queue_contents()
        assert self._events <= MOST_EVENTS, f"it does not come to rest: {self._last}"
        return result

    def stop(self) -> None:
        self.manager.stop()

    # -- what may happen ----------------------------------------------------------------------------------------------

    def submit(self, spec: ApplicationSpec, **submission: Any) -> None:
        app_id = self.manager.clients.submit_application(
            ApplicationSubmission(spec.name, spec.am_resource, spec.user, spec.queue, **submission)
        )
        self.manager.node_managers.specs[app_id] = spec
        self.apps.append(app_id)
        if spec.am_duration_ms is None:
            self.endless.add(app_id)

    def tell_node(self, host: str, type: RMNodeEventType) -> None:
        if node_id(host) in self.context.nodes:
            self.context.post(RMNodeEvent(type, node_id(host)))

    def register(self, host: str) -> None:
        """A node manager that was restarted has nothing; what it ran has ended without a word."""
        cluster = self.manager.node_managers
        node = cluster._nodes[node_id(host)]
        for container in self._running_on(host):
            cluster._end(node, container.entity, 0)
        node.launched.clear()
        node.finished.clear()
        cluster.add_node(SPECS[host])

    def resync(self, host: str) -> None:
        """A node manager that had lost the connection has all that it had."""
        containers = self._running_on(host)
        apps = sorted({container.application for container in containers})
        self.manager.tracker.register_node(SPECS[host], map(_report, containers), apps)

    def _running_on(self, host: str) -> list[RMContainer]:
        return list(self.manager.node_managers._nodes[node_id(host)].running.values())

    def repair(self) -> None:
        """All nodes come back, and are well. Nothing else is to happen any more."""
        self._awaiting.clear()
        self.manager.admin.recommission(HOSTS)
        for id_, host in NODES.items():
            if id_ not in self.context.nodes:
                self.manager.node_managers.add_node(SPECS[host])
            else:
                self.manager.tracker.heartbeat(id_)

    def kill_all(self) -> None:
        for app_id in self.apps:
            self.manager.clients.force_kill_application(app_id)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _check(self, event: Any) -> None:
        self._events += 1
        if self._events > MOST_EVENTS:
            self._last = [*self._last[-20:], f"{event.type} {event.entity}"]
            self._idle.set()
            return
        self.problems += [f"after {event.type.name} for {event.entity}: {problem}" for problem in self._wrong()]
        self._note_event()

    def _wrong(self) -> list[str]:
        """Nothing is oversubscribed, the books agree, and no queue has taken more than it may."""
        scheduler, before, self._used = self.context.scheduler, self._used, {}
        wrong = promises.wrong_books(self.context)
        total: dict[str, int] = {}
        for node in scheduler.nodes():
            if min(node.free_memory_mb, node.free_vcores_milli) < 0:
                wrong.append(f"{node.node_id} has {node.free()} free")
            for size in node.containers.values() if node.is_draining else [CAPACITY]:
                add(total, amounts_of(size))
        for info in scheduler.queues():
            used = dict(amounts_of(info.used))
            if info.maximum_capacity == 1:  # its nodes are its limit, and a reservation waits for room that others have
                add(used, amounts_of(info.reserved), -1)
            for type_, amount in used.items():
                self._used[info.path, type_] = amount
                # A node that leaves takes its part of the maximum with it: what is used then stays, and may not grow.
                limit = total.get(type_, 0) * info.maximum_capacity
                if amount > limit + 1e-6 and amount > before.get((info.path, type_), 0):
                    wrong.append(f"{info.path} has taken {amount} {type_}, and may have {limit}")
        return wrong

    def nodes_that_only_one_knows(self) -> set[str]:
        """Nodes that the scheduler has and that are not usable, or the other way round; to be asked when at rest."""
        usable = {node.entity for node in self.context.nodes.values() if node.state.name in _USABLE}
        return usable ^ {node.node_id for node in self.context.scheduler.nodes()}

    def stuck(self) -> list[str]:
        """Applications that have not ended, and why there is no cause for that; to be asked when nothing happens."""
        return promises.stuck(self.context, self.endless)

    def left_over(self) -> list[str]:
        """What is still held when all applications have ended."""
        cluster = self.manager.node_managers
        running = [container for node in cluster._nodes.values() for container in node.running]
        still = [f"{container} still runs" for container in [*running, *cluster._nodes_of_masters]]
        return [*promises.left_over(self.context), *still]


def _report(container: RMContainer) -> NMContainerStatus:
    request = container.request
    return NMContainerStatus(container.entity, request.resource, request.priority, kind=request.kind)
