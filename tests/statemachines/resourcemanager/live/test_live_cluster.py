"""Every event in every state of the four machines that a live cluster brings, and what must hold whatever it brings."""

from __future__ import annotations

import pytest

from ..builders import EVENT_TYPES, declared
from .cluster import LiveCluster, Settings, Step
from .directed import DIRECTED, UNREACHABLE, Directed, Pair, pairs
from .scripts import any_course

pytestmark = pytest.mark.long

ALL = {(machine, state, event) for machine in EVENT_TYPES for state, event in declared(machine)}
EXPLAINED = set().union(*map(pairs, UNREACHABLE.values()))


def taken(settings: Settings, steps: list[Step], name: object) -> set[Pair]:
    """Take a course in which no event is refused, nothing gets lost, and nothing is left; returns what it brought."""
    cluster = LiveCluster(settings, steps)
    cluster.run()

    script = "\n".join(map(repr, [name, settings, *steps]))
    assert (cluster.refused, cluster.problems) == ([], []), script
    assert cluster.reached & EXPLAINED == set(), script
    return cluster.reached


def test_each_pair_of_state_and_event_is_either_brought_about_or_out_of_reach_for_a_reason() -> None:
    aims = [pairs(course.pairs) for course in DIRECTED]
    reached = set().union(*aims)
    for seed in range(40):
        reached |= taken(*any_course(seed), f"seed {seed}")

    assert reached | EXPLAINED == ALL, sorted((reached | EXPLAINED) ^ ALL)
    assert reached & EXPLAINED == set()


@pytest.mark.parametrize("course", DIRECTED, ids=lambda course: course.pairs)
def test_timed_course_brings_a_machine_this_event_in_this_state(course: Directed) -> None:
    reached: set[Pair] = set()
    for settings in course.settings:
        reached |= taken(settings, course.steps, course.pairs)

    assert pairs(course.pairs) - reached == set()


@pytest.mark.minutes
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_no_event_is_refused_and_nothing_is_lost_or_left_whatever_a_cluster_brings(first: int) -> None:
    for seed in range(first, first + 50):
        taken(*any_course(seed), f"seed {seed}")
