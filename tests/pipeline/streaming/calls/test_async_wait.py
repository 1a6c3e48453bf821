"""The operator without retries: order, capacity, watermarks, timeouts, failures, the end of input, snapshots.

The behaviours follow Flink's AsyncWaitOperatorTest. A harness runs the operator on the test's thread.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from dispatcher.mailbox import MailboxExecutor
from pipeline.streaming import StreamRecord

from .harness import MODES, Element, HandFunction, Harness, Switch, fallback
from .stage import EITHER, LATE, ORDERED, UNORDERED, Options, Rows, check, scenarios


def full_disk(element: Element) -> None:
    raise OSError("disk full")


def raising_hook() -> HandFunction:
    def on_timeout(value: str) -> list[str]:
        raise KeyError(value)

    return HandFunction(on_timeout)


IN_100_MS: Options = {"timeout_ms": 100}

SCENARIOS: Rows = {
    "one mail emits all answers that came before it": (
        ORDERED, "take a b c | mailed ok a A | mailed ok b B | mailed ok c C -> out | one -> out A B C",
    ),
    # capacity
    "a full queue runs mail until there is room": (
        EITHER | {"capacity": 2, "idle": "mailed ok a A"},
        "take a b -> waits 0 | take c -> waits 1 ; out A ; calls a b c",
    ),
    "availability follows the room in the queue": (
        EITHER | {"capacity": 2},
        "take -> available True | take a -> available True | take b -> available False | ok a A -> available True",
    ),
    "an answer that cannot be emitted makes no room": (
        ORDERED | {"capacity": 2}, "take a b -> available False | ok b B -> available False | ok a A -> available True",
    ),
    "nothing is emitted while the output is unavailable": (
        EITHER | {"downstream": True}, "take a b | shut | ok a A | ok b B -> out | open -> out A B",
    ),
    # timeouts
    "a timeout of zero is none": ({"timeout_ms": 0}, "take a | +1000000 -> timers 0 | ok a A -> out A"),
    "a call without an answer in time fails the task": (
        EITHER | IN_100_MS, "take a | +99 | +1 -> raised a:AsyncTimeoutError:1",
    ),
    "the timeout hook may give results instead": (
        EITHER | IN_100_MS | {"function": lambda: HandFunction(lambda value: [f"no {value}", "sorry"])},
        "take a@3 | +100 -> stamped no_a@3 sorry@3 ; hooks a",
    ),
    "a timeout hook that raises gives its error as the record's": (
        IN_100_MS | {"function": raising_hook}, "take a | +100 -> raised a:KeyError:1",
    ),
    "each record has a deadline of its own": (
        LATE | UNORDERED | IN_100_MS,
        "take a | +40 | take b | +40 | take c | +20 -> out no_a | +39 -> out no_a | +1 -> out no_a no_b"
        " | +40 -> out no_a no_b no_c",
    ),
    "an answer before the timeout wins even if its mail has not run": (
        LATE | IN_100_MS, "take a | mailed ok a A | +100 -> out A ; hooks",
    ),
    # Flink decides it when the answer is given, on the thread that gives it.
    "an answer wins against a timeout whose mail runs first": (
        LATE | EITHER | IN_100_MS, "take a | clock 100 | mailed ok a A | mail -> out A ; hooks ; timed_out 0",
    ),
    "an answer after the timeout is ignored": (
        LATE | EITHER | IN_100_MS,
        "take a | +100 | late a -> out no_a | take b | ok b B -> out no_a B ; completed 2 ; in_flight 0",
    ),
    "a call that timed out is cancelled": (LATE | IN_100_MS, "take a | +100 -> cancelled a"),
    # Flink registers one for each record; here the deadlines come in the order of the records.
    "there is one timer at most and none when nothing is in flight": (
        UNORDERED | IN_100_MS,
        "take a | +10 | take b | +10 | take c | +10 -> timers 1 | ok a | ok b | ok c | +100 -> timers 0 | +1000"
        " -> hooks",
    ),
    "a timeout frees a blocked process_element": (
        LATE | IN_100_MS | {"capacity": 1, "idle": "clock 100"}, "take a | take b -> out no_a ; calls a b",
    ),
    # failures
    "an ordered error fails the task before its turn": (ORDERED, "take a b | busy b -> raised b:ValueError:1"),
    "an error takes no other answer along": (
        UNORDERED,
        "take a b c | mailed ok a A | mailed busy b | mailed ok c C | mail -> raised b:ValueError:1"
        " | mail -> out A C ; state",
    ),
    "an error ends the wait for room": (
        EITHER | {"capacity": 1, "idle": "mailed busy a"}, "take a | take b -> raised a:ValueError:1",
    ),
    "an error ends the wait for the end of input": (
        EITHER | {"idle": "mailed busy b"}, "take a b | end -> raised b:ValueError:1",
    ),
    "an error before the timeout is the one that counts": (
        IN_100_MS, "take a | mailed busy a | +100 -> raised a:ValueError:1 ; hooks",
    ),
    "an error of the output fails the task": ({"output": full_disk}, "take a | ok a A -> raised OSError"),
    # the end of input
    "timeouts fire while the end of input waits": (
        LATE | IN_100_MS | {"idle": "clock 100"}, "take a b | end -> out no_a no_b",
    ),
    # closing
    "close gives up the calls in flight": ({}, "take a b | close | mail -> out ; cancelled a b"),
    "an answer after close is ignored": ({}, "take a | mailed ok a A | close | mail -> out"),
    "an error after close is ignored": (IN_100_MS, "take a | mailed busy a | close | mail -> out"),
    "an error that its timeout has left to close is ignored": (
        IN_100_MS, "take a | clock 100 | mailed busy a | one | close | mail -> out",
    ),
    # After FLINK-16217: the state has it, so it will be replayed.
    "an answer to a quiesced mailbox is dropped": ({}, "take a | quiesce | mailed ok a A | mail -> out ; state a"),
    "close can be called twice": ({}, "take a | close | close -> opened 1 ; closed 1"),
    "close ends the timers": (IN_100_MS, "take a | close -> timers 0 | clock 1000 | mail -> hooks"),
    # snapshots
    "restored elements are processed before new input": (
        EITHER | {"state": "a@1 b@2 ~2 c@3"},
        "take d@4 -> calls a b c d | ok a A | ok b B | ok c C | ok d D -> stamped A@1 B@2 ~2 C@3 D@4",
    ),
    "restored elements have deadlines of their own": (LATE | IN_100_MS | {"state": "a"}, "+100 -> out no_a"),
}  # fmt: skip


@scenarios(SCENARIOS)
def test_scenario(options: Options, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(options, script, monkeypatch)


def record(value: Any, at: int | None = None) -> StreamRecord[Any]:
    return StreamRecord(value, at)


@pytest.mark.parametrize("with_availability", [False, True])
def test_many_completed_elements_are_emitted_with_other_mail_in_between(with_availability: bool) -> None:
    options: dict[str, Any] = {"output_availability": Switch()} if with_availability else {}
    with Harness(capacity=1000, **options) as harness:
        harness.process(*range(1000))
        for value in range(1, 1000):
            harness.call(value).complete(value)
        harness.settle()
        harness.run_mail()
        harness.complete(0, 0)
        harness.executor.execute(lambda: emitted_before.append(len(harness.output)), "other mail")

        emitted_before: list[int] = []
        harness.run_mail()

        assert harness.values() == list(range(1000))
        assert 0 < emitted_before[0] < 1000


def test_an_output_that_runs_mail_does_not_change_the_order() -> None:
    """As an operator downstream does that waits for room in its own queue."""
    emitted: list[Any] = []

    def output(element: Element) -> None:
        emitted.append(element)
        harness.run_mail()

    harness: Harness = Harness(output=output)
    with harness:
        harness.process("a", "b")
        harness.complete("a", 1, 2)
        harness.executor.execute(lambda: None, "what the output runs")
        harness.executor.execute(lambda: harness.complete("b", 3), "and then an answer")
        harness.run_mail()

    assert emitted == [record(1), record(2), record(3)]


def test_the_operator_yields_to_mail_of_its_own_priority_only() -> None:
    """Mail of an operator upstream has to wait: it would send elements here, in the middle of this one."""

    def idle() -> None:
        upstream_at_wait.append(bool(upstream))
        harness.complete("a", "A")

    upstream: list[str] = []
    upstream_at_wait: list[bool] = []
    harness: Harness = Harness(capacity=1, priority=1, idle=idle)
    with harness:
        harness.process("a")
        MailboxExecutor(harness.mailbox, 0).execute(lambda: upstream.append("ran"))
        harness.process("b")

    assert upstream_at_wait == [False]
    assert upstream == []


def test_an_output_that_becomes_unavailable_stops_the_emission_in_between() -> None:
    switch = Switch()
    emitted: list[Any] = []

    def output(element: Element) -> None:
        emitted.append(element)
        if len(emitted) == 1:
            switch.turn_off()

    with Harness(output=output, output_availability=switch) as harness:
        harness.process("a", "b", "c")
        harness.complete("a", "A")
        harness.complete("b", "B")
        harness.answer("c", "C")
        assert emitted == [record("A")]

        switch.turn_on()
        harness.run_mail()
        assert emitted == [record("A"), record("B"), record("C")]


def test_an_output_that_fails_while_it_is_waited_for_fails_the_task() -> None:
    """The task heard of it only where it waited itself; the operator took an error for room."""
    room: Future[None] = Future()
    with Harness(output_availability=lambda: room) as harness:
        harness.process("a")
        harness.answer("a", "A")

        room.set_exception(OSError("the output is gone"))

        with pytest.raises(OSError, match="is gone"):
            harness.run_mail()
        assert harness.values() == []


def test_an_output_that_becomes_available_after_close_is_ignored() -> None:
    switch = Switch()
    with Harness(output_availability=switch) as harness:
        harness.process("a")
        switch.turn_off()
        harness.answer("a", "A")
        harness.mailbox.close()

    switch.turn_on()

    assert harness.output == []


def test_each_of_many_records_that_are_not_answered_is_late() -> None:
    """Enough of them for what is answered to be swept out from between them."""
    function = fallback()
    with Harness(function, output_mode="unordered", timeout_ms=100, capacity=1000) as harness:
        for value in range(900):
            harness.process(value)
            if value % 100 == 99:
                harness.settle()
                for call in [call for call in function.calls if call.is_open() and call.value % 3]:
                    call.complete(call.value)
                harness.settle()
                harness.run_mail()
        harness.advance(100)

        late = [f"no {value}" for value in range(0, 900, 3)]
        assert harness.values()[600:] == late
        assert sorted(harness.values()[:600]) == [value for value in range(900) if value % 3]


def test_an_answer_to_a_closed_mailbox_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with Harness() as harness:
        harness.process("a", "b")
        harness.mailbox.close()

        harness.complete("a", "A")
        harness.fail("b", ValueError("nobody hears it"))

    assert harness.output == []
    assert [each for each in caplog.records if each.levelname in ("WARNING", "ERROR", "CRITICAL")] == []


def test_a_snapshot_does_not_change_with_the_operator() -> None:
    with Harness() as harness:
        harness.process("a")
        state = harness.operator.snapshot_state()

        harness.process("b")
        harness.answer("a", "A")

        assert state == [record("a")]


@MODES
def test_a_state_bigger_than_the_capacity_is_restored_with_mail_in_between(mode: str) -> None:
    def idle() -> None:
        harness.settle()
        snapshot = harness.operator.snapshot_state()
        assert [each for each in snapshot if each in state] == [each for each in state if each not in harness.output]
        call = next(call for call in harness.function.calls if call.is_open())
        harness.complete(call.value, call.value)

    state = [record(value) for value in range(7)]
    harness: Harness = Harness(output_mode=mode, capacity=2, state=state, idle=idle)
    with harness:
        assert len(harness.output) >= 5
        harness.process(7)
        harness.operator.end_input()

        assert harness.values() == list(range(8))


def test_an_operator_takes_elements_in_while_it_is_open_and_a_state_before() -> None:
    harness: Harness = Harness()
    with pytest.raises(RuntimeError, match="call open"):
        harness.process("a")
    harness.operator.close()
    assert harness.function.opened == harness.function.closed == 0
    with harness, pytest.raises(RuntimeError, match="initialize_state"):
        harness.operator.initialize_state([record("a")])
    for use in (lambda: harness.process("a"), lambda: harness.watermark(1), harness.operator.end_input):
        with pytest.raises(RuntimeError, match="has been closed"):
            use()

    assert harness.operator.snapshot_state() == []
