"""What a suspension's timer counts as idle, and the timer that adds it up.

When the processor marks its start and its end is in test_processor_model.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dispatcher.mailbox import MailboxController, MailboxProcessor
from dispatcher.mailbox.processor import IdleTimer

from .conftest import Action, on_another_thread


class LoggingTimer(IdleTimer):
    """An IdleTimer that writes its marks among what else happens."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def mark_start(self) -> None:
        self.log.append("timer starts")

    def mark_end(self) -> None:
        self.log.append("timer ends")


class Clock:
    """A clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, ns: int) -> None:
        self.now_ns += ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timer(action: Action) -> LoggingTimer:
    return LoggingTimer(action.log)


def suspend_with(timer: LoggingTimer, action: Action) -> Callable[[MailboxController], None]:
    """A turn that suspends itself and, like the caller it stands for, has started the timer before."""

    def turn(controller: MailboxController) -> None:
        timer.mark_start()
        action.suspensions.append(controller.suspend_default_action(timer))

    return turn


def suspend(processor: MailboxProcessor, action: Action, timer: LoggingTimer) -> None:
    """Have the default action suspend itself with the timer, and forget what that logged."""
    action.turns = [suspend_with(timer, action)]
    processor.run_mailbox_step()
    action.log.clear()


# -- what the processor marks ----------------------------------------------------------------------------------------


def test_a_suspension_without_a_timer_marks_nothing(
    processor: MailboxProcessor, action: Action, timer: LoggingTimer
) -> None:
    suspend(processor, action, timer)
    action.suspensions[0].resume()
    processor.run_mailbox_step()
    action.mail(processor, "a")

    processor.run_mailbox_step()

    assert action.log == ["action", "a"]


# -- IdleTimer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "total_ns"),
    [
        pytest.param("start 3 end 100 start 4 end 100", 7, id="it adds its periods up"),
        pytest.param("start 3 end start 2 2", 7, id="a period that has not ended counts so far"),
        pytest.param("start 3 end 3 end", 3, id="a second end counts nothing"),
    ],
)
def test_an_idle_timer_is_read_by_another_thread(clock: Clock, script: str, total_ns: int) -> None:
    timer = IdleTimer(clock)
    acts = {"start": timer.mark_start, "end": timer.mark_end}

    for word in script.split():
        acts.get(word, lambda word=word: clock.advance(int(word)))()

    assert on_another_thread(lambda: timer.total_ns) == total_ns
