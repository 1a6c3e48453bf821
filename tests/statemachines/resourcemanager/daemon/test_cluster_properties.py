"""What holds for a whole resource manager, whatever happens to it: applications, nodes and events in any order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemachines.resourcemanager import Resource
from statemachines.simulation.workload import ApplicationSpec, ContainerSpec, Outcome

from ....kit import tries
from ..builders import EVENT_TYPES
from ..machines.course import HOSTS, LEAVES, SCHEDULERS, Course, Step
from .happenings import TO_APPLICATIONS, TO_NODES, Forged, Illegal, Submit, ToApplication, ToNode

pytestmark = pytest.mark.long

SIZES = st.sampled_from([Resource(1, 1), Resource(4, 2), Resource(2, 5), Resource(7, 7)])
TASKS = st.builds(
    ContainerSpec,
    SIZES,
    duration_ms=st.integers(0, 2_000),
    start_ms=st.integers(0, 2_000),
    host=st.none() | st.sampled_from(HOSTS),
)
APPLICATIONS = st.builds(
    ApplicationSpec,
    name=st.just("any"),
    submit_ms=st.just(0),
    am_resource=st.sampled_from([Resource(1, 1), Resource(2, 2)]),
    containers=st.lists(TASKS, max_size=4).map(tuple),
    user=st.sampled_from(["ann", "bob"]),
    queue=st.sampled_from(LEAVES),
    am_duration_ms=st.sampled_from([0, 500, None]),
    outcome=st.sampled_from([Outcome.FINISHED, Outcome.FAILED]),
)
SUBMISSIONS = st.builds(
    Submit, APPLICATIONS, max_attempts=st.integers(1, 3), priority=st.integers(0, 1), keeps=st.booleans()
)
WHICH = st.integers(0, 20)  # which one of those that there are
TYPES = st.sampled_from([(machine, type.name) for machine, types in EVENT_TYPES.items() for type in types])
FOR_APPLICATIONS = st.builds(ToApplication, st.sampled_from(sorted(TO_APPLICATIONS)), WHICH)
FOR_NODES = st.builds(ToNode, st.sampled_from(sorted(TO_NODES)), st.sampled_from(HOSTS))
ILLEGAL = st.builds(lambda type, which: Illegal(*type, which), TYPES, WHICH)
# What only one can know, and everybody has to believe: who hears that an attempt has ended goes on without it, one that
# is to fetch its container asks until there is one, and a host that is said to stay may still be excluded. And what the
# store is said to refuse is forgotten.
LIES = {
    ("RMApp", "APP_SAVE_FAILED"),
    ("RMApp", "ATTEMPT_FINISHED"),
    ("RMApp", "ATTEMPT_FAILED"),
    ("RMApp", "ATTEMPT_KILLED"),
    ("RMAppAttempt", "CONTAINER_ALLOCATED"),
    ("RMNode", "RECOMMISSION"),
}
FORGED = st.builds(lambda type, which: Forged(*type, which), TYPES.filter(lambda type: type not in LIES), WHICH)


def courses(*happenings: st.SearchStrategy[Callable[[Course], None]]) -> st.SearchStrategy[list[Step]]:
    """Applications, and the rest in equal parts. Lists of lists: these get longer, and still shrink."""
    steps = st.builds(Step, st.integers(0, 1_000), st.integers(0, 15), st.one_of(SUBMISSIONS, *happenings))
    return st.lists(st.lists(steps, min_size=1, max_size=10), min_size=1, max_size=10).map(
        lambda parts: [step for part in parts for step in part]
    )


@contextmanager
def taken(scheduler: str, interval_ms: int, steps: list[Step], store_ms: int = 0) -> Iterator[Course]:
    """With nothing left to happen. What must hold at any moment is looked at in the end."""
    course = Course(scheduler, interval_ms, store_ms)
    course.start()
    try:
        course.do(lambda: course.enter(steps))
        yield course
    finally:
        course.stop()
    dispatcher = course.manager.dispatcher
    assert (dispatcher.stats().failed, dispatcher.failure_cause) == (0, None)
    assert course.problems == []


def check_to_the_end(scheduler: str, interval_ms: int, steps: list[Step], store_ms: int = 0) -> None:
    """All that must hold where everybody but the senders of illegal events does what he should."""
    with taken(scheduler, interval_ms, steps, store_ms) as course:
        course.do(course.repair)
        assert course.do(course.nodes_that_only_one_knows) == set()
        stuck = course.do(course.stuck)
        course.do(course.kill_all)
        left_over = course.do(course.left_over)

    assert stuck == []
    assert left_over == []
    assert course.refused == []


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=tries(10), deadline=None)
@given(st.sampled_from([0, 100]), st.sampled_from([0, 1, 50]), courses(FOR_APPLICATIONS, FOR_NODES, ILLEGAL))
def test_nothing_is_oversubscribed_leaked_refused_or_stuck_whatever_happens(
    scheduler: str, interval_ms: int, store_ms: int, steps: list[Step]
) -> None:
    check_to_the_end(scheduler, interval_ms, steps, store_ms)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=tries(10), deadline=None)
@given(courses(FOR_APPLICATIONS, FOR_NODES, FORGED, FORGED))
def test_illegal_events_break_no_handler_and_no_books(scheduler: str, steps: list[Step]) -> None:
    with taken(scheduler, 0, steps) as course:
        course.do(course.repair)
        course.do(course.kill_all)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("type", sorted(TO_APPLICATIONS))
@pytest.mark.parametrize("store_ms", [0, 50])
def test_no_event_is_refused_whenever_it_comes_in_the_life_of_an_application(
    scheduler: str, type: str, store_ms: int
) -> None:
    """A kill while the master registered, or was launched, was an invalid transition, which raises an alert."""
    moments = list(itertools.product((0, 25, 75, 100, 125, 175, 225), range(0, 24, 3)))
    some = random.Random(f"{scheduler} {type} {store_ms}").sample(moments, min(tries(12), len(moments)))
    for delay_ms, events in some:
        steps = [Step(0, 0, SHORT), Step(delay_ms, events, ToApplication(type, 0)), Step(0, 1, KILL)]

        check_to_the_end(scheduler, 0, steps, store_ms)


# -- what was found this way ------------------------------------------------------------------------------------------

SHORT = Submit(ApplicationSpec("any", 0, Resource(1, 1), queue="a", am_duration_ms=50))
KILL = ToApplication("kill", 0)
ENDLESS = Submit(ApplicationSpec("any", 0, Resource(1, 1), queue="a", am_duration_ms=None))


TASKS_OF_THREE = tuple(ContainerSpec(Resource(1, 1), duration_ms) for duration_ms in (500, 1000, 1500))
FOUND: dict[str, list[Step]] = {
    # The attempt that had ended counted as active in the new queue; with the next one, the scheduler ran for ever.
    **{
        f"an application is moved between two attempts, after {events} events": [
            Step(0, 0, ENDLESS),
            Step(1000, 0, ToApplication("fail the attempt", 0)),
            Step(0, events, ToApplication("move to c", 0)),
        ]
        for events in range(12)
    },
    # It went on listing the containers that it had come back with.
    "a node that comes back while it is ill has nothing once it is well": [
        Step(0, 0, ENDLESS),
        *[Step(1000 if host == HOSTS[0] else 0, 2, ToNode("register with what it runs", host)) for host in HOSTS],
        *[Step(0, 0, ToNode("report ill", host)) for host in HOSTS],
    ],
    # It counted them, and waited for less than nothing.
    "a master does not take the ends of its predecessor's containers for those of its own": [
        Step(
            0,
            0,
            Submit(
                ApplicationSpec("any", 0, Resource(1, 1), TASKS_OF_THREE, queue="a", am_duration_ms=0),
                max_attempts=3,
                keeps=True,
            ),
        ),
        Step(400, 0, ToApplication("crash", 0)),
    ],
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("steps", FOUND.values(), ids=FOUND)
def test_found(scheduler: str, steps: list[Step]) -> None:
    check_to_the_end(scheduler, 0, steps)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("type", ["FINISHED", "RELEASED", "KILL"])
def test_node_leaves_though_a_container_there_believes_that_it_has_ended(scheduler: str, type: str) -> None:
    """The scheduler looked for the container among the live ones, and kept a node that was gone, and gave of it."""
    steps = [
        Step(0, 0, ENDLESS),
        Step(1000, 0, Forged("RMContainer", type, 0)),
        *[Step(0, 0, ToNode("decommission", host)) for host in HOSTS],
    ]

    with taken(scheduler, 0, steps) as course:
        assert course.do(lambda: list(course.context.scheduler.nodes())) == []


def test_master_that_is_said_to_have_registered_before_it_has_does_no_harm() -> None:
    """It asked for containers, was told to register first, and took the handler thread down with it."""
    spec = ApplicationSpec("any", 0, Resource(1, 1), (ContainerSpec(Resource(1, 1), 1000),))
    steps = [Step(0, 0, Submit(spec)), Step(50, 0, Forged("RMAppAttempt", "REGISTERED", 0))]

    with taken("fifo", 0, steps) as course:
        course.do(course.kill_all)
        assert course.do(course.left_over) == []
