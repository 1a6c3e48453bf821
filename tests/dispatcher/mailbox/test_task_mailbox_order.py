"""In which order mail is taken, what a batch is, what a priority hides.

Examples of what test_task_mailbox_model.py compares with a model, and what has gone wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dispatcher.mailbox import MIN_PRIORITY, Mail, MailOptions, TaskMailbox

from ...kit.scenarios import play
from .conftest import TIMEOUT_S, announce_waits, mail, names, on_another_thread, urgent


def mail_of(word: str) -> Mail:
    name = word.rstrip("!")
    options = MailOptions.DEFAULT if name == word else MailOptions.URGENT
    return mail(name, int(name.partition("@")[2] or 0), options)


class MailboxStage:
    """A mailbox of the test's thread. A mail is `name@priority`, urgent with `!`.

    The looks take what is there: `taken` at the lowest priority, `from_2` at priority 2, `batch` from the batch, and
    `drained` as it is stored.
    """

    def __init__(self) -> None:
        self.mailbox = TaskMailbox()

    def play(self, verb: str, *words: str) -> None:
        mails = [mail_of(word) for word in words]
        match verb:
            case "put":
                self._each(self.mailbox.put, mails)
            case "outside":
                on_another_thread(lambda: self._each(self.mailbox.put, mails))
            case "make_batch":
                assert self.mailbox.create_batch()
            case "take_one":
                self.mailbox.try_take_from_batch()

    def _each(self, put: Callable[[Mail], None], mails: list[Mail]) -> None:
        for each in mails:
            put(each)

    def look(self, what: str) -> Iterable[object]:
        kind, _, priority = what.partition("_")
        if kind == "drained":
            return names(self.mailbox.drain())
        takes: dict[str, Callable[[], Mail | None]] = {
            "taken": lambda: self.mailbox.try_take(MIN_PRIORITY),
            "from": lambda: self.mailbox.try_take(int(priority)),
            "batch": self.mailbox.try_take_from_batch,
        }
        return names(iter(takes[kind], None))


SCENARIOS = {
    "urgent mail is taken first and in its own order": "put a u1! b u2! u3! -> taken u1 u2 u3 a b",
    "urgent mail goes before the rest of a batch": (
        "put a b c | make_batch | take_one | put u1! u2! d -> batch u1 u2 b c ; taken d"
    ),
    "so does urgent mail of another thread": (
        "put a b c | make_batch | take_one | outside u1! u2! d -> batch u1 u2 b c ; taken d"
    ),
    "a batch is what was queued when it was made": "put a b | make_batch | put late -> batch a b ; taken late",
    # The hints are made again from the queue's head after each take from its middle.
    "urgent mail is still seen after takes from the queue": (
        "put u1@0! a@0 | make_batch | outside b@5 u2@0! u3@5! -> from_5 u3@5 b@5 ; batch u1@0 u2@0 a@0"
    ),
    # A take that found nothing in the batch once took the newest urgent mail of the queue.
    "urgent mail behind an urgent batch is taken in order": (
        "put u1@0! | make_batch | outside u2@5! u3@5! -> from_5 u2@5 u3@5"
    ),
    "drain gives the batch and then the queue as it is stored": (
        "put u1! a b | make_batch | outside c u2! u3! d -> drained u1 a b u3 u2 c d ; taken"
    ),
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_order(script: str) -> None:
    play(MailboxStage(), script)


def test_urgent_mail_of_the_mailbox_thread_enters_a_batch_without_the_lock(mailbox: TaskMailbox) -> None:
    mailbox.put(mail("a"))
    mailbox.create_batch()
    locked, put = threading.Event(), threading.Event()

    def hold_the_lock() -> bool:
        locked.set()
        return put.wait(TIMEOUT_S)

    with ThreadPoolExecutor(1) as pool:
        put_in_time = pool.submit(mailbox.run_exclusively, hold_the_lock)
        assert locked.wait(TIMEOUT_S)
        mailbox.put(urgent("u"))
        put.set()

        assert put_in_time.result(TIMEOUT_S)
    assert names(iter(mailbox.try_take_from_batch, None)) == ["u", "a"]


def test_urgent_mail_that_wakes_a_take_is_taken_in_order() -> None:
    """A take that waited once took the newest of the urgent mail that had come before it was awake."""
    with ThreadPoolExecutor(1) as pool:
        mailbox = pool.submit(TaskMailbox).result(TIMEOUT_S)
        waiting = announce_waits(mailbox)
        taken = pool.submit(mailbox.take, MIN_PRIORITY)
        assert waiting.wait(TIMEOUT_S)

        mailbox.run_exclusively(lambda: [mailbox.put(each) for each in (mail("a"), urgent("u1"), urgent("u2"))])

        assert taken.result(TIMEOUT_S).description == "u1"
