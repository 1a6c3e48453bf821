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


@pytest.mark.parametrize(("is_future", "is_done"), [(True, False), (True, True), (False, False)])
def test_cancelling_mail_cancels_a_future_that_is_not_done(is_future: bool, is_done: bool) -> None:
    future: Future[Any] = Future()
    ran: list[str] = []

    def run() -> None:
        ran.append("still")

    if is_future:
        run.cancel = future.cancel  # type: ignore[attr-defined]
    if is_done:
        future.set_result(1)
    created = Mail(run, 0)

    assert created.try_cancel() == future.cancelled() == (is_future and not is_done)

    created.run()
    assert ran == ["still"]
