"""RMAppAttempt from its launch to its end: what it posts, stores and keeps."""

from __future__ import annotations

import pytest

from statemachines.resourcemanager import ContainerStatus, Resource

from ....kit.scenarios import play
from ..builders import MASTER, NODE, TASK, Workshop, send
from .stage import MachineStage

FIRST, SECOND = "appattempt_0_0001_000001", "appattempt_0_0001_000002"
APP = "application_0_0001"
KEEP = "keep_containers_across_attempts=True"
URL = "http://node1:8080/"
REGISTERED = f"REGISTERED host=node1 rpc_port=4711 tracking_url={URL}"
SAVED = "ATTEMPT_UPDATE_SAVED"
CRASH = f"the_master's_container_{MASTER}_exited_with_1:_it_crashed"


def keeps(submitted: str, event: str, kept: bool) -> str:
    return (
        f"attempt RUNNING {submitted} | {event} | {SAVED} -> ATTEMPT_{'KILLED' if event == 'KILL' else 'FAILED'}"
        f".keep_containers {kept} ; APP_ATTEMPT_REMOVED.keep_containers {kept}"
    )


SCENARIOS = {
    "a registration says where the master is": (
        f"attempt LAUNCHED | {REGISTERED} -> entity.host node1 ; entity.rpc_port 4711 ; entity.tracking_url {URL}"
    ),
    "a new tracking URL is stored without an answer, and one that is known is not": (
        f"attempt RUNNING | STATUS_UPDATE tracking_url={URL} -> UPDATE_APP_ATTEMPT.state.tracking_url {URL}"
        "; UPDATE_APP_ATTEMPT.state.state None ; UPDATE_APP_ATTEMPT.notify False"
        f"| STATUS_UPDATE tracking_url={URL} -> posted | STATUS_UPDATE tracking_url=None -> posted"
    ),
    "progress is what the master says, and whole when it has ended": (
        "attempt RUNNING -> entity.progress 0.0 | STATUS_UPDATE progress=1 -> entity.progress 1"
        f"| STATUS_UPDATE progress=0 -> entity.progress 0 | UNREGISTERED | {SAVED} | CONTAINER_FINISHED"
        "-> entity.progress 1.0"
    ),
    "a master is monitored from its launch": "attempt ALLOCATED | LAUNCHED -> in_am_liveliness_monitor True",
    "a master that registers at once is monitored": "attempt ALLOCATED | REGISTERED -> in_am_liveliness_monitor True",
    "an unmanaged master is monitored once it is stored": (
        "attempt LAUNCHED_UNMANAGED_SAVING | ATTEMPT_NEW_SAVED -> in_am_liveliness_monitor True"
    ),
    "a master that unregistered moves to the finishing monitor when that is stored": (
        "attempt RUNNING | watch | UNREGISTERED -> in_am_liveliness_monitor True ; in_am_finishing_monitor False"
        f"| {SAVED} -> in_am_liveliness_monitor False ; in_am_finishing_monitor True"
    ),
    **{
        f"no monitor waits for an attempt that was {state} and has ended by {event}": (
            f"attempt {state} | watch -> in_am_liveliness_monitor True | {event} | {SAVED}"
            "-> in_am_liveliness_monitor False"
        )
        for state in ("LAUNCHED", "RUNNING") for event in ("KILL", "FAIL", "CONTAINER_FINISHED")
    },
    **{
        f"no monitor waits for an attempt that was finishing and has ended by {event}": (
            f"attempt FINISHING | watch | {event} -> in_am_finishing_monitor False"
        )
        for event in ("EXPIRE", "CONTAINER_FINISHED")
    },
    **{
        f"a silent master that was {state} expires and its attempt fails": (
            f"attempt {state} | watch | +10000 | expire | {SAVED} -> state FAILED"
            "; entity.diagnostics the_master_was_silent_for_too_long"
        )
        for state in ("LAUNCHED", "RUNNING")
    },
    **{
        f"the crash of a master that was {state} is stored and told with its status": (
            f"attempt {state} | CONTAINER_FINISHED -> UPDATE_APP_ATTEMPT.state.state FAILED ; entity.exit_status 1"
            f"; UPDATE_APP_ATTEMPT.state.exit_status 1 ; UPDATE_APP_ATTEMPT.state.diagnostics {CRASH}"
            f"| {SAVED} -> ATTEMPT_FAILED.entity {APP} ; ATTEMPT_FAILED.diagnostics {CRASH}"
        )
        for state in ("SCHEDULED", "ALLOCATED_SAVING", "ALLOCATED", "LAUNCHED", "RUNNING")
    },
    "the reason for a kill reaches the application": (
        f"attempt RUNNING | KILL diagnostics=because | {SAVED} -> ATTEMPT_KILLED.diagnostics because"
    ),
    "the reason for a kill before the start reaches the application": (
        f"attempt NEW | KILL diagnostics=because | {SAVED} -> ATTEMPT_KILLED.diagnostics because"
    ),
    "the reason for a failure reaches the application": (
        f"attempt RUNNING | FAIL diagnostics=because | {SAVED} -> ATTEMPT_FAILED.diagnostics because"
    ),
    "the reason for a failed launch reaches the application": (
        f"attempt ALLOCATED | LAUNCH_FAILED diagnostics=because | {SAVED} -> ATTEMPT_FAILED.diagnostics because"
    ),
    **{
        f"an application hears that a master registered too early, at {state}": (
            f"attempt {state} | REGISTERED | {SAVED}"
            "-> ATTEMPT_FAILED.diagnostics the_master_registered_before_it_was_launched"
        )
        for state in ("NEW", "SUBMITTED", "LAUNCHED_UNMANAGED_SAVING")
    },
    "the last words of the master are stored and told": (
        "attempt RUNNING | +9 | UNREGISTERED final_status=FAILED diagnostics=3_maps_failed tracking_url=http://history/1"
        "-> UPDATE_APP_ATTEMPT.state.final_status FAILED ; UPDATE_APP_ATTEMPT.state.diagnostics 3_maps_failed"
        "; UPDATE_APP_ATTEMPT.state.finish_ms 9 ; UPDATE_APP_ATTEMPT.state.tracking_url http://history/1"
        f"; entity.tracking_url http://history/1 ; ATTEMPT_UNREGISTERED.entity {APP}"
        "; ATTEMPT_UNREGISTERED.diagnostics 3_maps_failed"
    ),
    "an attempt that unregistered finishes if its container ends before the store answers": (
        f"attempt RUNNING | UNREGISTERED | CONTAINER_FINISHED | {SAVED}"
        "-> state FINISHED ; posted ATTEMPT_FINISHED APP_ATTEMPT_REMOVED CLEANUP"
    ),
    "an attempt that unregistered finishes if it is silent before the store answers": (
        f"attempt RUNNING | UNREGISTERED | EXPIRE | {SAVED}"
        "-> state FINISHED ; posted ATTEMPT_FINISHED APP_ATTEMPT_REMOVED CLEANUP"
    ),
    "an attempt that unregistered finishes if the store answers before its container ends": (
        f"attempt RUNNING | UNREGISTERED | {SAVED} -> posted"
        "| CONTAINER_FINISHED -> state FINISHED"
        "; posted ATTEMPT_FINISHED APP_ATTEMPT_REMOVED CLEANUP FINISHED_CONTAINERS_PULLED_BY_AM"
    ),
    **{
        f"a master's {late} while a {event} is saved does not change the outcome": (
            f"attempt RUNNING | {event} | {late} | {SAVED} -> state {final}"
        )
        for event, final in (("KILL", "KILLED"), ("FAIL", "FAILED")) for late in ("CONTAINER_FINISHED", "EXPIRE")
    },
    **{
        f"an unmanaged master is not cleaned up after {event}": (
            f"attempt RUNNING unmanaged_am=True | {event} | {SAVED} -> state {final}"
            f"; posted ATTEMPT_{final} APP_ATTEMPT_REMOVED"
        )
        for event, final in (("KILL", "KILLED"), ("EXPIRE", "FAILED"), ("UNREGISTERED", "FINISHED"))
    },
    "containers of a failed attempt are kept on request": keeps(KEEP, "FAIL", True),
    "containers of a silent attempt are kept on request": keeps(KEEP, "EXPIRE", True),
    "containers are not kept without the request": keeps("", "FAIL", False),
    "containers of a killed attempt are not kept": keeps(KEEP, "KILL", False),
    "containers of an unmanaged master are not kept": keeps(f"{KEEP} unmanaged_am=True", "FAIL", False),
    "containers of the only attempt that is allowed are not kept": keeps(f"{KEEP} max_attempts=1", "FAIL", False),
}  # fmt: skip


class AttemptStage(MachineStage):
    def do_watch(self) -> None:
        context = self.workshop.context
        is_finishing = self.entity.state.name == "FINISHING"
        (context.am_finishing_monitor if is_finishing else context.am_liveliness_monitor).register(FIRST)

    def do_expire(self) -> None:
        """The monitor posts an event, which the attempt gets."""
        self.workshop.context.am_liveliness_monitor.expire_due()
        (expired,) = self.workshop.posted.events
        self.entity.handle(expired)


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_attempt(script: str) -> None:
    play(AttemptStage(am_expiry_interval_s=10), script)


@pytest.mark.parametrize("event", ["KILL", "FAIL", "UNREGISTERED"])
def test_address_of_the_master_is_forgotten_unless_it_finished(workshop: Workshop, event: str) -> None:
    attempt = workshop.attempt("LAUNCHED")
    send(attempt, "REGISTERED", host="node1", rpc_port=4711, tracking_url=URL)

    for each in (event, "ATTEMPT_UPDATE_SAVED", "CONTAINER_FINISHED"):
        send(attempt, each)

    has_finished = event == "UNREGISTERED"
    assert (attempt.host, attempt.rpc_port) == (("node1", 4711) if has_finished else ("", -1))
    assert attempt.tracking_url == ""


def test_usage_is_the_sum_over_containers(workshop: Workshop) -> None:
    attempt = workshop.attempt("RUNNING")

    attempt.add_usage(Resource(1024, 1500), 2000, preempted=False)
    attempt.add_usage(Resource(512, 500, gpus=2, gpu_milli=250), 4000, preempted=True)

    usage = attempt.usage
    assert (usage.memory_mb_seconds, usage.vcore_seconds) == (4096.0, 5.0)
    assert (usage.gpu_seconds, attempt.preempted.count) == (2.0, 1)


def test_containers_of_the_last_attempt_are_not_kept(workshop: Workshop) -> None:
    app = workshop.app("RUNNING", attempts=2, max_attempts=2, keep_containers_across_attempts=True)
    attempt = workshop._put(app.attempts[1], "RUNNING")

    for each in ("FAIL", "ATTEMPT_UPDATE_SAVED"):
        send(attempt, each)

    (removed,) = [event for event in workshop.posted.events if event.type.name == "APP_ATTEMPT_REMOVED"]
    assert (removed.entity, removed.keep_containers) == (SECOND, False)


# -- containers that end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["LAUNCHED", "RUNNING", "FINISHING", "FINAL_SAVING", "FINISHED", "FAILED", "KILLED"])
def test_end_of_another_container_is_kept_for_the_master(workshop: Workshop, state: str) -> None:
    attempt, status = workshop.attempt(state), ContainerStatus(TASK, 3)

    send(attempt, "CONTAINER_FINISHED", status=status, node=NODE)

    assert attempt.finished_containers == [(NODE, status)]


@pytest.mark.parametrize("state", ["LAUNCHED", "RUNNING", "FINISHING", "FINAL_SAVING"])
def test_nodes_forget_unpulled_containers_when_the_master_has_ended(workshop: Workshop, state: str) -> None:
    attempt = workshop.attempt(state)
    attempt.finished_containers = [(NODE, ContainerStatus(TASK, 0)), ("node2:45454", ContainerStatus("c2", 0))]

    send(attempt, "CONTAINER_FINISHED")

    pulled = [event for event in workshop.posted.events if event.type.name == "FINISHED_CONTAINERS_PULLED_BY_AM"]
    assert [(event.entity, event.about) for event in pulled] == [(NODE, (MASTER, TASK)), ("node2:45454", ("c2",))]
    assert attempt.finished_containers == []


def test_unpulled_containers_wait_for_the_next_master_if_containers_are_kept(workshop: Workshop) -> None:
    attempt = workshop.attempt("RUNNING", keep_containers_across_attempts=True)
    unfetched = [(NODE, ContainerStatus(TASK, 0))]
    attempt.finished_containers = list(unfetched)

    send(attempt, "CONTAINER_FINISHED")

    assert workshop.posted.events[0].about == (MASTER,)
    assert attempt.finished_containers == unfetched
