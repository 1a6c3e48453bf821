"""How the mailbox thread waits: one duty to wake it for each wait, which one of the others takes and does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from dispatcher.mailbox import MIN_PRIORITY, Mail, MailboxClosedError, MailOptions, TaskMailbox

from .conftest import TIMEOUT_S, announce_waits, deferrable, do_nothing, mail, names, on_another_thread, urgent

PRODUCERS = 4
ROUNDS = 150


class Interrupted(BaseException):
    """As KeyboardInterrupt, which pytest takes for itself."""


class Waiting:
    """A mailbox whose thread is in `take(1)`."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.mailbox = pool.submit(TaskMailbox).result(TIMEOUT_S)
        self.waits = announce_waits(self.mailbox)
        self.taken: Future[Mail] = pool.submit(self.mailbox.take, 1)
        self.await_wait()

    def await_wait(self) -> None:
        """Until the mailbox thread has looked for mail in vain, after the last time that this was awaited."""
        assert self.waits.wait(TIMEOUT_S)
        self.waits.clear()


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    with ThreadPoolExecutor(1) as pool:
        waiting = Waiting(pool)
        yield waiting
        if not waiting.taken.done():
            waiting.mailbox.put(mail("the end", 1))


class CountingParking:
    """Counts waits, and ended waits; raises if a thread ends a wait that does not exist."""

    def __init__(self, mailbox: TaskMailbox) -> None:
        self.lock = mailbox.parking.lock
        self.acquired = 0  # mailbox thread only
        self.released: list[int] = []  # append is atomic

    def acquire(self) -> bool:
        assert self.lock.acquire_within(TIMEOUT_S), "no thread ended the wait"
        self.acquired += 1
        return True

    def release(self) -> None:
        self.released.append(1)
        self.lock.release()


# -- what ends a wait ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("put", [TaskMailbox.put, TaskMailbox.put_first])
@pytest.mark.parametrize("make", [mail, urgent, deferrable])
def test_a_wait_goes_on_when_mail_comes_that_does_not_qualify(
    waiting: Waiting, put: Callable[[TaskMailbox, Mail], None], make: Callable[[str, int], Mail]
) -> None:
    """Deferrable mail never qualifies, whatever it was sent with."""
    put(waiting.mailbox, make("other", 5 if make is deferrable else 0))
    waiting.await_wait()
    still_waiting = waiting.mailbox.parking.is_waiting() and not waiting.taken.done()

    waiting.mailbox.put(mail("awaited", 1))

    assert still_waiting
    assert waiting.taken.result(TIMEOUT_S).description == "awaited"
    assert names(waiting.mailbox.drain()) == ["other"]


def test_quiescing_does_not_end_a_wait_and_closing_does() -> None:
    # The mailbox of a thread that never starts: any thread may then take, and another one close.
    mailbox = TaskMailbox(threading.Thread(target=do_nothing))
    waits = announce_waits(mailbox)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(mailbox.take, MIN_PRIORITY)
        assert waits.wait(TIMEOUT_S)

        mailbox.quiesce()
        still_waiting = mailbox.parking.is_waiting()
        mailbox.close()

        with pytest.raises(MailboxClosedError, match="cannot take mail"):
            taken.result(TIMEOUT_S)
    assert still_waiting
    assert not mailbox.parking.is_waiting()


def test_a_take_that_finds_mail_does_not_wait(mailbox: TaskMailbox) -> None:
    waits = announce_waits(mailbox)
    mailbox.put(mail("there"))

    mailbox.take(MIN_PRIORITY)

    assert not waits.is_set()
    assert not mailbox.parking.is_waiting()


class LockThatLetsIn:
    """After it is released for the first time, something happens on another thread before its owner goes on."""

    def __init__(self, mailbox: TaskMailbox, happens: Callable[[], None]) -> None:
        self.lock = mailbox._lock
        self.happens: Callable[[], None] | None = happens

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        happens, self.happens = self.happens, None
        if happens is not None:
            on_another_thread(happens)


@pytest.mark.parametrize("put", [TaskMailbox.put, TaskMailbox.put_first])
@pytest.mark.parametrize("make", [mail, urgent])
def test_mail_that_comes_between_the_last_look_and_the_wait_ends_it(
    mailbox: TaskMailbox, put: Callable[[TaskMailbox, Mail], None], make: Callable[[str], Mail]
) -> None:
    mailbox._lock = LockThatLetsIn(mailbox, lambda: put(mailbox, make("just in time")))  # type: ignore[assignment]
    mailbox.parking.lock = CountingParking(mailbox)  # type: ignore[assignment]

    taken = mailbox.take(MIN_PRIORITY)

    assert taken.description == "just in time"
    assert not mailbox.parking.is_waiting()


# -- what is not remembered ------------------------------------------------------------------------------------------


def test_an_unpark_without_a_wait_is_not_remembered() -> None:
    with ThreadPoolExecutor(1) as pool:
        mailbox = pool.submit(TaskMailbox).result(TIMEOUT_S)
        for _ in range(3):
            mailbox.parking.unpark()
        waits = announce_waits(mailbox)
        taken = pool.submit(mailbox.take, MIN_PRIORITY)
        assert waits.wait(TIMEOUT_S)
        waits.clear()

        waited = mailbox.parking.is_waiting()
        mailbox.put(mail("awaited"))

        assert taken.result(TIMEOUT_S).description == "awaited"
    assert waited
    assert not waits.is_set()  # one wait, and not another one after it


def test_puts_without_a_wait_are_not_remembered_as_wakes(mailbox: TaskMailbox) -> None:
    for put in (mailbox.put, mailbox.put_first):
        for make in (mail, urgent):
            put(make())
    mailbox.drain()

    assert not mailbox.parking.is_waiting()
    assert not mailbox.parking.lock.acquire_within(0)


def test_one_of_many_unparks_ends_the_wait_and_without_mail_a_take_waits_on(waiting: Waiting) -> None:
    waiting.mailbox.run_exclusively(lambda: [waiting.mailbox.parking.unpark() for _ in range(5)])

    waiting.await_wait()
    assert waiting.mailbox.parking.is_waiting()
    assert not waiting.taken.done()
    waiting.mailbox.put(mail("awaited", 1))
    assert waiting.taken.result(TIMEOUT_S).description == "awaited"


# -- an exception out of the wait ------------------------------------------------------------------------------------


class InterruptedParking:
    """A lock whose first acquire is interrupted, after `meanwhile` has happened on another thread."""

    def __init__(self, mailbox: TaskMailbox, meanwhile: Callable[[], None] = do_nothing) -> None:
        self.lock = mailbox.parking.lock
        self.release = self.lock.release
        self.meanwhile = meanwhile
        self.interrupted = False

    def acquire(self) -> bool:
        if not self.interrupted:
            self.interrupted = True
            on_another_thread(self.meanwhile)
            raise Interrupted
        return self.acquire_within(TIMEOUT_S)

    def acquire_within(self, seconds: float) -> bool:
        return self.lock.acquire_within(seconds)


def interrupt(mailbox: TaskMailbox, meanwhile: Callable[[], None] = do_nothing) -> None:
    mailbox.parking.lock = InterruptedParking(mailbox, meanwhile)  # type: ignore[assignment]


def assert_waits_and_is_woken_once(
    mailbox: TaskMailbox, pool: ThreadPoolExecutor, *, has_early_release: bool = False
) -> None:
    """A take on the mailbox thread, which is the test's, waits once, until another thread puts.

    `has_early_release`: a release that came too late for the wait before ends this one, and the take waits again.
    """
    waits = announce_waits(mailbox)

    def put() -> bool:
        awaited = waits.wait(TIMEOUT_S)
        waits.clear()
        mailbox.put(mail("awaited"))
        return awaited

    putting = pool.submit(put)
    taken = mailbox.take(MIN_PRIORITY)

    assert putting.result(TIMEOUT_S)
    assert taken.description == "awaited"
    assert has_early_release or not waits.is_set()
    assert not mailbox.parking.is_waiting()


def test_an_interrupted_wait_takes_its_duty_back(mailbox: TaskMailbox) -> None:
    interrupt(mailbox)

    with pytest.raises(Interrupted):
        mailbox.take(MIN_PRIORITY)

    assert not mailbox.parking.is_waiting()
    with ThreadPoolExecutor(1) as pool:
        assert_waits_and_is_woken_once(mailbox, pool)


def test_an_interrupted_wait_that_a_put_ends_at_the_same_time_keeps_the_mail(mailbox: TaskMailbox) -> None:
    interrupt(mailbox, lambda: mailbox.put(mail("meanwhile")))

    with pytest.raises(Interrupted):
        mailbox.take(MIN_PRIORITY)

    assert names([mailbox.take(MIN_PRIORITY)]) == ["meanwhile"]
    with ThreadPoolExecutor(1) as pool:
        assert_waits_and_is_woken_once(mailbox, pool, has_early_release=True)


def test_after_an_interrupted_wait_whose_release_comes_late_the_next_one_gets_its_mail(mailbox: TaskMailbox) -> None:
    duties: list[Callable[[], None]] = []
    interrupt(mailbox, lambda: duties.append(mailbox.parking.duties.pop()))
    with pytest.raises(Interrupted):
        mailbox.take(MIN_PRIORITY)

    duties.pop()()  # the thread that took the duty was that slow
    assert not mailbox.parking.is_waiting()
    with ThreadPoolExecutor(1) as pool:
        assert_waits_and_is_woken_once(mailbox, pool, has_early_release=True)


# -- many threads ----------------------------------------------------------------------------------------------------


def test_concurrent_puts_end_each_wait_once(mailbox: TaskMailbox) -> None:
    """All producers put at the same moment into a mailbox whose thread is about to wait, or waits."""
    parking = CountingParking(mailbox)
    mailbox.parking.lock = parking  # type: ignore[assignment]
    start = threading.Barrier(PRODUCERS + 1)
    kinds = (MailOptions.DEFAULT, MailOptions.URGENT)

    def produce(producer: int) -> None:
        for number in range(ROUNDS):
            each = mail(f"{producer} {number}", number % 2, kinds[(producer + number) % 2])
            start.wait(TIMEOUT_S)
            (mailbox.put_first if number % 3 == 0 else mailbox.put)(each)
            if number % 5 == 0:
                mailbox.parking.unpark()

    taken = []
    with ThreadPoolExecutor(PRODUCERS) as pool:
        producers = [pool.submit(produce, producer) for producer in range(PRODUCERS)]
        for number in range(ROUNDS):
            start.wait(TIMEOUT_S)
            taken += [mailbox.take(number % 2).description for _ in range(PRODUCERS)]
        for producer in producers:
            producer.result(TIMEOUT_S)

    assert sorted(taken) == sorted(f"{producer} {number}" for producer in range(PRODUCERS) for number in range(ROUNDS))
    assert parking.acquired == len(parking.released)
    assert not mailbox.parking.is_waiting()
    assert not parking.lock.acquire_within(0)


def test_with_takes_and_puts_in_step_each_wait_is_ended_once(mailbox: TaskMailbox) -> None:
    """A mail for each answer: the mailbox thread waits before each, and the producers take turns at random."""
    parking = CountingParking(mailbox)
    mailbox.parking.lock = parking  # type: ignore[assignment]
    answered = threading.Semaphore(1)

    def produce(producer: int) -> None:
        rng = random.Random(producer)
        for number in range(ROUNDS):
            assert answered.acquire(timeout=TIMEOUT_S)
            if rng.random() < 0.5:
                mailbox.parking.unpark()
            mailbox.put(mail(f"{producer} {number}"))

    with ThreadPoolExecutor(PRODUCERS) as pool:
        producers = [pool.submit(produce, producer) for producer in range(PRODUCERS)]
        taken = []
        for _ in range(PRODUCERS * ROUNDS):
            taken.append(mailbox.take(MIN_PRIORITY).description)
            answered.release()
        for producer in producers:
            producer.result(TIMEOUT_S)

    assert len(set(taken)) == PRODUCERS * ROUNDS
    assert parking.acquired == len(parking.released) > 0
    assert not mailbox.parking.is_waiting()
    assert not parking.lock.acquire_within(0)
