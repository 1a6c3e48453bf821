"""TaskMailbox against a simple model, and under producers on many threads."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.mailbox import MIN_PRIORITY, Mail, MailboxClosedError, MailboxState, MailOptions, TaskMailbox

from ...kit import tries
from .conftest import TIMEOUT_S, arrive_while_waiting, do_nothing, mail
from .mailbox_model import MailboxModel, effective, original

PRODUCERS = 4
MAILS = 1500

priorities = st.integers(MIN_PRIORITY, 2)
options = st.sampled_from([MailOptions.DEFAULT, MailOptions.URGENT, MailOptions.DEFERRABLE])


class MailboxMachine(RuleBasedStateMachine):
    """Each call goes to the mailbox and to the model; the answers are the same."""

    @initialize()
    def make(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.mailbox = TaskMailbox()
        self.model: MailboxModel[Mail] = MailboxModel()
        self.arriving: list[Mail] = []
        arrive_while_waiting(self.mailbox, self.put_arriving)
        self.state = MailboxState.OPEN
        self.count = 0

    def teardown(self) -> None:
        self.pool.shutdown()

    @rule(priority=priorities, options=options, owner=st.booleans(), first=st.booleans())
    def put(self, priority: int, options: MailOptions, owner: bool, first: bool) -> None:
        self.count += 1
        each = mail(str(self.count), priority, options)
        put = self.mailbox.put_first if first else self.mailbox.put
        try:
            if owner:
                put(each)
            else:
                self.pool.submit(put, each).result(TIMEOUT_S)
        except MailboxClosedError:
            assert self.state is not MailboxState.OPEN
        else:
            assert self.state is MailboxState.OPEN
            self.model.put(each, owner=owner, first=first)

    def put_arriving(self) -> None:
        """The mailbox thread waits: another one puts the next mail that is to arrive then."""
        self.pool.submit(self.mailbox.put, self.arriving.pop(0)).result(TIMEOUT_S)

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule(priority=priorities, ignore_deferrable=st.booleans())
    def try_take(self, priority: int, ignore_deferrable: bool) -> None:
        taken = self.mailbox.try_take(priority, ignore_deferrable=ignore_deferrable)

        assert taken is self.model.take(priority, original if ignore_deferrable else effective)

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule(priority=priorities)
    def take_what_is_there(self, priority: int) -> None:
        if self.model.has(priority):
            assert self.mailbox.take(priority) is self.model.take(priority)

    @precondition(lambda self: self.state is MailboxState.OPEN)
    @rule(priority=priorities, arriving=st.lists(st.tuples(priorities, options), max_size=4))
    def take_what_arrives(self, priority: int, arriving: list[tuple[int, MailOptions]]) -> None:
        """The wait goes on until mail comes that qualifies; the last one does."""
        for each in [*arriving, (priority, MailOptions.DEFAULT)]:
            self.count += 1
            self.arriving.append(mail(str(self.count), *each))
        to_arrive = list(self.arriving)

        taken = self.mailbox.take(priority)

        expected = self.model.take(priority)
        while expected is None:
            self.model.put(to_arrive.pop(0), owner=False)
            expected = self.model.take_after_wait(priority)
        assert taken is expected
        assert self.arriving == to_arrive
        self.arriving.clear()

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule()
    def create_batch(self) -> None:
        self.model.pull(urgent_only=False)
        assert self.mailbox.create_batch() is bool(self.model.batch)

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule()
    def try_take_from_batch(self) -> None:
        assert self.mailbox.try_take_from_batch() is self.model.take_from_batch()

    @precondition(lambda self: self.count > 10)
    @rule()
    def drain(self) -> None:
        assert self.mailbox.drain() == self.model.drain()

    @precondition(lambda self: self.count > 20)
    @rule()
    def quiesce(self) -> None:
        self.mailbox.quiesce()
        if self.state is MailboxState.OPEN:
            self.state = MailboxState.QUIESCED

    @precondition(lambda self: self.count > 25)
    @rule()
    def close(self) -> None:
        assert self.mailbox.close() == self.model.drain()
        self.state = MailboxState.CLOSED

    @precondition(lambda self: self.state is MailboxState.CLOSED)
    @rule(priority=priorities)
    def take_from_closed(self, priority: int) -> None:
        for take in (lambda: self.mailbox.take(priority), self.mailbox.create_batch, self.mailbox.try_take_from_batch):
            with pytest.raises(MailboxClosedError):
                take()

    @invariant()
    def same_content(self) -> None:
        batch, queue = self.model.batch, self.model.queue
        assert list(self.mailbox.batch) == batch.stored(newest_first=False)
        assert list(self.mailbox._queue) == queue.stored(newest_first=True)
        assert self.mailbox.size() == len(self.mailbox.batch) + len(self.mailbox._queue)
        assert self.mailbox.has_mail() is (bool(batch) or bool(queue))
        assert self.mailbox.state is self.state

    @invariant()
    def hints_tell_the_truth(self) -> None:
        assert self.mailbox.new_mail is bool(self.model.queue)
        assert self.mailbox.new_urgent_mail is bool(self.model.queue.urgent)


class TestMailboxAgainstItsModel(MailboxMachine.TestCase):
    settings = settings(max_examples=tries(40), stateful_step_count=30, deadline=None)


def produce(mailbox: TaskMailbox, producer: int, start: threading.Barrier) -> None:
    rng = random.Random(producer)
    start.wait(TIMEOUT_S)
    for number in range(MAILS):
        put_options = MailOptions.URGENT if rng.random() < 0.2 else MailOptions.DEFAULT
        mailbox.put(Mail(do_nothing, number % 2, "%d %d", producer, number, options=put_options))


def take_somehow(mailbox: TaskMailbox, rng: random.Random) -> Mail | None:
    way = rng.randrange(4)
    if way == 0:
        return mailbox.take(MIN_PRIORITY)
    if way == 1:
        return mailbox.try_take(1)
    if way == 2:
        mailbox.create_batch()
    return mailbox.try_take_from_batch()


def test_mail_from_many_threads_is_not_lost_and_keeps_the_order_of_its_thread() -> None:
    """Of one producer and one priority, urgent mail is taken in order, and so is the rest."""
    mailbox = TaskMailbox()
    start = threading.Barrier(PRODUCERS)
    rng = random.Random(0)
    taken: dict[tuple[str, int, bool], list[int]] = defaultdict(list)

    with ThreadPoolExecutor(PRODUCERS) as pool:
        producers = [pool.submit(produce, mailbox, producer, start) for producer in range(PRODUCERS)]
        left = PRODUCERS * MAILS
        while left:
            each = take_somehow(mailbox, rng)
            if each is not None:
                left -= 1
                producer, number = each.description.split()
                taken[producer, each.priority, each.is_urgent].append(int(number))
        for done in producers:
            done.result(TIMEOUT_S)

    assert sum(map(len, taken.values())) == PRODUCERS * MAILS
    assert all(numbers == sorted(set(numbers)) for numbers in taken.values())
    assert mailbox.size() == 0
    assert len(taken) == PRODUCERS * 4


def test_a_mail_put_while_the_mailbox_closes_is_either_refused_or_handed_back() -> None:
    mailbox = TaskMailbox()
    start = threading.Barrier(PRODUCERS + 1)
    enough = threading.Event()

    def put_until_refused(producer: int) -> int:
        start.wait(TIMEOUT_S)
        for number in range(1_000_000):
            try:
                mailbox.put(mail(f"{producer} {number}"))
            except MailboxClosedError:
                return number
            if number == 100:
                enough.set()
        raise AssertionError("the mailbox was never closed")

    with ThreadPoolExecutor(PRODUCERS) as pool:
        accepted = [pool.submit(put_until_refused, producer) for producer in range(PRODUCERS)]
        start.wait(TIMEOUT_S)
        assert enough.wait(TIMEOUT_S)
        left = mailbox.close()

    assert len(left) == sum(each.result(TIMEOUT_S) for each in accepted)
    assert mailbox.size() == 0
