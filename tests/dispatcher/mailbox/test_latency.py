"""The latency of mail, measured now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from dispatcher.mailbox import (
    MailboxController,
    MailboxMetricsController,
    MailboxProcessor,
    MailboxStateError,
    ManualClock,
)

from ...kit.scenarios import play
from .conftest import do_nothing, on_another_thread


def suspend(controller: MailboxController) -> None:
    controller.suspend_default_action()


class LatencyStage:
    """A processor of the test's thread that measures the latency of its mail: as long as `ns` says."""

    def __init__(self) -> None:
        self.clock, self.now_ns = ManualClock(), 5
        self.histogram = MailboxMetricsController().latency
        self.metrics = MailboxMetricsController(self.histogram, clock_ns=lambda: self.now_ns)
        self.processor = MailboxProcessor(suspend, metrics_controller=self.metrics)

    def play(self, verb: str, *words: str) -> None:
        if verb.startswith("+"):
            self.clock.advance(int(verb[1:]))
            return
        executor, processor = self.processor.main_mailbox_executor, self.processor
        if verb == "ns":
            self.now_ns += int(words[0])
        elif verb == "interval":
            self.metrics.interval_ms = int(words[0])
        elif verb == "step_that_fails":
            with pytest.raises(ZeroDivisionError):
                processor.run_mailbox_step()
        else:
            calls: dict[str, Callable[[], object]] = {
                "set_up": lambda: self.metrics.set_up_latency_measurement(self.clock, executor),
                "start": self.metrics.start_latency_measurement,
                "stop": self.metrics.stop_latency_measurement,
                "send": lambda: executor.execute(do_nothing, "sent"),
                "send_failing": lambda: executor.execute(lambda: 1 / 0),
                "run": executor.yield_,
                "step": processor.run_mailbox_step,
                "single_loop": processor.run_single_mailbox_loop,
                "loop": processor.run_mailbox_loop,
                "suspend": lambda: on_another_thread(processor.suspend),
                "complete": lambda: on_another_thread(processor.all_actions_completed),
                "quiesce": processor.mailbox.quiesce,
                "close": processor.mailbox.close,
            }
            calls[verb]()

    def look(self, what: str) -> Iterable[object]:
        match what:
            case "mails":
                return [self.processor.mailbox.size()]
            case "mails_run":
                return [self.processor.mails_run]
            case "timers":
                return [self.clock.pending_timers]
            case "waits_for_start":
                return [self.metrics.is_waiting_for_start]
            case "measured":
                return [sum(self.histogram.counts)]
            case "total_ns":
                return [self.histogram.total_ns]
        return [each.description for each in self.processor.mailbox.drain()]


SCENARIOS = {
    "set up, it waits for its start without a timer": "set_up -> waits_for_start True ; timers 0",
    "started, it sends the first mail after one interval": (
        "set_up | start -> waits_for_start False ; timers 1 | +999 -> mails 0 | +1 -> mails 1"
    ),
    "the interval can be set": "interval 7 | set_up | start | +6 -> mails 0 | +1 -> mails 1",
    "its mail stands in line": "set_up | start | send | +1000 -> drained sent measure_the_mailbox_latency",
    "the time from the sending to the run is recorded": (
        "set_up | start | +1000 | ns 3000 | run -> measured 1 ; total_ns 3000"
    ),
    "one measurement is in flight at a time": "set_up | start | +10000 -> mails 1 ; timers 0 ; measured 0",
    "the next mail is sent one interval after the last was run": (
        "set_up | start | +1000 | +300 | run | +999 -> mails 0 | +1 -> mails 1"
    ),
    "stopping drops the timer": "set_up | start | stop | +2000 -> timers 0 ; mails 0",
    "what was never started can be stopped": "stop -> measured 0",
    "a mailbox that takes no mail ends the measurements": (
        "set_up | start | quiesce | +3000 -> timers 0 ; measured 0 | close -> timers 0"
    ),
    "a mailbox that closes ends the measurements": "set_up | start | close | +3000 -> timers 0 ; measured 0",
    "a mailbox that closes with a measurement in it ends the measurements": (
        "set_up | start | +1000 -> mails 1 | close -> timers 0 ; measured 0"
    ),
    "a processor measures nothing unless that is set up": "send | step -> waits_for_start False ; timers 0",
    "the first mail of a processor starts the measurements": (
        "set_up | step -> waits_for_start True | send | step -> waits_for_start False ; timers 1"
    ),
    "it does not start them a second time": "set_up | start | send | step -> timers 1",
    "a mail that suspends the loop does not start them, and the next one does": (
        "set_up | suspend | loop -> mails_run 1 ; waits_for_start True | send | step -> waits_for_start False"
    ),
    "a mail that completes the loop does not start them": (
        "set_up | complete | loop -> mails_run 1 ; waits_for_start True"
    ),
    "a mail that fails does not start them, and counts": (
        "set_up | send_failing | step_that_fails -> mails_run 1 ; waits_for_start True"
    ),
    "a processor measures its own mail": (
        "set_up | start | +1000 | ns 10 | single_loop | +1000 | ns 20 | single_loop | +1000 | ns 30 | single_loop "
        "-> measured 3 ; total_ns 60 ; mails_run 3"
    ),
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_scenario(script: str) -> None:
    play(LatencyStage(), script)


@pytest.mark.parametrize(
    ("script", "message"),
    [("set_up | set_up", "set up already"), ("set_up | start | start", "started already"), ("start", "not set up")],
)
def test_it_is_set_up_and_then_started_once(script: str, message: str) -> None:
    with pytest.raises(MailboxStateError, match=message):
        play(LatencyStage(), script)
