"""Rules C1 of the reference: an action executor is put around each run of a mail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.mailbox import MIN_PRIORITY, Mail, MailboxController, MailboxExecutor, MailboxProcessor, TaskMailbox

from .conftest import do_nothing


class Wrapper:
    """An action executor that notes when it runs what."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def __call__(self, action: Callable[[], Any]) -> None:
        self.log.append("before")
        try:
            action()
        finally:
            self.log.append("after")


@pytest.fixture
def wrapper() -> Wrapper:
    return Wrapper()


@pytest.fixture
def processor(wrapper: Wrapper) -> MailboxProcessor:
    def turn(controller: MailboxController) -> None:
        wrapper.log.append("action")
        controller.all_actions_completed()

    return MailboxProcessor(turn, action_executor=wrapper)


def test_the_runnable_s_error_goes_through_the_executor(wrapper: Wrapper) -> None:
    with pytest.raises(ZeroDivisionError):
        Mail(lambda: 1 / 0, 0, action_executor=wrapper).run()

    assert wrapper.log == ["before", "after"]


def test_the_description_is_of_the_runnable_and_not_of_the_executor(wrapper: Wrapper) -> None:
    assert Mail(do_nothing, 0, action_executor=wrapper).description == repr(do_nothing)


@pytest.mark.parametrize("main", [True, False])
def test_a_processors_executor_is_around_each_mail_and_not_around_the_default_action(
    processor: MailboxProcessor, wrapper: Wrapper, main: bool
) -> None:
    executor = processor.main_mailbox_executor if main else processor.mailbox_executor(2)
    executor.execute(lambda: wrapper.log.append("a"))
    future = executor.submit(lambda: wrapper.log.append("b"))

    processor.run_mailbox_loop()

    assert wrapper.log == ["before", "a", "after", "before", "b", "after", "action"]
    assert future.done()


def test_control_mail_goes_without_the_executor(processor: MailboxProcessor, wrapper: Wrapper) -> None:
    processor.suspend()

    processor.run_mailbox_loop()

    assert wrapper.log == []


@pytest.mark.parametrize(
    "run",
    [
        lambda processor: processor.mailbox_executor(0).yield_(),
        lambda processor: processor.mailbox_executor(0).try_yield(),
        lambda processor: processor.run_mailbox_step(),
        lambda processor: processor.drain(),
    ],
)
def test_mail_runs_in_its_executor_whatever_runs_it(
    processor: MailboxProcessor, wrapper: Wrapper, run: Callable[[MailboxProcessor], Any]
) -> None:
    processor.mailbox_executor(0).execute(lambda: wrapper.log.append("a"))

    run(processor)

    assert wrapper.log == ["before", "a", "after"]


def test_mail_with_an_executor_still_cancels_its_future(mailbox: TaskMailbox, wrapper: Wrapper) -> None:
    future = MailboxExecutor(mailbox, 0, action_executor=wrapper).submit(lambda: wrapper.log.append("ran"))
    taken = mailbox.take(MIN_PRIORITY)

    cancelled = taken.try_cancel()
    taken.run()

    assert cancelled
    assert future.cancelled()
    assert wrapper.log == ["before", "after"]


def test_closing_a_processor_cancels_futures_of_mail_with_an_executor(
    processor: MailboxProcessor, wrapper: Wrapper
) -> None:
    future = processor.main_mailbox_executor.submit(do_nothing)

    processor.close()

    assert future.cancelled()
    assert wrapper.log == []
