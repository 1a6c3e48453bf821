"""The contract of a time service, for the manual clock, the service with a thread, and one user's view of a service."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait

import pytest

from dispatcher import DispatcherError

from ...kit.scenarios import play
from .conftest import TIMEOUT_S
from .timer_services import KINDS, SERVICES, TimerStage


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def stage(request: pytest.FixtureRequest) -> Iterator[TimerStage]:
    """One of each kind. A test of what a view does not have names only the services."""
    stage: TimerStage = request.param()
    yield stage
    stage.close()


of_services = pytest.mark.parametrize("stage", SERVICES.values(), ids=SERVICES, indirect=True)

OF_ALL = {
    "a timer fires once, when its time has passed": (
        "timer a 10 | +9 -> fired ; states waits | +2 -> fired a:10 ; states done | +50 -> fired a:10"
    ),
    "timers fire in the order of their times, and of their registration": (
        "timer c 30 | timer a 10 | timer d 30 | timer b 20 | jump 40 -> fired a:10 b:20 c:30 d:30"
    ),
    "a timer of the past fires at once and waits for none of the future": (
        "timer far 1000 | timer a -5 | +1 -> fired a:-5 ; states waits done"
    ),
    "a cancelled timer does not fire": (
        "timer a 10 | timer b 10 | cancel a -> cancelled True ; states cancelled waits | +20 -> fired b:10"
    ),
    "a timer can be cancelled again, and not once it has fired": (
        "timer a 10 | timer b 10 | cancel a | cancel a | +11 | cancel b -> cancelled True True False"
    ),
    "a callback may register a timer": "timer a 10 timer:b:15 | +11 -> fired a:10 | +5 -> fired a:10 b:15",
    "a callback may cancel another timer": "timer a 10 cancel:b | timer b 15 | +20 -> fired a:10 ; cancelled True",
    "a task at a fixed rate runs for each period": (
        "rate a 10 5 | +9 -> fired | +13 -> fired a:10 a:15 a:20 ; states waits"
    ),
    "a task at a fixed rate makes up for late runs": "rate a 10 5 | jump 22 -> fired a:10 a:15 a:20",
    "a task with a fixed delay runs a period after its last run": "delay a 10 5 | +22 -> fired a:10 a:15 a:20",
    "an initial delay that has passed is none": "rate a -10 5 | +1 -> fired a:-10 a:-5 a:0",
    "a cancelled task runs no more": (
        "rate a 10 5 | delay b 10 5 | +12 | cancel a b -> cancelled True True | +20 -> fired a:10 b:10"
    ),
    "a task that cancels itself has run for the last time": (
        "rate a 10 5 cancel:a | delay b 10 5 cancel:b | +30 -> fired a:10 b:10 ; states cancelled cancelled"
    ),
    "a timer whose callback fails stops no other": (
        "timer a 10 fails | timer b 20 | +21 -> fired a:10 b:20 ; errors 10 | quiesce -> over True"
    ),
    "each error of a task is reported, and the task goes on": (
        "rate a 10 5 fails | +16 -> fired a:10 a:15 ; errors 10 15 ; states waits"
    ),
    "what waits when it is quiesced never runs": (
        "timer a 10 | rate b 10 5 | delay c 10 5 | quiesce -> over True | +30 -> fired"
    ),
    "once quiesced it takes tasks that never complete, and can be cancelled": (
        "quiesce | timer a 10 | rate b 10 5 | delay c 10 5 | +30 -> fired ; states waits waits waits "
        "| cancel a b c -> cancelled True True True ; states cancelled cancelled cancelled"
    ),
    "a callback may quiesce its service": "timer a 10 quiesce | timer b 20 | +30 -> fired a:10 ; over True",
}
OF_SERVICES = {
    "the error of a callback is its future's": "timer a 10 fails | +11 -> states LookupError",
    "its end by quiesce cancels what waits": (
        "timer a 10 | rate b 10 5 | delay c 10 5 | quiesce -> states cancelled cancelled cancelled ; over True"
    ),
    "its end by shutdown cancels what waits": (
        "timer a 10 | rate b 10 5 | delay c 10 5 | shutdown -> states cancelled cancelled cancelled ; over True"
    ),
    "a task that it took when quiesced does not complete with the shutdown": (
        "quiesce | timer a 10 | rate b 10 5 | delay c 10 5 | shutdown -> states waits waits waits ; over True"
    ),
    "without a task it is over only once it is shut down": "+5 -> over False | shutdown -> over True",
    "a callback may shut it down": "timer a 10 shutdown | timer b 20 | +30 -> fired a:10 ; over True",
}


@pytest.mark.parametrize("script", OF_ALL.values(), ids=OF_ALL)
def test_each_kind(stage: TimerStage, script: str) -> None:
    play(stage, script)


@of_services
@pytest.mark.parametrize("script", OF_SERVICES.values(), ids=OF_SERVICES)
def test_each_service(stage: TimerStage, script: str) -> None:
    play(stage, script)


@pytest.mark.parametrize("kind", ["timer a 10", "rate a 10 5", "delay a 10 5"])
def test_cancelling_a_future_ends_every_wait_for_it_and_notifies_once(stage: TimerStage, kind: str) -> None:
    """concurrent.futures.wait waited until the time of a cancelled timer came."""
    notified: list[object] = []
    play(stage, kind)
    future = stage.futures["a"]
    future.add_done_callback(notified.append)
    before = wait([future], timeout=0).done

    play(stage, "cancel a | cancel a")

    assert (before, wait([future], timeout=0).done, notified) == (set(), {future}, [future])


def test_an_object_that_a_callback_releases_may_cancel_another_timer(stage: TimerStage) -> None:
    """It was let go under the service's lock, which the other cancellation then waited for, for ever."""

    class Owner:
        def on_time(self, _: int) -> None: ...

        def __del__(self) -> None:
            play(stage, "cancel other")

    play(stage, "timer other 10")
    owner = Owner()
    future = stage.service.register_timer(5000, owner.on_time)
    del owner

    future.cancel()

    assert stage.futures["other"].cancelled()


def test_all_calls_of_quiesce_return_one_future(stage: TimerStage) -> None:
    assert stage.service.quiesce() is stage.service.quiesce()
    assert stage.service.quiesce().result(0) is None


@pytest.mark.parametrize("period_ms", [0, -5])
@pytest.mark.parametrize("kind", ["rate", "delay"])
def test_a_period_of_less_than_1_ms_is_refused(stage: TimerStage, kind: str, period_ms: int) -> None:
    with pytest.raises(ValueError, match=f"period_ms must be 1 or more, got {period_ms}"):
        play(stage, f"{kind} a 0 {period_ms}")


@of_services
@pytest.mark.parametrize("kind", ["timer a 10", "rate a 10 5", "delay a 10 5"])
def test_a_service_that_is_shut_down_refuses_tasks(stage: TimerStage, kind: str) -> None:
    play(stage, "shutdown")

    with pytest.raises(DispatcherError, match="the timer service is shut down"):
        play(stage, kind)


@of_services
def test_a_service_without_tasks_is_shut_down_at_once(stage: TimerStage) -> None:
    assert stage.service.shutdown(0)
    assert stage.service.shutdown_uninterruptible(TIMEOUT_S)
