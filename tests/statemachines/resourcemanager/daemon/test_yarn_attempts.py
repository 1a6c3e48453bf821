"""Attempts of an application, from outside: masters that crash, fall silent, are kept from nodes, or live elsewhere."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import FinalApplicationStatus, UnknownAttemptError
from statemachines.resourcemanager.events.records import EXIT_ABORTED, EXIT_DISKS_FAILED, EXIT_PREEMPTED
from statemachines.resourcemanager.records.ids import attempt_id
from statemachines.resourcemanager.services.resource_tracker_service import NodeAction

from .yarn_cluster import Master, Yarn, ask, first_attempt, hosts_of

pytestmark = pytest.mark.long

EXPIRY_MS = 1000


def test_master_that_crashes_is_followed_by_another_and_the_last_crash_fails_the_application() -> None:
    with Yarn("n1", "n2", max_attempts=2) as yarn:
        app = yarn.submit()
        first = yarn.run(app)
        (task,) = first.get_running(ask())

        yarn.end(first.container, 1, "out of memory")
        after_first = yarn.states(app)
        left = yarn.clients.get_containers(first.attempt), task.entity in yarn.stopped
        second = yarn.run(app)
        registered = yarn.states(app)
        yarn.end(second.container, 2, "out of memory again")

        attempts = yarn.clients.get_application_attempts(app)
        report = yarn.report(app)
    assert after_first == ("ACCEPTED", ["FAILED", "LAUNCHED"])
    assert left == ([], True)
    assert registered == ("RUNNING", ["FAILED", "RUNNING"])
    assert [(attempt.state, attempt.exit_status, attempt.host) for attempt in attempts] == [
        ("FAILED", 1, ""),
        ("FAILED", 2, ""),
    ]
    assert (report.state, report.final_status, report.containers) == ("FAILED", "FAILED", 0)
    assert "out of memory again" in report.diagnostics
    assert "failed 2 times, of 2 allowed" in report.diagnostics


@pytest.mark.parametrize(("wanted", "given"), [(None, 3), (2, 2), (9, 3)])
def test_application_has_as_many_attempts_as_it_wants_and_may_have(wanted: int | None, given: int) -> None:
    with Yarn("n1", max_attempts=3) as yarn:
        app = yarn.submit(max_attempts=wanted)

        while yarn.report(app).state != "FAILED":
            yarn.end(yarn.run(app).container, 1)

        assert len(yarn.clients.get_application_attempts(app)) == given


def test_master_that_falls_silent_is_followed_by_another_and_refused() -> None:
    with Yarn("n1", expiry_ms=EXPIRY_MS) as yarn:
        app = yarn.submit()
        silent = yarn.run(app)

        yarn.advance(EXPIRY_MS - 1)
        yarn.heartbeat("n1")
        before = yarn.states(app)
        yarn.advance(1)

        assert before == ("RUNNING", ["RUNNING"])
        assert yarn.states(app) == ("ACCEPTED", ["FAILED", "LAUNCHED"])
        assert silent.container.entity in yarn.stopped
        assert silent.container.entity in yarn.heartbeat("n1").containers_to_clean
        with pytest.raises(UnknownAttemptError):
            silent.allocate()
        assert yarn.run(app).attempt == attempt_id(app, 2)


def test_master_that_calls_does_not_expire() -> None:
    with Yarn("n1", expiry_ms=EXPIRY_MS) as yarn:
        app = yarn.submit()
        master = yarn.run(app)

        for _ in range(5):
            yarn.advance(EXPIRY_MS - 1)
            master.allocate()
            yarn.heartbeat("n1")

        assert yarn.states(app) == ("RUNNING", ["RUNNING"])


def test_master_that_is_launched_and_never_registers_expires() -> None:
    with Yarn("n1", expiry_ms=EXPIRY_MS, max_attempts=1) as yarn:
        app = yarn.submit()

        yarn.advance(EXPIRY_MS - 1)
        yarn.heartbeat("n1")
        yarn.advance(1)

        assert yarn.states(app) == ("FAILED", ["FAILED"])
        assert "silent for too long" in yarn.report(app).diagnostics


def test_master_that_has_unregistered_and_does_not_exit_is_stopped_in_the_end() -> None:
    with Yarn("n1", expiry_ms=EXPIRY_MS) as yarn:
        app = yarn.submit()
        master = yarn.run(app)

        master.finish(final_status=FinalApplicationStatus.SUCCEEDED)
        finishing = yarn.states(app), yarn.report(app).final_status
        yarn.advance(EXPIRY_MS - 1)
        yarn.heartbeat("n1")
        yarn.advance(1)

        assert finishing == (("FINISHED", ["FINISHING"]), "SUCCEEDED")
        assert yarn.states(app) == ("FINISHED", ["FINISHED"])
        assert master.container.entity in yarn.stopped


def test_failures_older_than_the_validity_interval_do_not_count() -> None:
    with Yarn("n1", max_attempts=2) as yarn:
        app = yarn.submit(attempt_failures_validity_interval_ms=10_000)

        for _ in range(4):  # each time, the failure before is forgotten
            yarn.end(yarn.run(app).container, 1)
            yarn.advance(10_001)
        many = yarn.states(app)
        yarn.end(yarn.run(app).container, 1)
        yarn.advance(9_000)
        yarn.end(yarn.run(app).container, 1)

        assert many == ("ACCEPTED", ["FAILED"] * 4 + ["LAUNCHED"])
        assert yarn.states(app) == ("FAILED", ["FAILED"] * 6)


@pytest.mark.parametrize("exit_status", [EXIT_ABORTED, EXIT_DISKS_FAILED, EXIT_PREEMPTED])
def test_failures_that_are_not_the_masters_do_not_count(exit_status: int) -> None:
    with Yarn("n1", max_attempts=2) as yarn:
        app = yarn.submit()

        for _ in range(3):
            yarn.end(yarn.run(app).container, exit_status)

        assert yarn.states(app) == ("ACCEPTED", ["FAILED"] * 3 + ["LAUNCHED"])


def test_attempt_that_its_user_fails_is_followed_by_another_and_its_container_is_stopped() -> None:
    with Yarn("n1") as yarn:
        app = yarn.submit()
        master = yarn.run(app)

        yarn.do(lambda: yarn.clients.fail_application_attempt(first_attempt(app)))

        assert yarn.states(app) == ("ACCEPTED", ["FAILED", "LAUNCHED"])
        assert master.container.entity in yarn.heartbeat("n1").containers_to_clean


def test_next_master_avoids_the_host_on_which_the_last_one_crashed() -> None:
    with Yarn("n1", "n2", "n3", max_attempts=3) as yarn:
        app = yarn.submit(am_host="n1")

        yarn.end(yarn.run(app).container, 1)
        second = yarn.run(app)
        yarn.end(second.container, 1)
        third = yarn.run(app)

        hosts = hosts_of([container for container in yarn.started if container.application == app])
        assert hosts[0] == "n1"
        assert len(set(hosts)) == 3
        assert yarn.clients.get_application_attempt_report(third.attempt).system_blacklist == tuple(sorted(hosts[:2]))


def test_master_may_run_again_where_it_crashed_if_there_is_nowhere_else() -> None:
    with Yarn("n1", max_attempts=2) as yarn:
        app = yarn.submit()

        yarn.end(yarn.run(app).container, 1)

        assert yarn.states(app) == ("ACCEPTED", ["FAILED", "LAUNCHED"])


def test_host_that_the_master_avoids_for_itself_takes_the_tasks_of_its_application() -> None:
    with Yarn("n1", "n2", max_attempts=3) as yarn:
        app = yarn.submit(am_host="n1")
        yarn.end(yarn.run(app).container, 1)

        (task,) = yarn.run(app).get(ask(host="n1", relax_locality=False))

        assert hosts_of([task]) == ["n1"]


def test_tasks_go_on_for_the_next_master_where_the_application_keeps_them() -> None:
    with Yarn("n1", "n2") as yarn:
        app = yarn.submit(keep_containers_across_attempts=True)
        first = yarn.run(app)
        lasting, ending = first.get_running(ask(), ask())
        (fetched,) = first.get(ask())  # and never started: the next master could not know what it is for

        yarn.end(first.container, 1)
        yarn.end(ending, 3)
        second = yarn.run(app)
        response = second.allocate(releases=[])
        yarn.end(lasting, 0)

        assert second.kept == [lasting.entity]
        assert lasting.entity not in yarn.stopped
        assert fetched.entity not in yarn.context.containers
        assert (ending.entity, 3) in [(status.container, status.exit_status) for status in response.finished]
        assert [status.container for status in second.allocate().finished] == [lasting.entity]


def test_kept_tasks_end_with_the_last_attempt() -> None:
    with Yarn("n1", max_attempts=2) as yarn:
        app = yarn.submit(keep_containers_across_attempts=True)
        first = yarn.run(app)
        (task,) = first.get_running(ask())

        yarn.end(first.container, 1)
        kept = task.entity in yarn.stopped
        yarn.end(yarn.run(app).container, 1)

        assert not kept
        assert yarn.states(app) == ("FAILED", ["FAILED", "FAILED"])
        assert task.entity in yarn.heartbeat("n1").containers_to_clean
        assert yarn.context.containers == {}


def test_master_that_the_cluster_does_not_run_registers_works_and_finishes_without_a_container() -> None:
    with Yarn("n1") as yarn:
        app = yarn.submit(unmanaged_am=True)
        launched = yarn.states(app), yarn.report(app).containers
        master = Master(yarn, first_attempt(app), None)

        master.register()
        running = yarn.report(app).state
        tasks = master.get_running(ask(9))
        for task in tasks:
            yarn.end(task)
        is_done = master.finish()

        assert launched == (("ACCEPTED", ["LAUNCHED"]), 0)
        assert running == "RUNNING"
        assert len(tasks) == 1
        assert is_done
        assert yarn.states(app) == ("FINISHED", ["FINISHED"])
        assert yarn.started == []


def test_master_that_the_cluster_does_not_run_is_not_tried_again() -> None:
    with Yarn("n1", expiry_ms=EXPIRY_MS, max_attempts=3) as yarn:
        app = yarn.submit(unmanaged_am=True)
        Master(yarn, first_attempt(app), None).register()

        yarn.advance(EXPIRY_MS)

        assert yarn.states(app) == ("FAILED", ["FAILED"])


def test_node_that_runs_a_given_up_master_is_told_to_stop_it_when_it_comes_back() -> None:
    """The node was lost, with the master on it; both had only lost the network."""
    with Yarn("n1", expiry_ms=EXPIRY_MS) as yarn:
        app = yarn.submit()
        master = yarn.run(app)
        yarn.advance(EXPIRY_MS // 2)
        master.allocate()
        yarn.advance(EXPIRY_MS // 2)
        lost = yarn.node_states(), yarn.states(app)
        news = yarn.heartbeat("n1", running=frozenset([master.container.entity])).action
        yarn.register("n1")
        yarn.heartbeat("n1", running=frozenset([master.container.entity]))
        cleaned = yarn.heartbeat("n1", running=frozenset([master.container.entity])).containers_to_clean

        assert lost == ({"n1": "LOST"}, ("ACCEPTED", ["FAILED", "SCHEDULED"]))
        assert news is NodeAction.RESYNC
        assert cleaned == {master.container.entity}
        assert yarn.states(app) == ("ACCEPTED", ["FAILED", "LAUNCHED"])


def test_master_on_a_node_that_is_to_leave_may_still_be_launched_there() -> None:
    with Yarn("n1", "n2") as yarn:
        app = yarn.submit(am_host="n1")

        yarn.do(lambda: yarn.admin.refresh_nodes(["n1"], graceful=True))
        yarn.heartbeat("n1")
        yarn.run(app).finish_and_exit()
        yarn.heartbeat("n1")

        assert yarn.states(app) == ("FINISHED", ["FINISHED"])
        assert yarn.node_states() == {"n1": "DECOMMISSIONED", "n2": "RUNNING"}


def test_unmanaged_master_that_keeps_its_containers_may_begin_anew_and_is_told_of_them() -> None:
    with Yarn("n1") as yarn:
        app = yarn.submit(unmanaged_am=True, keep_containers_across_attempts=True)
        master = Master(yarn, first_attempt(app), None)
        master.register()
        (task,) = master.get_running(ask())

        master.register()

        assert master.kept == [task.entity]
        assert yarn.states(app) == ("RUNNING", ["RUNNING"])
