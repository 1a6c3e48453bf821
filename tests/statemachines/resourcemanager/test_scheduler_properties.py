"""What holds for the scheduler whatever happens: nodes come and go, applications ask, containers end, in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statemachines.resourcemanager import Resource, RMContainer
from statemachines.resourcemanager.events import ContainerRequest

from .cluster import Cluster

# Few sizes, and big ones, so that asks wait, and wait together.
SIZES = st.sampled_from([4, 10])
HOSTS = st.sampled_from(["n1", "n2", "n3"])
MODELS = st.sampled_from(["T4", "T4", "V100", ""])
RESOURCES = st.sampled_from(
    [
        Resource(4, 4),
        Resource(6, 2),
        Resource(1, 7),
        Resource(10, 10),
        Resource(1, 1, gpus=1),
        Resource(1, 1, gpus=2, gpu_milli=500),
        Resource(1, 1, gpus=1, gpu_milli=600),
        Resource(11, 1),
    ]
)
REQUESTS = st.tuples(
    RESOURCES,
    st.integers(0, 1),
    st.none() | HOSTS,
    st.sampled_from([frozenset(), frozenset(), frozenset({"T4"}), frozenset({"T4", "V100"})]),
)
ANY = st.integers(0, 1_000)  # which one of those that there are


class AnyCourseOfEvents(RuleBasedStateMachine):
    """Random events for a scheduler; the invariants are looked at after each."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.attempts = [self.cluster.new_attempt() for _ in range(3)]
        self.waiting: list[tuple[str, ContainerRequest]] = []  # after the last step, in the order of service

    @initialize(sizes=st.lists(SIZES, min_size=1, max_size=3))
    def start_with_nodes(self, sizes: list[int]) -> None:
        for number, size in enumerate(sizes):
            self.cluster.add_node(f"n{number + 1}", size, size, gpus=number, model="T4")

    @rule(which=ANY, requests=st.lists(REQUESTS, min_size=1, max_size=6))
    def ask_and_launch(self, which: int, requests: list[Any]) -> None:
        attempt = pick(which, self.attempts)
        self.cluster.get(
            attempt, *[self.cluster.request(r, priority=p, host=h, gpu_models=m) for r, p, h, m in requests]
        )

    @rule(which=ANY, resource=RESOURCES, release=ANY)
    def ask_and_release(self, which: int, resource: Resource, release: int) -> None:
        containers = list(self.cluster.context.containers)
        releases = (pick(release, containers),) if containers else ()
        self.cluster.ask(pick(which, self.attempts), resource, releases=releases)

    @rule()
    def launch_all_that_was_allocated(self) -> None:
        for attempt in self.attempts:
            self.cluster.get(attempt)

    @precondition(lambda self: self.running())
    @rule(which=ANY)
    def finish(self, which: int) -> None:
        self.cluster.finish(pick(which, self.running()))

    @precondition(lambda self: self.running())
    @rule(which=ANY)
    def finish_all_of_a_node(self, which: int) -> None:
        node = pick(which, self.running()).node
        for container in self.running():
            if container.node == node:
                self.cluster.finish(container)

    @rule(which=ANY)
    def replace_attempt(self, which: int) -> None:
        attempt = pick(which, self.attempts)
        self.attempts.remove(attempt)
        self.cluster.remove_attempt(attempt)
        self.cluster.remove_app(attempt.rpartition("_")[0].replace("appattempt", "application"))
        self.attempts.append(self.cluster.new_attempt())

    @rule(host=HOSTS, memory_mb=SIZES, vcores_milli=SIZES, gpus=st.integers(0, 3), model=MODELS)
    def add_node(self, host: str, memory_mb: int, vcores_milli: int, gpus: int, model: str) -> None:
        self.cluster.add_node(host, memory_mb, vcores_milli, gpus, model)

    @precondition(lambda self: len(self.cluster.context.nodes) > 1)
    @rule(which=ANY)
    def lose_node(self, which: int) -> None:
        self.cluster.lose_node(pick(which, list(self.cluster.context.nodes)))

    @precondition(lambda self: self.cluster.context.nodes)
    @rule(which=ANY, healthy=st.booleans())
    def report_health(self, which: int, healthy: bool) -> None:
        self.cluster.tracker.heartbeat(pick(which, list(self.cluster.context.nodes)), healthy=healthy)

    def running(self) -> list[RMContainer]:
        containers = self.cluster.context.containers.values()
        return [container for container in containers if container.state.name == "RUNNING"]

    @invariant()
    def books_are_right(self) -> None:
        self.cluster.check()

    @invariant()
    def asks_of_one_shape_are_served_in_order(self) -> None:
        before, after = self.waiting, self.cluster.scheduler.waiting()
        self.waiting = after
        still = {request.tag for _, request in after}
        shapes = {(request.resource, request.gpu_models) for _, request in before}
        for shape in shapes:
            left = [
                request.tag
                for attempt, request in before
                if (request.resource, request.gpu_models) == shape and attempt in self.attempts
            ]
            kept = [tag for tag in left if tag in still]
            assert kept == left[len(left) - len(kept) :], "somebody was served before those in front"

    @invariant()
    def asks_are_kept_or_served(self) -> None:
        """Each ask of an attempt that is still there waits, or has become a container, once."""
        waiting = [request.tag for _, request in self.cluster.scheduler.waiting()]
        served = [container.request.tag for container in self.cluster.context.containers.values()]
        assert len({*waiting, *served}) == len(waiting) + len(served)


def pick(which: int, items: list[Any]) -> Any:
    return items[which % len(items)]


AnyCourseOfEvents.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestAnyCourseOfEvents = AnyCourseOfEvents.TestCase
