"""Rules C4 of the reference: suspending and resuming the default action."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dispatcher.mailbox import MailboxController, MailboxProcessor, MailboxStateError

from .conftest import TIMEOUT_S, Action, on_another_thread


@pytest.mark.parametrize("call", [lambda resume: resume(), on_another_thread], ids=["mailbox thread", "another"])
def test_a_resumed_default_action_runs_again(
    processor: MailboxProcessor, action: Action, call: Callable[[Callable[[], None]], None]
) -> None:
    action.turns = [action.suspend, lambda _: processor.all_actions_completed()]
    processor.run_mailbox_step()

    call(action.suspensions[0].resume)
    processor.run_mailbox_loop()

    assert action.log == ["action", "action"]


def test_a_suspended_default_action_cannot_be_suspended_again(processor: MailboxProcessor, action: Action) -> None:
    action.turns = [lambda controller: (action.suspend(controller), action.suspend(controller))]

    with pytest.raises(MailboxStateError, match="suspended already"):
        processor.run_mailbox_step()


def test_only_the_mailbox_thread_suspends_the_default_action(processor: MailboxProcessor, action: Action) -> None:
    action.turns = [lambda controller: on_another_thread(controller.suspend_default_action)]

    with pytest.raises(MailboxStateError, match="by the mailbox thread only"):
        processor.run_mailbox_step()

    assert processor.is_default_action_available()


def test_no_resume_is_lost_among_many_threads(processor: MailboxProcessor, action: Action) -> None:
    """Each turn suspends itself, and all threads resume what they find: the loop gets through all turns."""
    turns, threads = 300, 4
    suspended = threading.Semaphore(0)

    def suspend(controller: MailboxController) -> None:
        action.suspend(controller)
        suspended.release(threads)

    def resume_each() -> None:
        for _ in range(turns):
            assert suspended.acquire(timeout=TIMEOUT_S)
            action.suspensions[-1].resume()

    action.turns = [suspend] * turns + [lambda controller: controller.all_actions_completed()]
    with ThreadPoolExecutor(threads) as pool:
        resumers = [pool.submit(resume_each) for _ in range(threads)]

        processor.run_mailbox_loop()

        for resumer in resumers:
            resumer.result(TIMEOUT_S)

    assert action.log == ["action"] * (turns + 1)
