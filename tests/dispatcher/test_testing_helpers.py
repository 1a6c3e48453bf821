"""`dispatcher.testing` and the pytest fixtures, which users' own tests rely on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from dispatcher import DispatcherConfig
from dispatcher.testing import DrainDispatcher, InlineDispatcher, ManualClock

from ..kit import TIMEOUT_S, Gate, Numbered, Work
from ..kit.dispatchers import hold

pytestmark = pytest.mark.long


def test_await_drained_returns_once_everything_is_handled() -> None:
    got: list[int] = []
    with DrainDispatcher() as dispatcher:
        dispatcher.register(Work, lambda event: got.append(event.number))
        for number in range(100):
            dispatcher.post(Numbered(number))

        assert dispatcher.await_drained()

        assert got == list(range(100))


@pytest.mark.parametrize("measure_times", ["all", "sampled", "none"])
def test_an_await_drained_that_fails_names_what_is_in_hand_and_queued(gate: Gate, measure_times: str) -> None:
    with DrainDispatcher(DispatcherConfig(measure_times=measure_times), name="mine") as dispatcher:
        dispatcher.register(Work, gate)
        hold(dispatcher, gate)
        for _ in range(2):
            dispatcher.post(Numbered(type=Work.MORE))

        with pytest.raises(
            AssertionError, match=r"^mine is not drained after 0.01 s: in hand <Numbered Work.DO>, queued .*MORE.*: 2"
        ):
            dispatcher.await_drained(0.01)
        gate.opened.set()


def test_a_wait_for_the_thread_to_wait_returns_once_it_does() -> None:
    with DrainDispatcher() as dispatcher:
        dispatcher.register(Work, lambda _: None)
        dispatcher.post(Numbered())

        dispatcher.wait_for_event_thread_to_wait(TIMEOUT_S)

        assert dispatcher.is_drained()
        assert dispatcher._mailbox.parking.is_waiting()


def test_a_wait_for_a_thread_that_does_not_wait_says_where_it_is(gate: Gate) -> None:
    with DrainDispatcher(name="mine") as dispatcher:
        dispatcher.register(Work, gate)
        hold(dispatcher, gate)

        with pytest.raises(AssertionError) as caught:
            dispatcher.wait_for_event_thread_to_wait(0.01)
        gate.opened.set()

    assert "mine: the handler thread does not wait, it is at work on <Numbered Work.DO>" in str(caught.value)
    assert "in handle" in str(caught.value)


def test_a_wait_for_a_thread_in_a_mail_says_so() -> None:
    entered, opened = threading.Event(), threading.Event()

    def long_mail() -> None:
        entered.set()
        assert opened.wait(TIMEOUT_S)

    with DrainDispatcher() as dispatcher:
        dispatcher.mailbox_executor.execute(long_mail)
        assert entered.wait(TIMEOUT_S)

        with pytest.raises(AssertionError, match=r"(?s)at work on a mail.*in long_mail"):
            dispatcher.wait_for_event_thread_to_wait(0.01)
        opened.set()


def test_a_wait_for_a_thread_that_never_started_fails() -> None:
    with pytest.raises(AssertionError, match="does not wait"):
        DrainDispatcher().wait_for_event_thread_to_wait(0.01)


def test_the_fixture_of_a_drain_dispatcher_is_started(drain_dispatcher: DrainDispatcher) -> None:
    got: list[Any] = []
    drain_dispatcher.register(Work, got.append)

    assert drain_dispatcher.post(Numbered())
    assert drain_dispatcher.await_drained()
    assert len(got) == 1


def test_the_fixture_of_an_inline_dispatcher_handles_at_once(inline_dispatcher: InlineDispatcher) -> None:
    got: list[Any] = []
    inline_dispatcher.register(Work, got.append)

    inline_dispatcher.post(Numbered())

    assert len(got) == 1


def test_the_fixture_of_a_manual_clock_stands_still(manual_clock: ManualClock) -> None:
    fired: list[int] = []
    manual_clock.register_timer(5, fired.append)

    before = list(fired)
    manual_clock.advance(5)

    assert (before, fired) == ([], [5])


def test_in_a_users_project_the_fixtures_are_found_and_the_dispatcher_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        textwrap.dedent("""
        from dispatcher import ServiceState

        used = []

        def test_one(drain_dispatcher, inline_dispatcher, manual_clock):
            used.append(drain_dispatcher)
            assert drain_dispatcher.state is ServiceState.STARTED

        def test_two(drain_dispatcher):
            assert used[0] is not drain_dispatcher
            assert used[0].state is ServiceState.STOPPED
        """)
    )

    without = [f"-pno:{name}" for name in ("cacheprovider", "xdist", "timeout", "anyio", "hypothesispytest")]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *without, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )

    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr


def test_the_plugin_loads_no_dispatcher_until_a_fixture_is_asked_for() -> None:
    code = (
        "import sys, dispatcher.testing.pytest_plugin\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('dispatcher', 'pydantic')))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == str(
        [
            "dispatcher",
            "dispatcher.testing",
            "dispatcher.testing.pytest_plugin",
            "dispatcher.util",
            "dispatcher.util.lazy",
        ]
    )
