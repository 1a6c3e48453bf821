"""A task reads, feeds a chain of operators while there is room, and comes to an end in order, whatever ends it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher import DispatcherError
from dispatcher.mailbox import MailOptions, ManualClock
from pipeline.streaming import IterableInput, QueueInput, StreamRecord, StreamTask

from ....kit import until
from ....kit.scenarios import play
from .stage import TaskStage
from .task_fakes import (
    Element,
    GatedOutput,
    HoldingOperator,
    InputStatus,
    LoggedOperator,
    OperatorContext,
    ScriptedInput,
    doing,
    mailbox_turn,
    output_of,
    running,
    values,
    wait_for,
)

# ---------------------------------------------------------------------------------------------------------- life


SCENARIOS = {
    "all input goes through the chain to the output": ("a b", "run 1 ~5 2@7 -> out 1 ~5 2@7 ; state FINISHED"),
    "operators open from the last and end and close from the first": (
        "a b", "run -> log b_open a_open a_end_input b_end_input a_close b_close",
    ),
    "elements emitted at an operator's end reach the operators behind it before they end": (
        "hold b", "run 1 -> log b_open hold_open hold_end_input out_1 b_end_input hold_close b_close",
    ),
    "a task cancelled before its start does nothing but close": (
        "a", "cancelled 1 -> raised TaskCancelledError ; log ; read 0 ; closed True ; state CANCELED",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("chain", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_scenario(chain: str, script: str) -> None:
    play(TaskStage(chain), script)


class Continuation(NamedTuple):
    """A mail that posts itself again."""

    position: int
    """Of the operator that sends it."""
    behind: int
    """By how many operators the one lies behind it with whose executor it is sent."""
    times: int
    kinds: tuple[MailOptions, ...]
    """Of its runs, in turns."""
    begins: Literal["timer", "open", "end_input"]


_KINDS = st.lists(st.sampled_from([MailOptions.DEFAULT, MailOptions.DEFERRABLE]), min_size=1, max_size=3).map(tuple)
_BEGINS: st.SearchStrategy[Any] = st.sampled_from(["timer", "open", "end_input"])
_CONTINUATIONS = st.lists(
    st.builds(Continuation, st.integers(0, 3), st.integers(0, 3), st.integers(1, 5), _KINDS, _BEGINS), max_size=8
)


@settings(deadline=None)
@given(_CONTINUATIONS)
def test_mail_that_posts_itself_again_runs_to_its_end_before_the_next_operator_ends(plan: list[Continuation]) -> None:
    """A continuation of deferrable mail outlived the chain, and failed the task (FLINK-39481)."""
    log: list[Any] = []
    contexts: dict[int, OperatorContext] = {}
    clock = ManualClock()

    def send(one: Continuation, run: int) -> None:
        def mail() -> None:
            log.append(one)
            if run + 1 < one.times:
                send(one, run + 1)

        contexts[min(3, one.position + one.behind)].mailbox_executor.execute(
            mail, options=one.kinds[run % len(one.kinds)]
        )

    class Continuing(LoggedOperator):
        def __init__(self, context: OperatorContext) -> None:
            super().__init__(context)
            self.position = 3 - len(contexts)  # they are made from the last on
            contexts[self.position] = context

        def begin(self, at: str) -> None:
            for one in plan:
                if (one.position, one.begins) == (self.position, at):
                    send(one, 0)

        def open(self) -> None:
            self.context.processing_time_service.register_timer(5, lambda _: self.begin("timer"))
            if self.position == 0:  # the last one that is opened
                clock.advance(5)
            self.begin("open")

        def end_input(self) -> None:
            log.append(self.position)
            self.begin("end_input")

    StreamTask(IterableInput([]), [Continuing] * 4, lambda _: None, processing_time_service=clock).run()

    for one in plan:
        assert log.count(one) == sum(other.times for other in plan if other == one)
        following = one.position + one.behind + 1
        if following < 4:
            assert one not in log[log.index(following) :]


def test_timers_that_an_operator_sets_at_its_end_never_fire() -> None:
    clock = ManualClock()
    fired: list[int] = []

    class Timed(LoggedOperator):
        def end_input(self) -> None:
            clock.advance(10)
            self.context.processing_time_service.register_timer(10, fired.append)
            self.context.mailbox_executor.execute(lambda: clock.advance(10))

        def open(self) -> None:
            self.context.processing_time_service.register_timer(5, fired.append)

    StreamTask(IterableInput([]), Timed, lambda _: None, processing_time_service=clock).run()

    assert fired == [5]


def test_mail_that_is_there_at_the_end_runs_before_anything_is_closed() -> None:
    log: list[Any] = []

    output_of(
        IterableInput([]),
        doing(log, end_input=lambda op: op.context.mailbox_executor.execute(lambda: op.note("mail"))),
    )

    assert log == ["op open", "op mail", "op close"]


def test_a_task_runs_once() -> None:
    task = StreamTask(IterableInput([]), [], lambda _: None)
    task.run()

    with pytest.raises(DispatcherError, match="is FINISHED; a task runs once"):
        task.run()


def test_a_periodic_checkpoint_needs_a_storage() -> None:
    with pytest.raises(ValueError, match="checkpoint_interval_ms is 5"):
        StreamTask(IterableInput([]), [], lambda _: None, checkpoint_interval_ms=5)


# ---------------------------------------------------------------------------------------------------------- input


def test_an_input_is_not_read_while_it_has_nothing() -> None:
    calls: list[int] = []
    nothing = ScriptedInput(lambda: calls.append(1) or InputStatus.NOTHING_AVAILABLE, 7)
    nothing.future = Future()
    output: list[Element] = []
    with running(StreamTask(nothing, [], output.append)) as run:
        until(lambda: run.task.idle_timer.total_ns > 0, "the suspension")
        for _ in range(5):
            mailbox_turn(run.task)
        assert calls == [1]
        nothing.future.set_result(None)
        run.result()

    assert values(output) == [7]


def test_an_input_that_is_available_again_at_once_is_read_on() -> None:
    """The input had nothing, and something came before the task could wait for it."""
    output: list[Element] = []
    task = StreamTask(ScriptedInput(lambda: InputStatus.NOTHING_AVAILABLE, 7), [], output.append)

    task.run()

    assert values(output) == [7]
    total_ns = task.idle_timer.total_ns
    assert task.idle_timer.total_ns == total_ns, "the task is no longer idle"


def test_an_error_of_the_inputs_future_fails_the_task() -> None:
    broken = ScriptedInput(lambda: InputStatus.NOTHING_AVAILABLE)
    broken.future = Future()
    broken.future.set_exception(ConnectionError("reset"))

    with pytest.raises(ConnectionError, match="reset"):
        StreamTask(broken, [], lambda _: None).run()


def test_mail_runs_between_any_two_records() -> None:
    log: list[Any] = []

    def mail(operator: LoggedOperator, record: StreamRecord[Any]) -> None:
        log.append(record.value)
        operator.context.mailbox_executor.execute(lambda: log.append("mail"))

    output_of(IterableInput([1, 2, 3]), doing(process_element=mail))

    assert log == [1, "mail", 2, "mail", 3, "mail"]


# ---------------------------------------------------------------------------------------------------------- room


def test_an_operator_without_availability_has_the_room_of_the_next_one() -> None:
    class Releasing(HoldingOperator):
        def available_future(self) -> Future[None] | None:
            future = super().available_future()
            self.context.mailbox_executor.execute(self.release)
            return future

    chain = [LoggedOperator, lambda ctx: Releasing(ctx, capacity=1)]

    assert values(output_of(IterableInput(range(5)), chain)) == [0, 1, 2, 3, 4]


def test_nothing_is_read_while_the_output_has_no_room() -> None:
    output, queue = GatedOutput(), QueueInput[int]()
    output.shut()
    queue.put(1)
    queue.end()
    with running(StreamTask(queue, HoldingOperator, output)) as run:
        wait_for(output.asked, "the question for room")
        mailbox_turn(run.task)
        assert queue._queue
        mailbox_turn(run.task, output.open_again)
        run.result()

    assert values(output.elements) == [1]
    assert output.is_closed


def test_an_operator_sees_whether_the_output_has_room() -> None:
    opened: list[LoggedOperator] = []
    noted = doing(open=lambda op: opened.append(op))
    output = GatedOutput()
    StreamTask(IterableInput([]), [noted, lambda ctx: HoldingOperator(ctx, 1), noted], output).run()

    last, first = (operator.context for operator in opened)
    assert (first.position, last.position) == (0, 2)
    assert [ctx.mailbox_executor.priority for ctx in (first, last)] == [0, 2]
    assert last.output_availability is not None
    assert last.output_availability() is None
    output.shut()
    assert last.output_availability() is output.gate
    assert first.output_availability is not None
    assert first.output_availability() is None
    output_of(IterableInput([]), noted)  # to an output that cannot fill up
    assert opened[-1].context.output_availability is None


def test_a_yielding_operator_runs_only_mail_of_operators_behind_it() -> None:
    log: list[Any] = []
    contexts: dict[int, OperatorContext] = {}

    class Yielding(LoggedOperator):
        def __init__(self, context: OperatorContext) -> None:
            super().__init__(context)
            contexts[context.position] = context

        def process_element(self, record: StreamRecord[Any]) -> None:
            if self.context.position == 1:
                for position in (0, 1, 2):
                    contexts[position].mailbox_executor.execute(lambda p=position: log.append(p))
                while self.context.mailbox_executor.try_yield():
                    pass
                log.append("yielded")
            self.context.output(record)

    StreamTask(IterableInput([1]), [Yielding, Yielding, Yielding], lambda _: log.append("out")).run()

    assert log == [1, 2, "yielded", "out", 0]


# ---------------------------------------------------------------------------------------------------------- timers


def test_timers_fire_on_the_mailbox_thread_as_mail() -> None:
    clock = ManualClock()
    fired: list[Any] = []

    def fire(due_ms: int) -> None:
        fired.append((due_ms, threading.current_thread()))

    queue: QueueInput[int] = QueueInput()
    timed = doing(open=lambda op: op.context.processing_time_service.register_timer(5, fire))
    with running(StreamTask(queue, timed, lambda _: None, processing_time_service=clock)) as run:
        mailbox_turn(run.task)
        clock.advance(5)
        mailbox_turn(run.task)
        queue.end()
        run.result()

    assert fired == [(5, run.thread)]
    assert not clock.is_terminated()


def test_an_error_of_a_timer_fails_the_task() -> None:
    def fail(_: int) -> None:
        raise ValueError("in a timer")

    timed = doing(open=lambda op: op.context.processing_time_service.register_timer(0, fail))

    with pytest.raises(ValueError, match="in a timer"):
        output_of(QueueInput[int](), timed)
