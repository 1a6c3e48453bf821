"""What the mailbox's tests share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from dispatcher.mailbox import (
    Mail,
    MailboxController,
    MailboxProcessor,
    MailOptions,
    Suspension,
    SystemProcessingTimeService,
    TaskMailbox,
)

from ...kit import TIMEOUT_S as TIMEOUT_S

T = TypeVar("T")


def do_nothing() -> None: ...


def mail(name: str = "", priority: int = 0, options: MailOptions = MailOptions.DEFAULT) -> Mail:
    """A mail that is distinguished from others by its name."""
    return Mail(do_nothing, priority, name, options=options)


def urgent(name: str = "", priority: int = 0) -> Mail:
    return mail(name, priority, MailOptions.URGENT)


def deferrable(name: str = "", priority: int = 0) -> Mail:
    return mail(name, priority, MailOptions.DEFERRABLE)


def names(mails: Iterable[Mail | None]) -> list[str | None]:
    return [None if each is None else each.description for each in mails]


def on_another_thread(action: Callable[[], T]) -> T:
    """What `action` returns, or raises, on a thread that is not the mailbox's."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result(TIMEOUT_S)


class AnnouncingLock:
    """Sets `waiting` once a thread is about to wait for a lock that is held."""

    def __init__(self, lock: Any) -> None:
        self.release = lock.release
        self.waiting = threading.Event()
        self._lock = lock

    def acquire(self) -> bool:
        self.waiting.set()
        # Longer than any test waits for what this is to be woken for.
        return bool(self._lock.acquire_within(2 * TIMEOUT_S))


def announce_waits(mailbox: TaskMailbox) -> threading.Event:
    """The event that is set when a take of `mailbox` has to wait."""
    parking = AnnouncingLock(mailbox.parking.lock)
    mailbox.parking.lock = parking  # type: ignore[assignment]
    return parking.waiting


class ArrivingParking:
    """Instead of waiting for something to arrive, has it arrive; it must have ended the wait then."""

    def __init__(self, mailbox: TaskMailbox, arrive: Callable[[], None]) -> None:
        self.lock = mailbox.parking.lock
        self.release = self.lock.release
        self.arrive = arrive

    def acquire(self) -> bool:
        self.arrive()
        assert self.lock.acquire_within(TIMEOUT_S), "no thread ended the wait"
        return True


def arrive_while_waiting(mailbox: TaskMailbox, arrive: Callable[[], None]) -> None:
    """Have a take of `mailbox` call `arrive` each time that it would wait."""
    mailbox.parking.lock = ArrivingParking(mailbox, arrive)  # type: ignore[assignment]


class Action:
    """A default action that records its turns and does in each what the test says; after these it suspends itself."""

    def __init__(self, *turns: Callable[[MailboxController], Any]) -> None:
        self.turns = list(turns)
        self.log: list[str] = []
        self.suspensions: list[Suspension] = []

    def __call__(self, controller: MailboxController) -> None:
        self.log.append("action")
        if self.turns:
            self.turns.pop(0)(controller)
        else:
            self.suspend(controller)

    def suspend(self, controller: MailboxController) -> None:
        self.suspensions.append(controller.suspend_default_action())

    def mail(self, processor: MailboxProcessor, name: str, options: MailOptions = MailOptions.DEFAULT) -> None:
        processor.main_mailbox_executor.execute(lambda: self.log.append(name), name, options=options)


@pytest.fixture
def mailbox() -> TaskMailbox:
    """One that belongs to the test's thread."""
    return TaskMailbox()


@pytest.fixture
def action() -> Action:
    return Action()


@pytest.fixture
def processor(action: Action) -> MailboxProcessor:
    """One that runs on the test's thread."""
    return MailboxProcessor(action)


@pytest.fixture
def system() -> Iterator[SystemProcessingTimeService]:
    service = SystemProcessingTimeService()
    yield service
    assert service.shutdown(TIMEOUT_S)


@pytest.fixture
def fired() -> list[int]:
    """For the times that callbacks get."""
    return []
