"""Invariants of the scheduler under nodes, applications, asks and ends in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statemachines.resourcemanager import ContainerRequest, NMContainerStatus, Resource, RMContainer
from statemachines.simulation.workload import NodeSpec

from ....kit import tries
from ..cluster import Cluster
from ..inner import FifoScheduler, ResourceScheduler, RMContext, application_of
from .stage import size_of

# Few and large sizes, so that several asks with equal requirements are pending.
SIZES = st.sampled_from([4, 10])
HOSTS = st.sampled_from(["n1", "n2", "n3"])
RACKS = {"n1": "/a", "n2": "/a", "n3": "/b"}
MODELS = st.sampled_from(["T4", "T4", "V100", ""])
PARTITIONS = st.sampled_from(["", "", "x"])
RESOURCES = st.sampled_from(list(map(size_of, ["4", "6x2", "1x7", "10", "1g1", "1g2:500", "1g1:600", "2f1", "11x1"])))
WISHES = st.sampled_from(
    [
        {},
        {},
        {"host": "n1"},
        {"host": "n2", "rack": "/a"},
        {"rack": "/b"},
        {"host": "n2", "relax_locality": False},
        {"rack": "/a", "relax_locality": False},
        {"node_label": "x"},
        {"node_label": ""},
    ]
)
REQUESTS = st.tuples(
    RESOURCES,
    st.integers(0, 1),
    WISHES,
    st.sampled_from([frozenset(), frozenset(), frozenset({"T4"}), frozenset({"T4", "V100"})]),
)
ANY = st.integers(0, 1_000)  # an index into the existing ones, modulo their number


class AnyCourseOfEvents(RuleBasedStateMachine):
    """Random events for a scheduler; checks the invariants after each."""

    cluster: Cluster
    attempts: list[str]
    on_heartbeat = False

    def new_attempt(self, priority: int = 0) -> str:
        return self.cluster.new_attempt(priority=priority, keep_containers_across_attempts=True)

    # -- applications -------------------------------------------------------------------------------------------------

    @rule(which=ANY, requests=st.lists(REQUESTS, min_size=1, max_size=6))
    def ask_and_launch(self, which: int, requests: list[Any]) -> None:
        asks = [self.cluster.request(r, priority=p, gpu_models=m, **wish) for r, p, wish, m in requests]
        self.cluster.get(pick(which, self.attempts), *asks)

    @rule(which=ANY, resource=RESOURCES, release=ANY)
    def ask_and_release(self, which: int, resource: Resource, release: int) -> None:
        containers = list(self.cluster.context.containers)
        releases = (pick(release, containers),) if containers else ()
        self.cluster.ask(pick(which, self.attempts), resource, releases=releases)

    @rule()
    def launch_all_that_was_allocated(self) -> None:
        for attempt in self.attempts:
            self.cluster.get(attempt)

    @precondition(lambda self: self.containers("RUNNING"))
    @rule(which=ANY)
    def finish(self, which: int) -> None:
        self.cluster.finish(pick(which, self.containers("RUNNING")))

    @precondition(lambda self: self.containers("RUNNING"))
    @rule(which=ANY, of=st.sampled_from(["node", "application"]))
    def finish_all_of_a_node_or_an_application(self, which: int, of: str) -> None:
        running = self.containers("RUNNING")
        chosen = getattr(pick(which, running), of)
        for container in running:
            if getattr(container, of) == chosen:
                self.cluster.finish(container)

    @precondition(lambda self: self.containers("RUNNING"))
    @rule(which=ANY, size=RESOURCES)
    def resize(self, which: int, size: Resource) -> None:
        self.cluster.resize(pick(which, self.containers("RUNNING")), size)

    @precondition(lambda self: self.containers("ALLOCATED", "ACQUIRED", "RUNNING"))
    @rule(which=ANY)
    def expire(self, which: int) -> None:
        self.cluster.expire(pick(which, self.containers("ALLOCATED", "ACQUIRED", "RUNNING")))

    @rule(which=ANY, host=HOSTS, is_bad=st.booleans())
    def blacklist(self, which: int, host: str, is_bad: bool) -> None:
        attempt = pick(which, self.attempts)
        self.cluster.blacklist(attempt, *([(host,), ()] if is_bad else [(), (host,)]))

    @rule(which=ANY, priority=st.integers(0, 2))
    def change_priority(self, which: int, priority: int) -> None:
        app = application_of(pick(which, self.attempts))
        self.cluster.in_handler(lambda: self.cluster.scheduler.update_priority(app, priority))

    @precondition(lambda self: len(self.attempts) > 2)
    @rule(which=ANY)
    def end_application(self, which: int) -> None:
        attempt = pick(which, self.attempts)
        self.attempts.remove(attempt)
        self.cluster.remove_attempt(attempt)
        self.cluster.remove_app(application_of(attempt))

    @rule(priority=st.integers(0, 1))
    def submit(self, priority: int) -> None:
        self.attempts.append(self.new_attempt(priority))

    @rule(which=ANY, keeps=st.booleans())
    def replace_attempt(self, which: int, keeps: bool) -> None:
        attempt = pick(which, self.attempts)
        self.attempts.remove(attempt)
        self.cluster.remove_attempt(attempt, keep_containers=keeps)
        number = int(attempt.rpartition("_")[2]) + 1
        following = self.cluster.add_attempt(application_of(attempt), number, transfer_state=keeps)
        self.cluster.blacklists[following] = self.cluster.blacklists.get(attempt, set()) if keeps else set()
        self.attempts.append(following)

    # -- nodes --------------------------------------------------------------------------------------------------------

    @initialize(sizes=st.lists(SIZES, min_size=1, max_size=3), partition=PARTITIONS)
    def start_with_nodes(self, sizes: list[int], partition: str) -> None:
        for number, size in enumerate(sizes):
            self.add_node(f"n{number + 1}", size, size, number, "T4", partition if number else "")

    @rule(host=HOSTS, memory_mb=SIZES, vcores_milli=SIZES, gpus=st.integers(0, 3), model=MODELS, partition=PARTITIONS)
    def add_node(self, host: str, memory_mb: int, vcores_milli: int, gpus: int, model: str, partition: str) -> None:
        """Or a node that was not yet reported lost registers again: restarted, without containers."""
        more: dict[str, Any] = {"rack": RACKS[host], "partition": partition, "others": {"fpga": gpus}}
        self.cluster.add_node(host, memory_mb, vcores_milli, gpus, model, **more)

    @precondition(lambda self: len(self.cluster.context.nodes) > 1)
    @rule(which=ANY)
    def lose_node(self, which: int) -> None:
        self.cluster.lose_node(self.node(which))

    @precondition(lambda self: self.cluster.context.nodes)
    @rule(which=ANY, healthy=st.booleans())
    def report_health(self, which: int, healthy: bool) -> None:
        self.cluster.tracker.heartbeat(self.node(which), healthy=healthy)

    @precondition(lambda self: self.cluster.context.nodes)
    @rule(which=ANY, memory_mb=st.integers(0, 12), vcores_milli=st.integers(0, 12), gpus=st.integers(0, 3))
    def change_capacity(self, which: int, memory_mb: int, vcores_milli: int, gpus: int) -> None:
        self.cluster.change_capacity(self.node(which), memory_mb, vcores_milli, gpus, fpga=gpus)

    @precondition(lambda self: self.cluster.context.nodes)
    @rule(which=ANY, partition=PARTITIONS)
    def change_label(self, which: int, partition: str) -> None:
        self.cluster.change_label(self.node(which), partition)

    @precondition(lambda self: self.nodes_in("RUNNING", "DECOMMISSIONING"))
    @rule(which=ANY)
    def drain_or_admit(self, which: int) -> None:
        node = pick(which, self.nodes_in("RUNNING", "DECOMMISSIONING"))
        if node in self.nodes_in("RUNNING"):
            self.cluster.decommission(node)
        else:
            self.cluster.recommission(node)

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def books_are_right_and_nobody_waits_who_need_not(self) -> None:
        self.cluster.check()

    @invariant()
    def asks_are_kept_or_served(self) -> None:
        """Each ask of a current attempt is pending or has become a container, exactly once."""
        waiting = [request.tag for _, request in self.cluster.scheduler.waiting()]
        containers = self.cluster.context.containers.values()
        served = [container.request.tag for container in containers if container.state.name != "RESERVED"]
        mine = [tag for tag in (*waiting, *served) if tag]  # recovered containers have no tag
        assert len(set(mine)) == len(mine)

    def containers(self, *states: str) -> list[RMContainer]:
        containers = self.cluster.context.containers.values()
        return [container for container in containers if container.state.name in states]

    def nodes_in(self, *states: str) -> list[str]:
        return [id_ for id_, node in self.cluster.context.nodes.items() if node.state.name in states]

    def node(self, which: int) -> str:
        return pick(which, list(self.cluster.context.nodes))


class Fifo(AnyCourseOfEvents):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(self.make)
        self.attempts = [self.new_attempt(priority) for priority in (0, 0, 1)]
        self.waiting: list[tuple[str, ContainerRequest]] = []  # after the last step, in order of service

    def make(self, context: RMContext) -> ResourceScheduler:
        return FifoScheduler(context)

    @rule()
    def restart(self) -> None:
        """A new scheduler recovers the nodes' containers; pending asks are requested again."""
        old, nodes = self.cluster, {node.node_id: node for node in self.cluster.scheduler.nodes()}
        asks = old.scheduler.waiting()
        self.cluster = new = Cluster(self.make)
        new.context.epoch = old.context.epoch + 1
        new.tags, new.apps = old.tags, old.apps
        for attempt in self.attempts:
            app = application_of(attempt)
            new.add_app(app, is_recovering=True, **old.context.apps[app].submission._asdict())
            new.recover_attempt(attempt)
        for node_id, node in nodes.items():
            rmnode = old.context.nodes[node_id]
            running = [old.context.containers[id_] for id_ in node.containers if id_ in node.launched]
            reports = tuple(NMContainerStatus(c.entity, c.request.resource, gpu_devices=c.gpu_devices) for c in running)
            spec = rmnode.spec
            new.tracker.register_node(
                NodeSpec(spec.host, node.capacity, spec.rack, spec.gpu_model, node.partition), reports
            )
            new.short.add(node_id)
        assert {id_ for node in new.scheduler.nodes() for id_ in node.containers} == {
            id_ for node in nodes.values() for id_ in node.launched
        }
        for attempt, request in asks:
            new.ask(attempt, request)
        self.waiting = []

    @invariant()
    def asks_of_one_shape_are_served_in_order(self) -> None:
        before, self.waiting = self.waiting, self.cluster.scheduler.waiting()
        still = {request.tag for _, request in self.waiting}
        for attempt in self.attempts:
            for requirements in {shape_of(request) for _, request in before}:
                left = [request.tag for who, request in before if who == attempt and shape_of(request) == requirements]
                kept = [tag for tag in left if tag in still]
                assert kept == left[len(left) - len(kept) :], "an ask was served before those ahead of it"


class FifoOnHeartbeats(Fifo):
    def make(self, context: RMContext) -> ResourceScheduler:
        return FifoScheduler(context, on_heartbeat=True)


def shape_of(request: ContainerRequest) -> tuple[Any, ...]:
    """The request without its tag. Preferences count: an ask that prefers the node with room is served first."""
    return request._replace(tag=0)


def pick(which: int, items: list[Any]) -> Any:
    return items[which % len(items)]


SETTINGS = settings(max_examples=tries(20), stateful_step_count=50, deadline=None)
Fifo.TestCase.settings = SETTINGS
FifoOnHeartbeats.TestCase.settings = SETTINGS
TestFifo = pytest.mark.slow(Fifo.TestCase)
TestFifoOnHeartbeats = pytest.mark.slow(FifoOnHeartbeats.TestCase)
