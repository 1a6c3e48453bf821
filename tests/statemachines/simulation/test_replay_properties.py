"""Any small workload in virtual time: how each application ends, and that nothing is left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachines.resourcemanager import Replay, Resource, ResourceManager, RMNodeEventType
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, NodeSpec, Outcome, Workload

from ...kit import tries
from ..resourcemanager.inner import RMNodeEvent, SchedulerNode
from .replays import Journal, config, finish

# Masters that wait for containers have 1 of everything, containers and other masters multiples of 10, and nodes 9 more
# than such a multiple: so masters never take the room that their own containers wait for.
MODELS = st.sampled_from(["T4", "V100", None])
SIZES = st.sampled_from([10, 10, 20, 30])
TIMES = st.integers(0, 6).map(lambda number: number * 10)
HOSTS = st.none() | st.sampled_from(["n0", "n1", "n2"])
BIG = st.builds(
    Resource, SIZES, SIZES, st.sampled_from([0, 0, 0, 1, 2]), st.sampled_from([300, 500, 1000]), st.just(())
)
TASKS = st.builds(ContainerSpec, BIG, TIMES, TIMES, HOSTS, st.sampled_from([5, 20]))
COMMON = {
    "name": st.just("app"),
    "submit_ms": TIMES,
    "outcome": st.sampled_from(Outcome),
    "max_attempts": st.sampled_from([None, 1, 2]),
    "am_host": HOSTS,
    "gpu_models": st.sampled_from([frozenset(), frozenset(), frozenset({"T4"}), frozenset({"T4", "V100"})]),
}
KILLS = st.integers(0, 15).map(lambda number: number * 10)


@st.composite
def applications(draw: Any) -> ApplicationSpec:
    common = {name: draw(strategy) for name, strategy in COMMON.items()}
    kill_ms = draw(st.none() | KILLS)
    am_duration_ms = draw(TIMES if kill_ms is None else st.none() | TIMES)
    tasks = tuple(draw(st.lists(TASKS, max_size=4)))
    am_resource = Resource(1, 1) if tasks else draw(BIG)
    return ApplicationSpec(
        am_resource=am_resource, containers=tasks, kill_ms=kill_ms, am_duration_ms=am_duration_ms, **common
    )


@st.composite
def workloads(draw: Any) -> Workload:
    nodes = [
        NodeSpec(f"n{number}", Resource(draw(SIZES) + 9, draw(SIZES) + 9, draw(st.integers(0, 2))), "/r", draw(MODELS))
        for number in range(draw(st.integers(1, 3)))
    ]
    apps = draw(st.lists(applications(), min_size=1, max_size=6))
    return Workload("any", tuple(nodes), tuple(sorted(apps, key=lambda app: app.submit_ms)))


DELAYS = st.sampled_from([0, 10, 15])


def can_run(spec: ApplicationSpec, work: Workload) -> bool:
    """Whether some node could hold the master, and each container, if nothing else were there."""
    nodes = [SchedulerNode(node.host, node) for node in work.nodes]
    asks = [spec.am_resource, *(task.resource for task in spec.containers)]
    return all(any(node.fits(ask, spec.gpu_models) for node in nodes) for ask in asks)


def natural_end(spec: ApplicationSpec, work: Workload) -> str | None:
    """How an application ends unless it is killed; None: never."""
    return spec.outcome.value if can_run(spec, work) and spec.am_duration_ms is not None else None


def check_nothing_is_left(manager: ResourceManager, *, all_ended: bool) -> None:
    """The books are right; and if all applications have ended, empty."""
    context = manager.context
    held = {container for node in context.scheduler.nodes() for container in node.containers}
    assert held == set(context.containers)
    for node in context.scheduler.nodes():
        used = list(node.containers.values())
        assert node.free_memory_mb == node.capacity.memory_mb - sum(resource.memory_mb for resource in used) >= 0
        assert node.free_vcores_milli == node.capacity.vcores_milli - sum(r.vcores_milli for r in used) >= 0
    if not all_ended:
        return
    assert (context.containers, context.scheduler.waiting()) == ({}, [])
    for node in context.scheduler.nodes():
        assert node.free_gpu_milli == [1000] * node.capacity.gpus
    for part in (manager.node_managers, manager.masters):
        left = {name: value for name, value in vars(part).items() if isinstance(value, (dict, set)) and value}
        assert left.keys() <= {"_nodes"}


@pytest.mark.slow
@settings(max_examples=tries(20), deadline=None)
@given(workloads(), DELAYS)
def test_each_application_ends_as_it_should_and_leaves_nothing(work: Workload, am_register_delay_ms: int) -> None:
    settings_ = config(simulation={"am_register_delay_ms": am_register_delay_ms})
    with tempfile.TemporaryDirectory() as folder:
        replays = [Replay(work, settings_, journal_path=Path(folder) / name) for name in ("one", "two")]
        for replay in replays:
            finish(replay)
        journals = [Journal(Path(folder) / name) for name in ("one", "two")]
        contents = [journal.content() for journal in journals]
    finals = list(journals[0].final("RMApp").values())

    assert contents[0] == contents[1]
    all_ended = True
    for spec, (state, at_ms) in zip(work.applications, finals, strict=True):
        end = natural_end(spec, work)
        if spec.kill_ms is None:
            assert state == end or (end is None and state in ("ACCEPTED", "RUNNING"))
        elif state == "KILLED":
            assert at_ms == max(spec.kill_ms, spec.submit_ms)
        else:
            assert state == end
            assert at_ms <= max(spec.kill_ms, spec.submit_ms)
        all_ended &= state in ("FINISHED", "FAILED", "KILLED")
    check_nothing_is_left(replays[0].manager, all_ended=all_ended)


NEWS = st.lists(
    st.tuples(st.integers(0, 15).map(lambda n: n * 10), st.integers(0, 2), st.sampled_from(["lost", "ill", "well"])),
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=tries(25), deadline=None)
@given(workloads(), DELAYS, NEWS)
def test_applications_outlive_the_loss_of_nodes_that_come_back(
    work: Workload, am_register_delay_ms: int, news: list[tuple[int, int, str]]
) -> None:
    """A master that goes with its node is tried again, unless one attempt is all that is allowed."""
    replay = Replay(work, config(simulation={"am_register_delay_ms": am_register_delay_ms}))
    manager = replay.manager

    def change(node: NodeSpec, what: str) -> None:
        if what == "lost":
            manager.context.post(RMNodeEvent(RMNodeEventType.EXPIRE, f"{node.host}:45454"))
        else:
            manager.tracker.register_node(node)
            manager.tracker.heartbeat(f"{node.host}:45454", healthy=what == "well")

    def change_at(at_ms: int, node: NodeSpec, what: str) -> None:
        manager.context.timers.register_timer(at_ms, lambda _: change(node, what))

    def plan() -> None:
        for at_ms, which, what in news:
            change_at(at_ms, work.nodes[which % len(work.nodes)], what)
        for node in work.nodes:
            change_at(1000, node, "well")

    manager.dispatcher.mailbox_executor.execute(plan, "changes of the nodes")
    finish(replay)

    states = [app.state.name for app in manager.context.apps.values()]
    for spec, state in zip(work.applications, states, strict=True):
        end = natural_end(spec, work)
        allowed = {end} if end is not None else {"ACCEPTED", "RUNNING"}
        if spec.kill_ms is not None:
            allowed = {end or "KILLED", "KILLED"}
        if spec.max_attempts == 1:
            allowed.add("FAILED")
        assert state in allowed
    check_nothing_is_left(manager, all_ended=set(states) <= {"FINISHED", "FAILED", "KILLED"})
