"""Rules C2 of the reference: threads, states, waiting. The order of mail is in test_task_mailbox_order.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dispatcher.mailbox import MIN_PRIORITY, MailboxClosedError, MailboxState, MailboxStateError, TaskMailbox

from .conftest import TIMEOUT_S, do_nothing, mail, names, on_another_thread, urgent

Call = Callable[[TaskMailbox], Any]

OWNERS_CALLS: dict[str, Call] = {
    "has_mail": lambda mailbox: mailbox.has_mail(),
    "try_take": lambda mailbox: mailbox.try_take(MIN_PRIORITY),
    "take": lambda mailbox: mailbox.take(MIN_PRIORITY),
    "create_batch": lambda mailbox: mailbox.create_batch(),
    "try_take_from_batch": lambda mailbox: mailbox.try_take_from_batch(),
    "quiesce": lambda mailbox: mailbox.quiesce(),
    "close": lambda mailbox: mailbox.close(),
}
PUTS: dict[str, Call] = {
    "put": lambda mailbox: mailbox.put(mail("late")),
    "put urgent": lambda mailbox: mailbox.put(urgent("late")),
    "put_first": lambda mailbox: mailbox.put_first(mail("late")),
    "put_first urgent": lambda mailbox: mailbox.put_first(urgent("late")),
}
ANYBODYS_CALLS: dict[str, Call] = {
    **PUTS,
    "size": lambda mailbox: mailbox.size(),
    "drain": lambda mailbox: mailbox.drain(),
    "state": lambda mailbox: mailbox.state,
    "run_exclusively": lambda mailbox: mailbox.run_exclusively(do_nothing),
}
TAKES: dict[str, Call] = {
    "try_take": lambda mailbox: mailbox.try_take(MIN_PRIORITY),
    "take": lambda mailbox: mailbox.take(MIN_PRIORITY),
    "create_batch and try_take_from_batch": lambda mailbox: mailbox.create_batch() and mailbox.try_take_from_batch(),
}


def by_name(calls: dict[str, Call]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("call", list(calls.values()), ids=list(calls))


# -- threads ---------------------------------------------------------------------------------------------------------


@by_name(OWNERS_CALLS)
@pytest.mark.parametrize("content", [(), ("there",)], ids=["empty", "with mail"])
def test_methods_of_the_mailbox_thread_raise_on_another_thread(
    mailbox: TaskMailbox, call: Call, content: tuple[str, ...]
) -> None:
    """create_batch of an empty mailbox once returned False on any thread."""
    for name in content:
        mailbox.put(mail(name))

    with pytest.raises(MailboxStateError, match=rf"belongs to thread {threading.current_thread().name}"):
        on_another_thread(lambda: call(mailbox))

    assert mailbox.size() == len(content)
    assert mailbox.state is MailboxState.OPEN


@by_name(ANYBODYS_CALLS)
def test_the_rest_is_for_any_thread(mailbox: TaskMailbox, call: Call) -> None:
    mailbox.put(mail("there"))

    on_another_thread(lambda: call(mailbox))


def test_a_new_thread_with_the_ident_of_the_ended_mailbox_thread_is_another_thread() -> None:
    """Idents are given again: the mailbox once took such a thread for its own."""
    made: dict[int, TaskMailbox] = {}
    answers: list[bool] = []

    def ask_or_make() -> None:
        mailbox = made.get(threading.get_ident())
        if mailbox is not None:
            answers.append(mailbox.is_mailbox_thread())
        else:
            made[threading.get_ident()] = TaskMailbox()

    for _ in range(1000):
        if not answers:
            run_thread(ask_or_make)

    if not answers:
        pytest.skip("this platform gives no ident twice")
    assert answers == [False]


def run_thread(target: Callable[[], None]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_until_the_given_thread_starts_the_thread_that_prepares_it_may_act_for_it() -> None:
    stop = threading.Event()
    owner = threading.Thread(target=stop.wait, args=(TIMEOUT_S,))
    mailbox = TaskMailbox(owner)
    mailbox.put(mail("early"))

    taken = mailbox.try_take(MIN_PRIORITY)
    owner.start()
    with pytest.raises(MailboxStateError, match="belongs to thread"):
        mailbox.close()
    stop.set()
    owner.join(TIMEOUT_S)

    assert names([taken]) == ["early"]


# -- states ----------------------------------------------------------------------------------------------------------


@by_name(PUTS)
@pytest.mark.parametrize("end", ["quiesce", "close"])
@pytest.mark.parametrize("from_another_thread", [False, True])
def test_a_put_after_the_end_raises_and_keeps_nothing(
    mailbox: TaskMailbox, call: Call, end: str, from_another_thread: bool
) -> None:
    getattr(mailbox, end)()
    run = on_another_thread if from_another_thread else (lambda action: action())

    with pytest.raises(MailboxClosedError, match=r"cannot put mail: the mailbox is (QUIESCED|CLOSED)") as caught:
        run(lambda: call(mailbox))

    assert caught.value.state is mailbox.state
    assert mailbox.size() == 0


@by_name(TAKES | {"try_take_from_batch": lambda mailbox: mailbox.try_take_from_batch()})
def test_a_closed_mailbox_gives_nothing(mailbox: TaskMailbox, call: Call) -> None:
    """create_batch once returned False, as if there was no mail yet."""
    mailbox.close()

    with pytest.raises(MailboxClosedError, match="cannot take mail: the mailbox is CLOSED"):
        call(mailbox)


# -- run_exclusively -------------------------------------------------------------------------------------------------


def test_the_action_of_run_exclusively_may_put_and_nest(mailbox: TaskMailbox) -> None:
    def check_then_put() -> MailboxState:
        mailbox.run_exclusively(lambda: mailbox.put(mail("inner")))
        mailbox.put(mail("outer"))
        return mailbox.state

    assert mailbox.run_exclusively(check_then_put) is MailboxState.OPEN

    assert names(mailbox.drain()) == ["inner", "outer"]


@by_name(PUTS | {"close": lambda mailbox: mailbox.close(), "quiesce": lambda mailbox: mailbox.quiesce()})
def test_no_other_thread_puts_quiesces_or_closes_during_run_exclusively(call: Call) -> None:
    mailbox = TaskMailbox(threading.Thread(target=do_nothing))
    started, done = threading.Event(), threading.Event()

    def change() -> None:
        started.set()
        call(mailbox)
        done.set()

    def look_twice() -> tuple[object, ...]:
        other.start()
        assert started.wait(TIMEOUT_S)
        before = (mailbox.size(), mailbox.state)
        assert not done.wait(0.02)
        return (*before, mailbox.size(), mailbox.state)

    other = threading.Thread(target=change)

    seen = mailbox.run_exclusively(look_twice)
    other.join(TIMEOUT_S)

    assert seen == (0, MailboxState.OPEN, 0, MailboxState.OPEN)
    assert done.is_set()


def test_run_exclusively_lets_go_when_the_action_raises(mailbox: TaskMailbox) -> None:
    with pytest.raises(ZeroDivisionError):
        mailbox.run_exclusively(lambda: 1 / 0)

    on_another_thread(lambda: mailbox.put(mail("after")))

    assert mailbox.size() == 1
