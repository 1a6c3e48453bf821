"""Rules C1 of the reference: what a mail is."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from dispatcher.mailbox import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions

from .conftest import do_nothing


class CountingText:
    def __init__(self) -> None:
        self.formatted = 0

    def __str__(self) -> str:
        self.formatted += 1
        return "text"


class CancellableTask:
    """A future that is also a mail's runnable."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()

    def __call__(self) -> None: ...

    def cancel(self) -> bool:
        return self.future.cancel()


def test_run_runs_the_runnable() -> None:
    ran: list[str] = []

    Mail(lambda: ran.append("here"), 0).run()

    assert ran == ["here"]


def test_the_runnable_s_error_goes_to_the_caller() -> None:
    def fail() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        Mail(fail, 0).run()


def test_a_description_is_formatted_only_when_asked_for() -> None:
    text = CountingText()

    created = Mail(do_nothing, 0, "about %s", text)
    created.run()

    assert text.formatted == 0
    assert created.description == "about text"
    assert text.formatted == 1


def test_a_description_without_arguments_is_taken_as_it_is() -> None:
    assert Mail(do_nothing, 0, "100% done").description == "100% done"


def test_without_a_description_the_runnable_speaks_for_itself() -> None:
    assert Mail(do_nothing, 0).description == repr(do_nothing)


@pytest.mark.parametrize("priority", [MIN_PRIORITY, 0, 7, MAX_PRIORITY])
@pytest.mark.parametrize("options", [MailOptions.DEFAULT, MailOptions.URGENT])
def test_mail_that_is_not_deferrable_has_the_priority_it_was_given(priority: int, options: MailOptions) -> None:
    created = Mail(do_nothing, priority, options=options)

    assert created.priority == created.original_priority == priority


def test_deferrable_mail_has_the_lowest_priority_and_remembers_its_own() -> None:
    created = Mail(do_nothing, 7, options=MailOptions.DEFERRABLE)

    assert created.priority == MIN_PRIORITY
    assert created.original_priority == 7


def test_only_urgent_mail_is_urgent() -> None:
    assert Mail(do_nothing, 0, options=MailOptions.URGENT).is_urgent
    assert not Mail(do_nothing, 0, options=MailOptions.DEFERRABLE).is_urgent
    assert not Mail(do_nothing, 0).is_urgent


def test_cancelling_mail_cancels_a_future() -> None:
    task = CancellableTask()

    assert Mail(task, 0).try_cancel()

    assert task.future.cancelled()


def test_a_future_that_is_done_is_not_cancelled() -> None:
    task = CancellableTask()
    task.future.set_result(1)

    assert not Mail(task, 0).try_cancel()


def test_cancelling_mail_of_a_plain_callable_does_nothing() -> None:
    ran: list[str] = []
    created = Mail(lambda: ran.append("still"), 0)

    assert not created.try_cancel()

    created.run()
    assert ran == ["still"]


def test_the_repr_says_what_it_is_about_its_priority_and_its_options() -> None:
    created = Mail(do_nothing, 3, "timer of %s ms", 12, options=MailOptions.DEFERRABLE)

    assert repr(created) == "<Mail 'timer of 12 ms' priority=3 DEFERRABLE>"
