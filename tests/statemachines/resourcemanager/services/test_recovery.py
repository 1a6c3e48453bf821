"""A resource manager dies, and the next one takes up its work, while nodes, masters and clients live on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..daemon.outside import Job, World
from ..inner import EXIT_SUCCESS, MemoryRMStateStore, RMStateStoreEvent
from ..machines.lives import AM_EXPIRY_MS, Life, Lives, check_nothing_is_left
from ..stores import Owner, app_id, app_record, attempt_id, store_app, store_attempt

MID_RUN_MS = 1550


def test_running_application_goes_on_with_its_attempt_and_all_its_containers() -> None:
    lives = Lives(Job("job", tasks=(4000, 5000, 6000)))
    world = lives.world
    lives.until(MID_RUN_MS)
    before = world.running()
    seen: dict[str, Any] = {}
    life = Life(world, lives.store)
    context = life.manager.context

    def look() -> None:
        (attempt,) = context.attempts.values()
        seen["states"] = attempt.app.state.name, attempt.state.name
        seen["master"] = attempt.master_container, attempt.host
        seen["containers"] = {c.entity: c.state.name for c in context.containers.values()}
        seen["running"] = world.running()
        seen["free"] = sum(node.free_memory_mb for node in context.scheduler.nodes())

    life.at(1000, look)
    lives._live(life)

    master = "container_0_0001_01_000001"
    assert len(before) == 4
    assert seen == {
        "states": ("RUNNING", "RUNNING"),
        "master": (master, "host"),
        "containers": dict.fromkeys(before, "RUNNING"),
        "running": before,
        "free": 2 * 10 - 4,
    }
    assert lives.ends() == {"job": ("FINISHED", 1)}
    assert world.launches == {"appattempt_0_0001_000001": 1}
    assert set(world.task_starts.values()) == {1}
    check_nothing_is_left(life.manager)


def test_containers_of_an_attempt_that_goes_on_get_no_id_twice() -> None:
    lives = Lives(Job("job", tasks=(2000,) * 12), nodes=1)  # nine at a time
    lives.until(MID_RUN_MS)
    before = lives.world.running()

    life = lives.to_the_end()

    machine = life.manager.recorder.machines["RMContainer"]
    assert lives.ends() == {"job": ("FINISHED", 1)}
    assert len(before) == 10
    assert len(lives.world.task_starts) == sum(lives.world.task_starts.values()) == 12
    assert len(lives.world.container_ids) == len(set(lives.world.container_ids)) == 13
    assert machine.created == 13


def test_master_learns_of_containers_that_ended_while_the_manager_was_down() -> None:
    lives = Lives(Job("job", tasks=(60_000, 60_000)))
    lives.until(MID_RUN_MS)
    for container in sorted(lives.world.running())[1:]:
        lives.world.end(container, EXIT_SUCCESS)

    life = lives.to_the_end()

    assert lives.ends() == {"job": ("FINISHED", 1)}
    assert set(lives.world.task_starts.values()) == {1}
    assert lives.world.now_ms < 60_000
    check_nothing_is_left(life.manager)


def test_master_that_crashed_while_the_manager_was_down_is_followed_by_another_attempt() -> None:
    lives = Lives(Job("job", tasks=(3000,)))
    lives.until(MID_RUN_MS)
    master, task = sorted(lives.world.running())
    lives.world.end(master, 137)

    life = lives.to_the_end()

    assert lives.ends() == {"job": ("FINISHED", 2)}
    first = life.manager.context.attempts["appattempt_0_0001_000001"]
    assert (first.state.name, first.exit_status) == ("FAILED", 137)
    assert task not in lives.world.completed_as(EXIT_SUCCESS)  # of an attempt that had ended: cleaned up
    check_nothing_is_left(life.manager)


def test_master_that_does_not_come_back_is_followed_by_another_attempt() -> None:
    lives = Lives(Job("job", tasks=(3000,)), nodes=1)
    lives.until(MID_RUN_MS)
    lives.world.lose_all()

    life = lives.to_the_end()

    first = life.manager.context.attempts["appattempt_0_0001_000001"]
    assert lives.ends() == {"job": ("FINISHED", 2)}
    assert first.diagnostics == ["the master was silent for too long"]
    assert lives.world.now_ms > MID_RUN_MS + AM_EXPIRY_MS


def test_node_that_is_being_emptied_is_emptied_by_the_next_manager() -> None:
    """It came back into service, and was given more containers."""
    lives = Lives(Job("job", tasks=(4000,)), nodes=1)
    world = lives.world
    first = Life(world, lives.store, at_ms=MID_RUN_MS)
    first.at(MID_RUN_MS - 50, lambda: first.manager.admin.refresh_nodes(["n0"], graceful=True))
    lives._live(first)
    second = Life(world, lives.store)
    states: list[str] = []
    second.at(1000, lambda: states.extend(node.state.name for node in second.manager.context.nodes.values()))
    lives._live(second)

    assert states == ["DECOMMISSIONING"]
    assert lives.ends() == {"job": ("FINISHED", 1)}
    assert world.launches == {"appattempt_0_0001_000001": 1}


def test_ended_applications_are_recovered_unchanged() -> None:
    jobs = Job("good"), Job("bad", fails=True), Job("killed", tasks=(9000,), kill_ms=800)
    lives = Lives(*jobs)
    reports = []
    for _ in range(2):
        life = lives.to_the_end()
        clients = life.manager.clients
        context = life.manager.context
        context.on_handler_thread = lambda: True  # the handler thread has ended: its state is this thread's
        reports.append(
            [
                (replace(clients.get_application_report(id), as_of_ms=0), clients.get_application_attempts(id))
                for id in context.apps
            ]
        )

    assert lives.ends() == {"good": ("FINISHED", 1), "bad": ("FAILED", 3), "killed": ("KILLED", 1)}
    assert reports[1] == reports[0]
    assert lives.last.manager.recorder.machines.keys() == {"RMApp", "RMAppAttempt", "RMNode"}  # no container was made
    check_nothing_is_left(lives.last.manager)


def test_failures_before_the_restart_count() -> None:
    lives = Lives(Job("job", tasks=(900,), fails=True))
    lives.until(2600)
    (app,) = lives.last.manager.context.apps.values()
    assert (app.state.name, len(app.attempts)) == ("RUNNING", 2)

    lives.to_the_end()

    assert lives.ends() == {"job": ("FAILED", 3)}


def having(*events: RMStateStoreEvent) -> MemoryRMStateStore:
    """A store that has handled these."""
    store = MemoryRMStateStore()
    store.attach(Owner())  # type: ignore[arg-type]
    for event in events:
        store.handle(event)
    return store


def test_application_whose_attempts_are_used_up_fails_without_another() -> None:
    """Killed after the end of the last attempt was stored, and before the end of its application was."""
    submission = app_record(1).submission._replace(max_attempts=2)
    failed = (store_attempt(1, attempt, state="FAILED", exit_status=1, finish_ms=3000) for attempt in (1, 2))
    store = having(store_app(1, submission=submission), *failed)
    life = Life(World(1), store)

    life.run()

    app = life.manager.context.apps[app_id(1)]
    assert (app.state.name, len(app.attempts)) == ("FAILED", 2)
    assert store.load_state().applications[app_id(1)].data.state == "FAILED"


def test_attempt_that_was_followed_by_another_has_failed_even_if_its_end_was_not_stored() -> None:
    ended = store_attempt(1, 2, state="FINISHED", finish_ms=3000)
    life = Life(World(1), having(store_app(1), store_attempt(1, 1), ended))

    life.run()

    app = life.manager.context.apps[app_id(1)]
    assert (app.state.name, [attempt.state.name for attempt in app.attempts]) == ("FINISHED", ["FAILED", "FINISHED"])


def test_master_that_the_cluster_does_not_run_registers_again_and_goes_on() -> None:
    submission = app_record(1).submission._replace(unmanaged_am=True)
    life = Life(World(1), having(store_app(1, submission=submission), store_attempt(1, master_container=None)))
    masters = life.manager.masters

    life.at(100, lambda: masters.register_application_master(attempt_id(1)))
    life.at(200, lambda: masters.finish_application_master(attempt_id(1)))
    life.run()

    app = life.manager.context.apps[app_id(1)]
    assert (app.state.name, [attempt.state.name for attempt in app.attempts]) == ("FINISHED", ["FINISHED"])


def test_lifetime_goes_on() -> None:
    lives = Lives(Job("job", tasks=(60_000,), submission={"lifetime_s": 5}))
    lives.until(MID_RUN_MS)

    lives.to_the_end()

    assert lives.ends() == {"job": ("KILLED", 1)}
    assert 5000 <= lives.world.now_ms < 7000


def test_new_ids_do_not_clash_even_if_the_clock_was_set_back() -> None:
    lives = Lives(Job("early"), Job("late", submit_ms=5000))
    lives.until(4000)
    assert lives.last.manager.context.apps.keys() == {"application_0_0001"}
    lives.world.now_ms = 0

    lives.to_the_end()

    assert lives.last.manager.context.apps.keys() == {"application_0_0001", "application_1_0001"}
    assert lives.ends() == {"early": ("FINISHED", 1), "late": ("FINISHED", 1)}


def test_without_work_preserving_recovery_attempts_begin_anew_and_the_old_ones_do_not_count() -> None:
    lives = Lives(Job("job", tasks=(2000,), submission={"max_attempts": 2}))
    lives.until(MID_RUN_MS)
    for _ in range(2):
        old = lives.world.running()
        assert len(old) == 2
        lives.until(lives.world.now_ms + MID_RUN_MS, work_preserving_recovery=False)
        assert not old & lives.world.running()

    life = lives.to_the_end()

    attempts = list(life.manager.context.attempts.values())
    assert lives.ends() == {"job": ("FINISHED", 3)}
    assert [attempt.state.name for attempt in attempts] == ["FAILED", "FAILED", "FINISHED"]
    assert "the resource manager restarted without it" in attempts[0].diagnostics[0]
    check_nothing_is_left(life.manager)
