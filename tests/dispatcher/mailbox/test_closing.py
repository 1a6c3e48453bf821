"""Rules C4 of the reference: what becomes of mail when a processor ends."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable

import pytest

from dispatcher.mailbox import (
    Mail,
    MailboxController,
    MailboxProcessor,
    MailboxState,
    MailboxStateError,
)

from .conftest import TIMEOUT_S, on_another_thread


class BadCancel:
    """A future that cannot even be cancelled."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked = 0

    def __call__(self) -> None: ...

    def cancel(self) -> bool:
        self.asked += 1
        raise self.error


def complete(controller: MailboxController) -> None:
    controller.all_actions_completed()


@pytest.fixture
def processor() -> MailboxProcessor:
    return MailboxProcessor(complete)


def test_behind_mail_that_fails_in_a_drain_nothing_is_lost(processor: MailboxProcessor) -> None:
    """The rest was dropped: neither run nor given back by close, and its futures were never done."""
    log: list[str] = []
    processor.mailbox.put(Mail(lambda: 1 / 0, 0))
    for name in "ab":
        processor.mailbox.put(Mail(lambda name=name: log.append(name), 0, name))  # type: ignore[misc]
    future = processor.main_mailbox_executor.submit(lambda: log.append("c"))

    with pytest.raises(ZeroDivisionError):
        processor.drain()
    left = processor.mailbox.size()
    processor.close()

    assert left == 3
    assert future.cancelled()
    assert log == []


def test_close_ends_a_wait_for_the_futures_that_it_cancels(processor: MailboxProcessor) -> None:
    """concurrent.futures.wait waited for ever: the futures were cancelled, but their waiters were not notified."""
    future = processor.main_mailbox_executor.submit(lambda: 1)
    cancelled_before = processor.main_mailbox_executor.submit(lambda: 1)
    cancelled_before.cancel()

    processor.close()
    done, pending = concurrent.futures.wait([future, cancelled_before], timeout=TIMEOUT_S)

    assert done == {future, cancelled_before}
    assert not pending


def test_close_cancels_all_and_raises_the_first_error_with_the_others_as_notes(processor: MailboxProcessor) -> None:
    bad = [BadCancel(LookupError("first")), BadCancel(ValueError("second"))]
    processor.mailbox.put(Mail(bad[0], 0, "mail 1"))
    processor.mailbox.put(Mail(bad[1], 0, "mail 2"))
    future = processor.main_mailbox_executor.submit(lambda: 1)

    with pytest.raises(LookupError, match="first") as caught:
        processor.close()

    assert [each.asked for each in bad] == [1, 1]
    assert caught.value.__notes__ == ["and mail 2: ValueError('second')"]
    assert future.cancelled()


@pytest.mark.parametrize("end", [MailboxProcessor.prepare_close, MailboxProcessor.close])
def test_only_the_mailbox_thread_closes(processor: MailboxProcessor, end: Callable[[MailboxProcessor], None]) -> None:
    with pytest.raises(MailboxStateError, match="belongs to thread"):
        on_another_thread(lambda: end(processor))

    assert processor.mailbox.state is MailboxState.OPEN
