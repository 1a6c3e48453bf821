"""Rules C2 of the reference: in which order mail is taken, what a batch is, what a priority hides.

Examples of what test_task_mailbox_model.py compares with a model, and what has gone wrong.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dispatcher.mailbox import MIN_PRIORITY, Mail, TaskMailbox

from .conftest import TIMEOUT_S, announce_waits, deferrable, mail, names, on_another_thread, urgent


def put_all(mailbox: TaskMailbox, *mails: Mail) -> None:
    for each in mails:
        mailbox.put(each)


def put_from_outside(mailbox: TaskMailbox, *mails: Mail) -> None:
    on_another_thread(lambda: put_all(mailbox, *mails))


def take_all(mailbox: TaskMailbox, priority: int = MIN_PRIORITY) -> list[str | None]:
    taken = []
    while (each := mailbox.try_take(priority)) is not None:
        taken.append(each)
    return names(taken)


def take_batch(mailbox: TaskMailbox) -> list[str | None]:
    taken = []
    while (each := mailbox.try_take_from_batch()) is not None:
        taken.append(each)
    return names(taken)


# -- put -------------------------------------------------------------------------------------------------------------


def test_urgent_mail_is_taken_first_and_in_its_own_order(mailbox: TaskMailbox) -> None:
    put_all(mailbox, mail("a"), urgent("u1"), mail("b"), urgent("u2"), urgent("u3"))

    assert take_all(mailbox) == ["u1", "u2", "u3", "a", "b"]


@pytest.mark.parametrize("outside", [False, True])
def test_urgent_mail_goes_before_the_rest_of_a_batch_in_its_own_order(mailbox: TaskMailbox, outside: bool) -> None:
    put = put_from_outside if outside else put_all
    put_all(mailbox, mail("a"), mail("b"), mail("c"))
    mailbox.create_batch()
    first = mailbox.try_take_from_batch()

    put(mailbox, urgent("u1"), urgent("u2"), mail("d"))

    assert names([first]) == ["a"]
    assert take_batch(mailbox) == ["u1", "u2", "b", "c"]
    assert take_all(mailbox) == ["d"]


def test_urgent_mail_of_the_mailbox_thread_enters_a_batch_without_the_lock(mailbox: TaskMailbox) -> None:
    mailbox.put(mail("a"))
    mailbox.create_batch()
    locked, put = threading.Event(), threading.Event()

    def hold_the_lock() -> bool:
        locked.set()
        return put.wait(TIMEOUT_S)

    put_in_time: list[bool] = []
    holder = threading.Thread(target=lambda: put_in_time.append(mailbox.run_exclusively(hold_the_lock)))
    holder.start()
    assert locked.wait(TIMEOUT_S)

    mailbox.put(urgent("u"))
    put.set()
    holder.join(TIMEOUT_S)

    assert put_in_time == [True]
    assert take_batch(mailbox) == ["u", "a"]


# -- put_first -------------------------------------------------------------------------------------------------------


def test_the_mail_put_first_last_is_taken_first(mailbox: TaskMailbox) -> None:
    put_all(mailbox, mail("a"), mail("b"))
    mailbox.create_batch()

    mailbox.put_first(mail("x"))
    mailbox.put_first(mail("y"))

    assert take_all(mailbox) == ["y", "x", "a", "b"]


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_what_was_queued_when_it_was_made(mailbox: TaskMailbox) -> None:
    put_all(mailbox, mail("a"), mail("b"))

    assert mailbox.create_batch()
    mailbox.put(mail("late"))

    assert take_batch(mailbox) == ["a", "b"]
    assert mailbox.size() == 1


def test_taking_from_a_batch_brings_only_urgent_mail_into_it(mailbox: TaskMailbox) -> None:
    put_all(mailbox, mail("a"), mail("b"))
    mailbox.create_batch()
    put_from_outside(mailbox, mail("c"), urgent("u"))

    assert take_batch(mailbox) == ["u", "a", "b"]

    assert take_all(mailbox) == ["c"]


# -- priorities ------------------------------------------------------------------------------------------------------


def test_a_priority_filters_and_does_not_sort(mailbox: TaskMailbox) -> None:
    put_all(mailbox, mail("1", 1), mail("0", 0), mail("3", 3), mail("2", 2), mail("-1", -1))

    assert take_all(mailbox, priority=1) == ["1", "3", "2"]
    assert take_all(mailbox, priority=0) == ["0"]
    assert take_all(mailbox) == ["-1"]


def test_a_blocking_take_filters_as_well(mailbox: TaskMailbox) -> None:
    put_all(mailbox, mail("0", 0), mail("1", 1))

    taken = mailbox.take(1)

    assert names([taken]) == ["1"]


def test_deferrable_mail_is_for_takes_at_the_lowest_priority_only(mailbox: TaskMailbox) -> None:
    put_all(mailbox, deferrable("deferrable", 5), mail("normal", 0))

    assert take_all(mailbox, priority=0) == ["normal"]
    assert take_all(mailbox, priority=MIN_PRIORITY) == ["deferrable"]


def test_a_take_that_ignores_deferrable_filters_by_the_original_priority(mailbox: TaskMailbox) -> None:
    put_all(mailbox, mail("too low", 4), deferrable("deferrable", 5), mail("normal", 5))

    taken = [mailbox.try_take(5, ignore_deferrable=True) for _ in range(3)]

    assert names(taken) == ["deferrable", "normal", None]
    assert take_all(mailbox) == ["too low"]


def test_urgent_mail_is_still_seen_after_takes_from_the_queue(mailbox: TaskMailbox) -> None:
    """The hints are made again from the queue's head after each take from its middle."""
    put_all(mailbox, urgent("u1", 0), mail("a", 0))
    mailbox.create_batch()
    put_from_outside(mailbox, mail("b", 5), urgent("u2", 0), urgent("u3", 5))

    taken = [mailbox.try_take(5), mailbox.try_take(5)]

    assert names(taken) == ["u3", "b"]
    assert take_batch(mailbox) == ["u1", "u2", "a"]


def test_urgent_mail_behind_an_urgent_batch_is_taken_in_order(mailbox: TaskMailbox) -> None:
    """A take that found nothing in the batch once took the newest urgent mail of the queue."""
    put_all(mailbox, urgent("u1", 0))
    mailbox.create_batch()
    put_from_outside(mailbox, urgent("u2", 5), urgent("u3", 5))

    assert take_all(mailbox, priority=5) == ["u2", "u3"]


def test_urgent_mail_that_wakes_a_take_is_taken_in_order() -> None:
    """A take that waited once took the newest of the urgent mail that had come before it was awake."""
    with ThreadPoolExecutor(1) as pool:
        mailbox = pool.submit(TaskMailbox).result(TIMEOUT_S)
        waiting = announce_waits(mailbox)
        taken = pool.submit(mailbox.take, MIN_PRIORITY)
        assert waiting.wait(TIMEOUT_S)

        mailbox.run_exclusively(lambda: put_all(mailbox, mail("a"), urgent("u1"), urgent("u2")))

        assert taken.result(TIMEOUT_S).description == "u1"


# -- drain -----------------------------------------------------------------------------------------------------------


def test_drain_gives_the_batch_and_then_the_queue_as_it_is_stored(mailbox: TaskMailbox) -> None:
    put_all(mailbox, urgent("u1"), mail("a"), mail("b"))
    mailbox.create_batch()
    put_from_outside(mailbox, mail("c"), urgent("u2"), urgent("u3"), mail("d"))

    drained = mailbox.drain()

    assert names(drained) == ["u1", "a", "b", "u3", "u2", "c", "d"]
    assert mailbox.size() == 0
    assert not mailbox.has_mail()
    assert not mailbox.create_batch()
