"""The two kinds of lock on which an idle mailbox thread waits."""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dispatcher import AsyncDispatcher
from dispatcher.mailbox.parking import DescriptorLock, Parking, PlainLock

from ...kit import TIMEOUT_S, until

needs_eventfd = pytest.mark.skipif(sys.platform != "linux", reason="eventfd is Linux's")


def waiting(parking: Parking) -> threading.Event:
    """Set once the thread that waits has announced its wait and another ended it."""
    parking.announce()
    ended = threading.Event()

    def wait() -> None:
        parking.wait()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def is_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError as error:
        return error.errno == errno.EBADF
    return False


@needs_eventfd
@pytest.mark.parametrize("sooner", [False, True])
def test_a_wait_lasts_until_it_is_ended(sooner: bool) -> None:
    parking = Parking()
    if sooner:
        parking.wake_sooner()
    ended = waiting(parking)
    before = parking.is_waiting(), ended.is_set()

    parking.unpark()

    assert ended.wait(TIMEOUT_S)
    assert before == (True, False)
    assert not parking.is_waiting()


@needs_eventfd
def test_a_second_release_ends_at_most_one_more_wait() -> None:
    parking = Parking()
    parking.wake_sooner()
    ended = waiting(parking)
    parking.unpark()
    assert ended.wait(TIMEOUT_S)
    parking.lock.release()

    parking.announce()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(parking.wait).result(TIMEOUT_S)
    ended = waiting(parking)

    assert not ended.is_set()
    parking.unpark()
    assert ended.wait(TIMEOUT_S)


@needs_eventfd
def test_a_dispatcher_that_has_stopped_holds_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may keep it, or leave it in a cycle that is not collected soon."""
    opened: list[int] = []
    eventfd = os.eventfd
    monkeypatch.setattr(os, "eventfd", lambda *given: opened.append(eventfd(*given)) or opened[-1])
    dispatcher = AsyncDispatcher(name="stopped")
    dispatcher.start()
    os.fstat(opened[0])  # raises if it is closed

    dispatcher.stop()

    until(lambda: is_closed(opened[0]), "the end of the handler thread")


@needs_eventfd
def test_waits_leave_half_of_the_descriptors_to_the_program() -> None:
    """2,000 dispatchers took every one of 1,024, and the program's next `open` failed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 2 * (max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 50)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    parkings = [Parking() for _ in range(limit)]
    try:
        for parking in parkings:
            parking.wake_sooner()
        with ExitStack() as stack:
            for _ in range(limit // 2 - 10):  # other threads of the tests may need some
                stack.enter_context(Path(os.devnull).open())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    kinds = [type(parking.lock) for parking in parkings]
    assert 0 < kinds.count(DescriptorLock) < limit // 2
    ended = waiting(parkings[-1])
    parkings[-1].unpark()
    assert ended.wait(TIMEOUT_S)


def test_without_a_descriptor_the_wait_is_for_a_plain_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "eventfd", refuse, raising=False)
    parking = Parking()

    parking.wake_sooner()

    assert isinstance(parking.lock, PlainLock)
    ended = waiting(parking)
    parking.unpark()
    assert ended.wait(TIMEOUT_S)
