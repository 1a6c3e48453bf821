"""Rules C4 of the reference: the latency of mail, measured now and then."""

from __future__ import annotations

import pytest

from dispatcher.mailbox import (
    MailboxController,
    MailboxExecutor,
    MailboxMetricsController,
    MailboxProcessor,
    MailboxStateError,
    ManualClock,
    TaskMailbox,
)
from dispatcher.util.histogram import Histogram

from .conftest import do_nothing, on_another_thread

INTERVAL_MS = 1000
"""The default."""


class FakeNs:
    """The clock of the latencies: each mail takes as long as the test lets it."""

    def __init__(self) -> None:
        self.now_ns = 5

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ns() -> FakeNs:
    return FakeNs()


@pytest.fixture
def metrics(ns: FakeNs) -> MailboxMetricsController:
    return MailboxMetricsController(clock_ns=ns)


@pytest.fixture
def executor(mailbox: TaskMailbox) -> MailboxExecutor:
    return MailboxExecutor(mailbox, 0)


@pytest.fixture
def started(
    metrics: MailboxMetricsController, clock: ManualClock, executor: MailboxExecutor
) -> MailboxMetricsController:
    metrics.set_up_latency_measurement(clock, executor)
    metrics.start_latency_measurement()
    return metrics


def measurements(metrics: MailboxMetricsController) -> int:
    return sum(metrics.latency.counts)


# -- set up and start ------------------------------------------------------------------------------------------------


def test_it_is_set_up_once(metrics: MailboxMetricsController, clock: ManualClock, executor: MailboxExecutor) -> None:
    metrics.set_up_latency_measurement(clock, executor)

    with pytest.raises(MailboxStateError, match="set up already"):
        metrics.set_up_latency_measurement(ManualClock(), executor)

    assert metrics.is_waiting_for_start


def test_it_is_started_once(started: MailboxMetricsController, clock: ManualClock) -> None:
    with pytest.raises(MailboxStateError, match="started already"):
        started.start_latency_measurement()

    assert not started.is_waiting_for_start
    assert clock.pending_timers == 1


def test_it_is_started_only_after_it_was_set_up(metrics: MailboxMetricsController) -> None:
    with pytest.raises(MailboxStateError, match="not set up"):
        metrics.start_latency_measurement()

    assert not metrics.is_waiting_for_start


def test_setting_it_up_registers_no_timer(
    metrics: MailboxMetricsController, clock: ManualClock, executor: MailboxExecutor
) -> None:
    metrics.set_up_latency_measurement(clock, executor)

    assert clock.pending_timers == 0


# -- measuring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_ms", [INTERVAL_MS, 7])
def test_the_first_mail_is_sent_after_one_interval(
    metrics: MailboxMetricsController,
    mailbox: TaskMailbox,
    executor: MailboxExecutor,
    clock: ManualClock,
    interval_ms: int,
) -> None:
    metrics.interval_ms = interval_ms
    metrics.set_up_latency_measurement(clock, executor)
    metrics.start_latency_measurement()

    clock.advance(interval_ms - 1)
    before = mailbox.size()
    clock.advance(1)

    assert (before, mailbox.size()) == (0, 1)


def test_the_default_interval_is_a_second(metrics: MailboxMetricsController) -> None:
    assert metrics.interval_ms == INTERVAL_MS


def test_the_mail_is_a_normal_one_that_stands_in_line(
    started: MailboxMetricsController, mailbox: TaskMailbox, clock: ManualClock
) -> None:
    before = MailboxExecutor(mailbox, 0)
    before.execute(do_nothing, "before")
    clock.advance(INTERVAL_MS)

    drained = [each.description for each in mailbox.drain()]

    assert drained == ["before", "measure the mailbox latency"]


def test_the_time_from_the_sending_to_the_run_is_recorded(clock: ManualClock, executor: MailboxExecutor) -> None:
    histogram, ns = Histogram(), FakeNs()
    metrics = MailboxMetricsController(histogram, clock_ns=ns)
    metrics.set_up_latency_measurement(clock, executor)
    metrics.start_latency_measurement()
    clock.advance(INTERVAL_MS)
    ns.now_ns += 3_000

    executor.yield_()

    assert metrics.latency is histogram
    assert histogram.total_ns == 3_000
    assert histogram.counts[(3_000).bit_length()] == 1


def test_one_measurement_is_under_way_at_a_time(
    started: MailboxMetricsController, mailbox: TaskMailbox, clock: ManualClock
) -> None:
    clock.advance(10 * INTERVAL_MS)

    assert mailbox.size() == 1
    assert clock.pending_timers == 0
    assert measurements(started) == 0


def test_the_next_mail_is_sent_one_interval_after_the_last_was_run(
    started: MailboxMetricsController, mailbox: TaskMailbox, executor: MailboxExecutor, clock: ManualClock
) -> None:
    latency_ms = 300
    clock.advance(INTERVAL_MS)
    clock.advance(latency_ms)
    executor.yield_()

    clock.advance(INTERVAL_MS - 1)
    before = mailbox.size()
    clock.advance(1)

    assert (before, mailbox.size()) == (0, 1)
    assert clock.current_processing_time() == 2 * INTERVAL_MS + latency_ms


# -- ending ----------------------------------------------------------------------------------------------------------


def test_stopping_drops_the_timer(started: MailboxMetricsController, mailbox: TaskMailbox, clock: ManualClock) -> None:
    started.stop_latency_measurement()

    clock.advance(2 * INTERVAL_MS)

    assert clock.pending_timers == 0
    assert mailbox.size() == 0


def test_a_measurement_that_was_never_started_can_be_stopped(metrics: MailboxMetricsController) -> None:
    metrics.stop_latency_measurement()

    assert measurements(metrics) == 0


@pytest.mark.parametrize("end", ["quiesce", "close"])
def test_a_mailbox_that_takes_no_mail_ends_the_measurements(
    started: MailboxMetricsController, mailbox: TaskMailbox, clock: ManualClock, end: str
) -> None:
    getattr(mailbox, end)()

    clock.advance(3 * INTERVAL_MS)

    assert clock.pending_timers == 0
    assert measurements(started) == 0


def test_a_mailbox_that_closes_with_a_measurement_in_it_ends_the_measurements(
    started: MailboxMetricsController, mailbox: TaskMailbox, clock: ManualClock
) -> None:
    clock.advance(INTERVAL_MS)

    left = mailbox.close()

    assert len(left) == 1
    assert clock.pending_timers == 0
    assert measurements(started) == 0


# -- in a processor --------------------------------------------------------------------------------------------------


def suspend(controller: MailboxController) -> None:
    controller.suspend_default_action()


@pytest.fixture
def processor(metrics: MailboxMetricsController, clock: ManualClock) -> MailboxProcessor:
    """One whose measurements are set up, with all its mail in the main executor."""
    processor = MailboxProcessor(suspend, metrics_controller=metrics)
    metrics.set_up_latency_measurement(clock, processor.main_mailbox_executor)
    return processor


def test_a_processor_measures_nothing_unless_the_measurement_is_set_up() -> None:
    processor = MailboxProcessor(suspend)
    processor.main_mailbox_executor.execute(do_nothing)

    processor.run_mailbox_step()

    assert not processor.metrics_controller.is_waiting_for_start
    assert measurements(processor.metrics_controller) == 0


def test_the_first_mail_starts_the_measurements(
    processor: MailboxProcessor, metrics: MailboxMetricsController, clock: ManualClock
) -> None:
    processor.run_mailbox_step()
    before = metrics.is_waiting_for_start
    processor.main_mailbox_executor.execute(do_nothing)

    processor.run_mailbox_step()

    assert before
    assert not metrics.is_waiting_for_start
    assert clock.pending_timers == 1


def test_the_first_mail_does_not_start_measurements_a_second_time(
    processor: MailboxProcessor, metrics: MailboxMetricsController, clock: ManualClock
) -> None:
    metrics.start_latency_measurement()
    processor.main_mailbox_executor.execute(do_nothing)

    processor.run_mailbox_step()

    assert clock.pending_timers == 1


@pytest.mark.parametrize("stop", [MailboxProcessor.suspend, MailboxProcessor.all_actions_completed])
def test_a_mail_that_stops_the_loop_does_not_start_the_measurements(
    processor: MailboxProcessor, metrics: MailboxMetricsController, stop: object
) -> None:
    on_another_thread(lambda: stop(processor))  # type: ignore[operator]

    processor.run_mailbox_loop()

    assert processor.mails_run == 1
    assert metrics.is_waiting_for_start


def test_after_a_suspended_run_the_first_mail_of_the_next_one_starts_the_measurements(
    processor: MailboxProcessor, metrics: MailboxMetricsController
) -> None:
    processor.suspend()
    processor.run_mailbox_loop()
    processor.main_mailbox_executor.execute(do_nothing)

    processor.run_mailbox_step()

    assert not metrics.is_waiting_for_start


def test_a_mail_that_fails_does_not_start_the_measurements_and_counts(
    processor: MailboxProcessor, metrics: MailboxMetricsController
) -> None:
    processor.main_mailbox_executor.execute(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        processor.run_mailbox_step()

    assert processor.mails_run == 1
    assert metrics.is_waiting_for_start


def test_a_processor_measures_its_own_mail(
    processor: MailboxProcessor, metrics: MailboxMetricsController, clock: ManualClock, ns: FakeNs
) -> None:
    metrics.start_latency_measurement()
    for latency_ns in (10, 20, 30):
        clock.advance(INTERVAL_MS)
        ns.now_ns += latency_ns
        processor.run_single_mailbox_loop()

    assert measurements(metrics) == 3
    assert metrics.latency.total_ns == 60
    assert processor.mails_run == 3
