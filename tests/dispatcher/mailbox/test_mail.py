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


def test_the_runnable_s_error_goes_to_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        Mail(lambda: 1 / 0, 0).run()


def test_a_description_is_formatted_only_when_asked_for() -> None:
    text = CountingText()

    created = Mail(do_nothing, 0, "about %s", text)
    created.run()

    assert text.formatted == 0
    assert created.description == "about text"
    assert text.formatted == 1


@pytest.mark.parametrize(
    ("arguments", "description"),
    [(("100% done",), "100% done"), (("about %d and %s", 1, "two"), "about 1 and two"), ((), repr(do_nothing))],
    ids=["text", "format", "none"],
)
def test_a_description_is_a_format_with_arguments_or_the_runnable(arguments: tuple[Any, ...], description: str) -> None:
    assert Mail(do_nothing, 0, *arguments).description == description


@pytest.mark.parametrize("priority", [MIN_PRIORITY, 0, 7, MAX_PRIORITY])
@pytest.mark.parametrize("options", [MailOptions.DEFAULT, MailOptions.URGENT, MailOptions.DEFERRABLE])
def test_deferrable_mail_has_the_lowest_priority_and_remembers_its_own_as_all_mail_does(
    priority: int, options: MailOptions
) -> None:
    created = Mail(do_nothing, priority, options=options)

    assert created.priority == (MIN_PRIORITY if options is MailOptions.DEFERRABLE else priority)
    assert created.original_priority == priority
    assert created.is_urgent == (options is MailOptions.URGENT)


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
