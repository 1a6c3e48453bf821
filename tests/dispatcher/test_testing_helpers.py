"""`dispatcher.testing` and the pytest fixtures, which users' own tests rely on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dispatcher import DispatcherConfig
from dispatcher.testing import DrainDispatcher

from ..kit import TIMEOUT_S, Gate, Numbered, Work
from ..kit.dispatchers import hold

pytestmark = pytest.mark.long


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


@pytest.mark.parametrize("what", ["on <Numbered Work.DO>", "on a mail"])
def test_a_wait_for_a_thread_that_does_not_wait_says_where_it_is(gate: Gate, what: str) -> None:
    with DrainDispatcher(name="mine") as dispatcher:
        dispatcher.register(Work, gate)
        if what == "on a mail":
            dispatcher.mailbox_executor.execute(lambda: gate.handle(None))
        else:
            dispatcher.post(Numbered())
        assert gate.entered.wait(TIMEOUT_S)

        with pytest.raises(AssertionError) as caught:
            dispatcher.wait_for_event_thread_to_wait(0.01)
        gate.opened.set()

    assert f"mine: the handler thread does not wait, it is at work {what}" in str(caught.value)
    assert "in handle" in str(caught.value)


def test_a_wait_for_a_thread_that_never_started_fails() -> None:
    with pytest.raises(AssertionError, match="does not wait"):
        DrainDispatcher().wait_for_event_thread_to_wait(0.01)


def test_in_a_users_project_the_fixtures_are_found_and_the_dispatcher_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        textwrap.dedent("""
        from enum import Enum

        from dispatcher import Event, ServiceState

        Work = Enum("Work", "DO")
        used = []

        def test_one(drain_dispatcher, inline_dispatcher, manual_clock):
            used.append(drain_dispatcher)
            assert drain_dispatcher.state is ServiceState.STARTED
            inline_dispatcher.register(Work, used.append)
            inline_dispatcher.post_after(0.005, event := Event(Work.DO))
            assert event not in used
            manual_clock.advance(5)
            assert event in used

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
