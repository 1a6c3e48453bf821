"""What the handler thread and the scheduler's do to each other's plans, step by step.

The scheduler's thread is held in a mail, so that its events wait while direct calls and the handler thread go on.
Nodes and masters are played by hand: they report when the test says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from dispatcher import DispatcherGroup
from statemachines.resourcemanager import (
    ApplicationSubmission,
    ContainerRequest,
    ContainerStatus,
    Resource,
    ResourceManager,
    RMContainer,
    RMContainerEventType,
)

from ....kit.holding import held
from ...simulation.replays import TIMEOUT_S, config, node
from ..inner import (
    EXIT_SUCCESS,
    NodeAction,
    NodesListManagerEvent,
    NodesListManagerEventType,
    RMContainerEvent,
    SchedulerEvent,
    SchedulerEventType,
    SimulatedCluster,
    node_id,
)

pytestmark = pytest.mark.long

N1, N2 = node_id("n1"), node_id("n2")
SMALL = Resource(1, 1)


class _MastersOfTheTest(SimulatedCluster):
    """Starts none of its own."""

    def start_container(self, container: RMContainer) -> None:
        pass


class HandPlayed:
    """A resource manager in real time whose nodes and masters are the test."""

    def __init__(self, **settings: Any) -> None:
        self.manager = ResourceManager(config(**settings), node_managers=_MastersOfTheTest)
        self.context = self.manager.context
        (self.group,) = [service for service in self.manager.services if isinstance(service, DispatcherGroup)]
        self.scheduling = self.group.partitions[1]

    def do(self, *actions: Callable[[], Any]) -> Any:
        """All of them at one moment of the handler thread; returns what the last one did."""
        return self.context.call(lambda: [action() for action in actions][-1])

    def settle(self) -> None:
        """Until all that follows has been done."""
        assert self.group.await_drained(TIMEOUT_S)

    def settle_but_scheduler(self) -> None:
        """Until the handler thread has done what it can while the scheduler's is held."""
        assert self.manager.dispatcher.await_drained(TIMEOUT_S)

    def held_scheduler(self) -> AbstractContextManager[object]:
        """Its events wait; direct calls do not."""
        return held(self.scheduling.mailbox_executor.execute, "the test holds the scheduler")

    def beat(self, node: str, *launched: str, finished: tuple[str, ...] = (), **more: Any) -> NodeAction:
        statuses = tuple(ContainerStatus(container, EXIT_SUCCESS) for container in finished)
        answer = self.do(lambda: self.manager.tracker.heartbeat(node, launched, statuses, **more))
        action: NodeAction = answer.action
        return action

    def add_node(self, host: str) -> None:
        self.do(lambda: self.manager.tracker.register_node(node(host)))
        self.settle()

    def run_master(self) -> str:
        """Submit an application, and have its master run on n1; returns its attempt."""
        app_id = self.manager.clients.submit_application(ApplicationSubmission("job", SMALL), TIMEOUT_S)
        self.settle()
        self.beat(N1)
        self.settle()
        attempt = self.context.apps[app_id].attempts[0]
        assert attempt.master_container is not None
        self.beat(N1, attempt.master_container)
        self.do(lambda: self.manager.masters.register_application_master(attempt.entity))
        self.settle()
        return attempt.entity

    def get_task(self, attempt: str, on: str) -> str:
        """Have the master get a container there; returns it. The node has not heard of it."""
        request = ContainerRequest(SMALL, host=on.partition(":")[0], relax_locality=False)
        self.do(lambda: self.manager.masters.allocate(attempt, (request,)))
        self.beat(on)
        self.settle()
        (container,) = self.do(lambda: self.manager.masters.allocate(attempt)).allocated
        self.settle()
        container_id: str = container.entity
        return container_id

    def invalid(self) -> dict[str, int]:
        return {machine: stats.invalid for machine, stats in self.manager.recorder.machines.items() if stats.invalid}

    def failed(self) -> list[int]:
        return [partition.stats().failed for partition in self.group.partitions]


@contextmanager
def hand_played(**settings: Any) -> Iterator[HandPlayed]:
    played = HandPlayed(**settings)
    with played.manager:
        played.add_node("n1")
        yield played
    assert played.failed() == [0, 0]


@contextmanager
def with_task(**settings: Any) -> Iterator[tuple[HandPlayed, str, str]]:
    """An attempt whose master runs on n1, and a task on n2 that the node has not heard of."""
    with hand_played(**settings) as played:
        played.add_node("n2")
        attempt = played.run_master()
        yield played, attempt, played.get_task(attempt, N2)


@pytest.mark.parametrize("scheduler", ["fifo", "capacity"])
def test_application_that_is_killed_and_forgotten_before_the_scheduler_gets_it_leaves_nothing(
    scheduler: str,
) -> None:
    """The scheduler's handler failed: the application no longer existed."""
    with hand_played(max_completed_applications=0, scheduler={"kind": scheduler}) as played:
        clients = played.manager.clients
        with played.held_scheduler():
            app_id = clients.submit_application(ApplicationSubmission("job", SMALL), TIMEOUT_S)
            clients.force_kill_application(app_id)
            played.settle_but_scheduler()
        played.settle()

        assert played.context.apps == {}
        assert {queue.applications for queue in played.do(played.context.scheduler.queues)} == {0}


def test_node_does_not_wait_for_an_application_that_was_forgotten_before_its_containers_ended() -> None:
    """The node kept it among its running applications for ever, so that it could never be emptied."""
    with with_task(max_completed_applications=0) as (played, attempt, task):
        app = played.context.attempts[attempt].app
        with played.held_scheduler():
            played.manager.clients.force_kill_application(app.entity)
            played.settle_but_scheduler()
            played.beat(N2, task)
            played.settle_but_scheduler()
        played.settle()

        assert played.context.apps == {}
        assert played.context.nodes[N2].running_apps == set()
        assert played.context.nodes[N2].apps_to_clean == [app.entity]


def test_container_is_launched_once_though_its_node_registers_again_before_the_scheduler_learns_it() -> None:
    """The scheduler took a report of the time after for one of the time before: RUNNING got LAUNCHED."""
    with with_task() as (played, _, task):
        played.beat(N2, task)
        played.settle()
        with played.held_scheduler():
            played.beat(N2)
            played.do(lambda: played.manager.tracker.register_node(node("n2")))
            played.beat(N2, running=frozenset({task}))
            played.settle_but_scheduler()
        played.settle()

        assert played.invalid() == {}
        assert task not in played.context.containers
        assert played.context.nodes[N2].to_clean == {task}


def test_container_that_ends_while_it_is_allowed_to_grow_is_not_waited_for() -> None:
    """It was monitored until its time to grow was over, ten minutes after its end."""
    with with_task() as (played, _, task):
        played.beat(N2, task)
        played.settle()
        with played.held_scheduler():
            played.beat(N2, finished=(task,))
            played.settle_but_scheduler()
            assert played.do(lambda: played.context.scheduler.request_resize(task, Resource(2, 1)))
            played.settle_but_scheduler()
            assert task in played.context.container_allocation_expirer
        played.settle()

        assert task not in played.context.containers
        assert task not in played.context.container_allocation_expirer


def test_node_is_not_shut_down_before_it_handles_its_graceful_decommissioning() -> None:
    """An outdated event ended the watch, and the node's next heartbeat came from an excluded host."""
    with hand_played() as played:
        played.run_master()
        answers: list[NodeAction] = []

        def beat(event: NodesListManagerEvent) -> None:
            answers.append(played.beat(N1))

        played.manager.dispatcher.register(NodesListManagerEventType, beat)

        played.do(
            lambda: played.context.post(NodesListManagerEvent(NodesListManagerEventType.NODE_USABLE, N1)),
            lambda: played.manager.admin.refresh_nodes(["n1"], graceful=True),
        )
        played.settle()

        assert answers == [NodeAction.NORMAL] * 2
        assert played.context.nodes[N1].state.name == "DECOMMISSIONING"


def test_unknown_node_of_a_host_that_is_not_included_is_told_to_shut_down() -> None:
    """It was told to register, and was refused then: a simulated one ended the resource manager by that."""
    with hand_played() as played:
        played.do(lambda: played.manager.admin.refresh_nodes(include=["n1"]))

        assert played.beat(N2) is NodeAction.SHUTDOWN
        assert played.beat(N1) is NodeAction.NORMAL


def test_kill_while_the_scheduler_places_the_master_leaves_no_container() -> None:
    with hand_played() as played:
        app_id = played.manager.clients.submit_application(ApplicationSubmission("job", SMALL), TIMEOUT_S)
        played.settle()
        with played.held_scheduler():
            played.beat(N1)  # the scheduler gives it room when it goes on,
            played.manager.clients.force_kill_application(app_id)  # and hears of its end after that
            played.settle_but_scheduler()
            assert played.context.apps[app_id].state.name == "KILLED"
        played.settle()

        assert played.context.containers == {}
        assert played.invalid() == {}
        assert [each.free_memory_mb for each in played.do(played.context.scheduler.nodes)] == [10]


def test_master_that_registers_behind_the_end_of_its_container_is_followed_by_another() -> None:
    with hand_played() as played:
        app_id = played.manager.clients.submit_application(ApplicationSubmission("job", SMALL), TIMEOUT_S)
        played.settle()
        played.beat(N1)
        played.settle()
        attempt = played.context.apps[app_id].attempts[0]

        def register(event: RMContainerEvent) -> None:  # the end of the container is posted, and not handled
            if event.type is RMContainerEventType.EXPIRE:
                played.manager.masters.register_application_master(attempt.entity)

        played.manager.dispatcher.register(RMContainerEventType, register)
        played.do(
            lambda: played.context.post(SchedulerEvent(SchedulerEventType.CONTAINER_EXPIRED, attempt.master_container))
        )
        played.settle()

        assert played.invalid() == {}
        assert [each.state.name for each in played.context.apps[app_id].attempts] == ["FAILED", "SCHEDULED"]


def test_node_that_is_lost_while_a_container_of_it_is_fetched_takes_it_along() -> None:
    with hand_played() as played:
        played.add_node("n2")
        attempt = played.run_master()
        request = ContainerRequest(SMALL, host="n2", relax_locality=False)
        played.do(lambda: played.manager.masters.allocate(attempt, (request,)))
        played.beat(N2)
        played.settle()
        with played.held_scheduler():
            played.do(lambda: played.manager.tracker.unregister_node(N2))
            played.settle_but_scheduler()
            (container,) = played.do(lambda: played.manager.masters.allocate(attempt)).allocated
        played.settle()
        finished = played.do(lambda: played.manager.masters.allocate(attempt)).finished

        assert [status.container for status in finished] == [container.entity]
        assert container.entity not in played.context.containers
        assert played.invalid() == {}


class Updates(deque[Any]):
    """News of a node; the first time that nothing more is found, something happens before that is told."""

    def __init__(self, on_empty: Callable[[], Any]) -> None:
        super().__init__()
        self._on_empty: Callable[[], Any] | None = on_empty

    def __len__(self) -> int:
        count, on_empty = super().__len__(), self._on_empty
        if not count and on_empty is not None:
            self._on_empty = None
            on_empty()
        return count


def test_news_of_a_node_that_comes_when_the_scheduler_has_found_nothing_more_is_fetched() -> None:
    with hand_played() as played:
        played.add_node("n2")
        attempt = played.run_master()
        tasks = [played.get_task(attempt, N2) for _ in range(3)]

        def end_all() -> None:  # on the scheduler's thread
            played.beat(N2, finished=tuple(tasks))
            played.settle_but_scheduler()

        played.context.nodes[N2].updates = Updates(end_all)
        with played.held_scheduler():
            for task in tasks:
                played.beat(N2, task)
            played.settle_but_scheduler()
            assert played.scheduling.queue_size() == 1  # one event for all the news
        played.settle()

        assert not any(task in played.context.containers for task in tasks)
