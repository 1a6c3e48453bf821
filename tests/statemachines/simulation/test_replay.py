"""Small workloads in virtual time, with known answers."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dispatcher import DispatcherConfig, load_config
from dispatcher.dispatching.early_signs import EarlySigns
from statemachines.resourcemanager import (
    Replay,
    ResourceManagerConfig,
    RMApp,
    RMAppAttempt,
    RMAppAttemptEventType,
    RMContainer,
    RMContainerEventType,
    RMNodeEventType,
)
from statemachines.simulation.workload import Outcome, read_workload

from ..resourcemanager.inner import SchedulerEventType
from .replays import TIMEOUT_S, Journal, app, config, mixed_workload, node, replayed, run, task, workload

CONFIG = Path(__file__).parents[3] / "config"
REGISTERED = 1000  # ms from the start of a master's container, as configured by default


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def test_the_journal_s_folder_has_the_configuration_of_the_run(path: Path) -> None:
    run(workload(node()), path, max_attempts=7)

    assert (path / "run.yaml").read_text().startswith("# A replay of the workload by hand in virtual time.\n")
    read = load_config(path / "run.yaml", ResourceManagerConfig)
    assert read == config(max_attempts=7)


# -- the lives of applications ----------------------------------------------------------------------------------------

LAUNCHING = "SUBMITTED@50 SCHEDULED@50 ALLOCATED_SAVING@50 ALLOCATED@50 LAUNCHED@50"
ENDING = "FINAL_SAVING@6050 FINISHING@6050 FINISHED@6050"
LIVES: dict[str, tuple[list[Any], dict[str, str]]] = {  # what each entity comes to last, and when
    "an application succeeds": (
        [app(submit_ms=50, tasks=(task(5000),))],
        {
            "RMApp": f"NEW_SAVING@50 SUBMITTED@50 ACCEPTED@50 RUNNING@1050 {ENDING}",
            "RMAppAttempt": f"{LAUNCHING} RUNNING@1050 {ENDING}",
            "RMContainer 01_000001": "ALLOCATED@50 ACQUIRED@50 RUNNING@50 COMPLETED@6050",
            "RMContainer 01_000002": "ALLOCATED@1050 ACQUIRED@1050 RUNNING@1050 COMPLETED@6050",
            "RMNode": "RUNNING@0",
        },
    ),
    "a master runs on after its last container": (
        [app(tasks=(task(100), task(300)), am_duration_ms=70)], {"RMApp": "FINISHED@1370"},
    ),
    **{
        f"an application that fails is tried as often as allowed: {most}": (
            [app(tasks=(task(500),), outcome=Outcome.FAILED, max_attempts=most)],
            {f"RMAppAttempt {n}": f"FAILED@{1500 * n}" for n in range(1, most + 1)}
            | {f"RMAppAttempt {most + 1}": "", "RMApp": f"FAILED@{1500 * most}"},
        )
        for most in (1, 2, 3)
    },
    "an application is killed while it waits": (
        [app(am=10, am_duration_ms=9000), app(submit_ms=10, am=10, kill_ms=500)],
        {
            "RMApp 0002": "KILLING@500 FINAL_SAVING@500 KILLED@500",
            "RMAppAttempt 0002_000001": "SUBMITTED@10 SCHEDULED@10 FINAL_SAVING@500 KILLED@500",
            "RMContainer 0002_01_000001": "",
        },
    ),
    "an application is killed while its master is launched": (
        [app(kill_ms=999)],
        {
            "RMApp": "ACCEPTED@0 KILLING@999 FINAL_SAVING@999 KILLED@999",
            "RMAppAttempt": "LAUNCHED@0 FINAL_SAVING@999 KILLED@999",
            "RMContainer": "KILLED@999",
        },
    ),
    "an application is killed while it runs, and its room goes to the next": (
        [app(tasks=(task(9000, memory_mb=4), task(9000, memory_mb=5)), kill_ms=3000), app(submit_ms=5, am=10)],
        {f"RMContainer 0001_01_00000{number}": "KILLED@3000" for number in (1, 2, 3)}
        | {
            "RMApp 0001": "KILLED@3000",
            "RMContainer 0002_01_000001": "ALLOCATED@3000 ACQUIRED@3000 RUNNING@3000 COMPLETED@4000",
            "RMApp 0002": "FINISHED@4000",
        },
    ),
    "a kill comes just before the master unregisters": (
        [app(am_duration_ms=500, kill_ms=1499)], {"RMApp": "KILLED@1499"},
    ),
    "a kill that comes when the master unregisters is too late": (
        [app(am_duration_ms=500, kill_ms=1500)], {"RMApp": "FINISHED@1500"},
    ),
    "a kill that comes after the end is too late": (
        [app(am_duration_ms=500, kill_ms=1501)], {"RMApp": "FINISHED@1500"},
    ),
    "a kill that comes with the end of the last container is not too late": (
        [app(tasks=(task(500),), kill_ms=1500)], {"RMApp": "KILLED@1500"},
    ),
    "a kill that comes with the submission kills at once": ([app(submit_ms=30, kill_ms=30)], {"RMApp": "KILLED@30"}),
    "a kill that comes before the submission kills at once": ([app(submit_ms=30, kill_ms=0)], {"RMApp": "KILLED@30"}),
    "a master without an end runs until it is killed": (
        [app(am_duration_ms=None, kill_ms=123_456)], {"RMApp": "KILLED@123456"},
    ),
    "applications wait for room and get it in the order of submission": (
        [app(submit_ms=number, am=10, am_duration_ms=200) for number in range(3)],
        {
            f"RMContainer 000{n}_01_000001": f"ALLOCATED@{t} ACQUIRED@{t} RUNNING@{t} COMPLETED@{t + 1200}"
            for n, t in ((1, 0), (2, 1200), (3, 2400))
        }
        | {f"RMApp 000{n}": f"FINISHED@{1200 * n}" for n in (1, 2, 3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("apps", "seen"), LIVES.values(), ids=LIVES)
def test_life(path: Path, apps: list[Any], seen: dict[str, str]) -> None:
    journal = replayed(workload(node(), *apps), path, max_attempts=3)

    for entity, expected in seen.items():
        machine, _, suffix = entity.partition(" ")
        states = [f"{state}@{time}" for state, time in journal.states(machine, suffix)]
        assert states[-len(expected.split()) :] == expected.split() if expected else states == [], entity


@pytest.mark.parametrize("life", [{"tasks": (task(9000),)}, {"am_duration_ms": 9000}, {"tasks": (task(9, 1, 9000),)}])
def test_nothing_happens_after_a_kill(life: dict[str, Any]) -> None:
    replay = run(workload(node(), app(kill_ms=2000, **life)))

    assert replay.progress().virtual_ms == 2000


STARTS: dict[str, tuple[dict[str, Any], list[int]]] = {  # an application, and when each of its containers starts
    "a container is asked for when its time has come and the master has registered": (
        {"submit_ms": 100, "tasks": (task(10, start_ms=500), task(10, start_ms=4000), task(10, start_ms=2000))},
        [100, 100 + REGISTERED, 2000, 4000],
    ),
    "containers of one application wait for each other": (
        {"tasks": (task(100, memory_mb=4),) * 5},
        [0, REGISTERED, REGISTERED, REGISTERED + 100, REGISTERED + 100, REGISTERED + 200],
    ),
}


@pytest.mark.parametrize(("about", "starts"), STARTS.values(), ids=STARTS)
def test_start(path: Path, about: dict[str, Any], starts: list[int]) -> None:
    journal = replayed(workload(node(), app(**about)), path)

    assert [time for state, time in journal.states("RMContainer") if state == "ALLOCATED"] == starts


# -- room -------------------------------------------------------------------------------------------------------------


def test_container_goes_to_the_node_that_it_prefers(path: Path) -> None:
    work = workload(
        *[node(host) for host in ("n1", "n2", "n3")], app(am_host="n3", tasks=(task(5, host="n2"), task(5, host="n9")))
    )

    journal = replayed(work, path)

    nodes = [
        event["payload"].split('"node":"')[1].split(":")[0]
        for event in journal.events
        if (event["event_class"], event["event_type"]) == ("RMContainerEventType", "START")
    ]
    assert nodes[:2] == ["n3", "n2"]


def test_replay_reports_asks_that_no_node_can_take_equal_ones_once() -> None:
    work = workload(node(), app("giant", am=11), app("small", am=1), app(tasks=(task(5, 11),) * 3))

    replay = run(work)

    why = "no node could ever take it: it needs 11 MB, and the largest, n1:45454, has 10 MB in all"
    assert replay.waiting() == [
        f"appattempt_0_0001_000001 waits for <memory:11 MB, vCores:0.001>: {why}",
        f"appattempt_0_0003_000001 waits for 3 x <memory:11 MB, vCores:0.001>: {why}",
    ]
    assert replay.progress().applications_by_state == {"ACCEPTED": 1, "FINISHED": 1, "RUNNING": 1}


def test_replay_reports_asks_that_wait_behind_endless_applications() -> None:
    work = workload(node(), app("endless", am_duration_ms=None), app("waiting", am=10))

    replay = run(work)

    (line,) = replay.waiting()
    assert line.startswith("appattempt_0_0002_000001 waits for ")
    assert line.endswith(": no node has 10 MB free; the closest, n1:45454, has 9 MB")
    assert replay.progress().applications_by_state == {"RUNNING": 1, "ACCEPTED": 1}


def test_masters_that_fill_a_fifo_cluster_are_a_deadlock_that_is_told_once() -> None:
    """Each application had a line for each of its requests, all equal, and nothing said that this was the end."""
    work = workload(node(memory_mb=4, vcores_milli=100), *[app(tasks=(task(5),) * 3) for _ in range(6)], app(am=5))

    replay = run(work)

    assert replay.deadlock() == [
        "Deadlock: every application with containers (4) waits for more. They hold 4 MB and 0.004 vcores in 4 "
        "containers, and 3 more have no container. In queues of the capacity scheduler, maximum_am_resource_percent "
        "keeps room free of masters",
        *(
            f"appattempt_0_000{number}_000001 holds 1 MB and 0.001 vcores in 1 container, and waits for "
            "3 x <memory:1 MB, vCores:0.001>"
            for number in range(1, 5)
        ),
    ]
    (giant,) = replay.waiting()  # what the deadlock does not explain
    assert giant.startswith(
        "appattempt_0_0007_000001 waits for <memory:5 MB, vCores:0.001>: no node could ever take it"
    )


def test_deadlock_of_a_queue_names_its_limit() -> None:
    queues = [{"name": "default", "capacity": 50, "maximum_capacity": 50, "user_limit_factor": 9}]
    queues[0]["maximum_am_resource_percent"] = 100
    settings = {"kind": "capacity", "queues": [*queues, {"name": "other", "capacity": 50}]}

    replay = run(workload(node(), *[app(am=2, tasks=(task(5, 2),)) for _ in range(2)]), scheduler=settings)

    head, first, second = replay.deadlock()
    assert head.startswith("Deadlock: every application with containers (2) waits for more.")
    for line in (first, second):
        assert line.endswith("; queue root.default has used 4 MB of its 5 MB; the request needs 2 MB")
    assert replay.waiting() == []


@pytest.mark.parametrize("other", [app("endless", am_duration_ms=None), app("giant", am=1, tasks=(task(5, 99),))])
def test_no_deadlock_while_an_application_that_holds_room_does_not_wait_for_it(other: Any) -> None:
    replay = run(workload(node(), other, app(am=9, tasks=(task(5),)), app(am=10)))

    assert replay.deadlock() == []
    assert replay.waiting() != []


# -- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 2, 5])
def test_ended_applications_beyond_the_limit_are_forgotten_while_the_counts_stay(kept: int) -> None:
    work = workload(node(), *[app(submit_ms=number * 10, tasks=(task(1),)) for number in range(5)])

    replay = run(work, max_completed_applications=kept)

    context, machines = replay.manager.context, replay.manager.recorder.machines
    assert list(context.apps) == [f"application_0_000{number}" for number in range(6 - kept, 6)]
    assert list(context.attempts) == [f"appattempt_0_000{number}_000001" for number in range(6 - kept, 6)]
    assert replay.progress().applications_by_state == {"FINISHED": 5}
    for machine in ("RMApp", "RMAppAttempt"):
        assert machines[machine].created == 5
        assert machines[machine].kept_entities()["FINISHED"] == kept


def test_nothing_is_kept_of_containers_and_masters_that_have_ended() -> None:
    replay = run(workload(node(), app(tasks=(task(5), task(7))), app(kill_ms=2000, tasks=(task(9000),))))

    manager = replay.manager
    assert manager.context.containers == {}
    leftovers = {
        name: value
        for part in (manager.node_managers, manager.masters)
        for name, value in vars(part).items()
        if isinstance(value, (dict, set)) and value and name != "_nodes"
    }
    assert leftovers == {}


@pytest.mark.long
def test_ended_entities_are_freed_without_the_cyclic_garbage_collector() -> None:
    """Each container and its machine referred to each other: ten million of them were garbage for hours."""

    def entities() -> dict[int, RMContainer | RMApp | RMAppAttempt]:
        kinds = (RMContainer, RMApp, RMAppAttempt)
        return {id(each): each for each in gc.get_objects() if type(each) in kinds}

    gc.collect()
    gc.disable()
    try:
        before = entities()  # of other tests; held, so that no new one gets the address of an old one
        replay = run(mixed_workload(), max_completed_applications=0)
        new = [entity for address, entity in entities().items() if address not in before]
    finally:
        gc.enable()

    assert replay.progress().containers > 30
    assert {entity.state.name for entity in new} <= {"ACCEPTED", "SCHEDULED", "RUNNING"}


# -- the run itself ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_two_replays_make_the_same_journal_byte_for_byte_whatever_the_hash_seed(tmp_path: Path) -> None:
    code = "import sys, pathlib, replays; replays.run(replays.mixed_workload(), pathlib.Path(sys.argv[1]))"
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "other"],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)},
        timeout=TIMEOUT_S,
        check=True,
    )

    one, two, other = (
        replayed(mixed_workload(), tmp_path / "one").content(),
        replayed(mixed_workload(), tmp_path / "two").content(),
        Journal(tmp_path / "other").content(),
    )

    assert one == two == other
    assert min(text.count(b"\n") for text in one.values()) > 100


def test_a_replay_is_done_once_however_often_its_thread_wakes_up_and_tells_its_progress() -> None:
    done: list[bool] = []
    work = workload(node(), app(tasks=(task(500),)), app(outcome=Outcome.FAILED, max_attempts=1))
    replay = Replay(work, config(), on_done=lambda: done.append(True))
    assert (replay.is_done(), replay.wait(0.01)) == (False, False)
    began_s = time.perf_counter()
    replay.start()
    try:
        assert replay.wait(TIMEOUT_S)
        for _ in range(20):
            replay.manager.dispatcher.mailbox_executor.submit(lambda: None, "wakes the thread").result(TIMEOUT_S)
    finally:
        replay.stop()

    progress = replay.progress()
    assert (replay.is_done(), done, replay.workload) == (True, [True], work)
    assert (progress.virtual_ms, progress.containers, progress.ended) == (REGISTERED + 500, 3, 2)
    assert progress.applications_by_state == {"FINISHED": 1, "FAILED": 1}
    assert progress.events == replay.manager.dispatcher.stats().handled > 0
    assert progress.events_per_s == pytest.approx(progress.events / progress.wall_s)
    assert 0 < progress.wall_s <= time.perf_counter() - began_s
    assert replay.progress() == progress, "time stands still after the end"


def test_run_of_a_workload_without_anything_is_done_at_once_and_stops() -> None:
    replay = Replay(workload(), config())

    assert (replay.run().virtual_ms, replay.manager.dispatcher.is_stopped()) == (0, True)


@pytest.mark.parametrize("way", ["run", "wait"])
def test_the_error_that_stopped_the_handler_thread_ends_the_replay(way: str) -> None:
    """It was waited for forever."""
    replay = Replay(workload(node(), app()), config())
    replay.manager.dispatcher.mailbox_executor.execute(lambda: 1 / 0, "a mail that fails")

    if way == "wait":
        replay.start()
        assert (replay.wait(TIMEOUT_S), replay.is_done()) == (True, False)
        replay.stop()
    with pytest.raises(ZeroDivisionError):
        replay.run() if way == "run" else replay.raise_failure()


# -- health -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_health_has_no_warning_while_the_sample_is_replayed() -> None:
    """With the defaults of its thresholds. What 2,000 events bring, some 50 ms of a replay, counts as a second's."""
    sample = read_workload(CONFIG / "workloads" / "sample")
    part = replace(sample, applications=sample.applications[:200])
    replay = Replay(part, load_config(CONFIG / "replay.yaml", ResourceManagerConfig))
    dispatcher, handled, warnings = replay.manager.dispatcher, itertools.count(1), set[str]()
    seconds = 0

    def routes() -> Iterable[Any]:
        stats = dispatcher.stats()
        for (event_class, name), count in stats.handled_by_type.items():
            failed = stats.failed_by_type.get((event_class, name), 0)
            yield SimpleNamespace(event_class=event_class, name=name, handled=count, failed=failed)

    signs = EarlySigns(DispatcherConfig(), dispatcher.queue_size, routes, clock_ns=lambda: seconds * 10**9)

    def look(_: Any) -> None:
        nonlocal seconds
        if next(handled) % 2000 == 0:
            seconds += 1
            signs.check()
            warnings.update(sign.detail for sign in signs.present)
            warnings.update(name for name, is_present in dispatcher.stats().degraded.items() if is_present)

    for event_type in (RMAppAttemptEventType, RMContainerEventType, RMNodeEventType, SchedulerEventType):
        dispatcher.register(event_type, look)

    replay.run()

    assert seconds > 10
    assert warnings == set()
