"""A resource manager dies after any event, twice: each application still ends once, and as it should."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ....kit import EFFORT, tries
from ..daemon.outside import Job
from ..machines.lives import Life, Lives, check_nothing_is_left

JOBS = (
    Job("good", tasks=(1000, 500)),
    Job("bad", submit_ms=100, fails=True, submission={"max_attempts": 2}),
    Job("killed", submit_ms=200, tasks=(9000,), kill_ms=900),
)
ENDS = {"good": "FINISHED", "bad": "FAILED", "killed": "KILLED"}


@pytest.mark.slow
@pytest.mark.parametrize(("work_preserving", "first"), [(True, 1), (False, 2)])
def test_killed_after_any_event_each_application_ends_as_it_should_and_once(work_preserving: bool, first: int) -> None:
    """Each of many events of a run is the last one that the first resource manager handles."""
    total = Lives(*JOBS).to_the_end().handled
    assert total > 200
    for events in range(first, total + 1, max(1, 5 // EFFORT)):
        lives = Lives(*JOBS)
        lives._live(Life(lives.world, lives.store, events=events))

        life = lives.to_the_end(work_preserving_recovery=work_preserving)

        context = f"killed after {events} of {total} events"
        assert {name: state for name, (state, _) in lives.ends().items()} == ENDS, context
        assert set(lives.world.task_starts.values()) <= {1}, context
        assert set(lives.world.launches.values()) == {1}, context
        stored = lives.store.load_state().applications
        assert {id: app.data.state for id, app in stored.items()} == {
            id: app.state.name for id, app in life.manager.context.apps.items()
        }, context
        check_nothing_is_left(life.manager)


TASKS = st.lists(st.sampled_from([100, 700, 1500]), max_size=4).map(tuple)
ANY_JOBS = st.lists(
    st.builds(
        Job,
        st.just("job"),
        st.sampled_from([0, 150, 600]),
        TASKS,
        fails=st.sampled_from([False, False, True]),
        kill_ms=st.sampled_from([None, None, None, 400, 1200]),
    ),
    min_size=1,
    max_size=4,
).map(lambda jobs: [Job(f"job {n}", j.submit_ms, j.tasks, j.fails, j.kill_ms) for n, j in enumerate(jobs)])


@pytest.mark.slow
@settings(max_examples=tries(15), deadline=None)
@given(ANY_JOBS, st.lists(st.tuples(st.integers(1, 250), st.booleans()), max_size=4), st.integers(1, 2))
def test_killed_again_and_again_each_application_ends_once(
    jobs: list[Job], deaths: list[tuple[int, bool]], nodes: int
) -> None:
    lives = Lives(*jobs, nodes=nodes)
    for events, work_preserving in deaths:
        lives._live(
            Life(lives.world, lives.store, events=events, work_preserving_recovery=work_preserving, max_attempts=9)
        )

    life = lives.to_the_end(max_attempts=9)

    for job, (state, attempts) in zip(jobs, lives.ends().values(), strict=True):
        expected = {"FAILED"} if job.fails else {"FINISHED"}
        assert state in (expected | {"KILLED"} if job.kill_ms is not None else expected)
        assert attempts <= 9 + len(deaths)
    assert set(lives.world.task_starts.values()) <= {1}
    check_nothing_is_left(life.manager)
