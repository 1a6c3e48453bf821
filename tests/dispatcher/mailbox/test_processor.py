"""The loop, its steps, and how it is suspended and completed.

Examples of what test_processor_model.py compares with a model, what has gone wrong, and what only one thread may do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dispatcher.mailbox import MIN_PRIORITY, MailboxClosedError, MailboxController, MailboxProcessor, MailboxStateError

from .conftest import TIMEOUT_S, Action, do_nothing, on_another_thread


def stay(controller: MailboxController) -> None:
    """A turn that has something to do, so that the next one comes at once."""


# -- the loop --------------------------------------------------------------------------------------------------------


def test_mail_that_sends_mail_does_not_starve_the_default_action(processor: MailboxProcessor, action: Action) -> None:
    """FLINK-14304: a mail that always sent another one kept the input from being processed."""

    def send_another() -> None:
        action.log.append("mail")
        processor.main_mailbox_executor.execute(send_another)

    action.turns = [stay, stay, lambda _: processor.all_actions_completed()]
    send_another()

    processor.run_mailbox_loop()

    assert action.log == ["mail", "mail", "action", "mail", "action", "mail", "action"]


def test_the_loop_runs_on_the_mailbox_thread_only(processor: MailboxProcessor, action: Action) -> None:
    for run in (processor.run_mailbox_loop, processor.run_mailbox_step, processor.run_single_mailbox_loop):
        with pytest.raises(MailboxStateError, match="on the mailbox thread only"):
            on_another_thread(run)

    assert action.log == []


@pytest.mark.parametrize("end", [MailboxProcessor.prepare_close, MailboxProcessor.close])
def test_the_loop_runs_while_the_mailbox_is_open_only(
    processor: MailboxProcessor, action: Action, end: Callable[[MailboxProcessor], None]
) -> None:
    """The loop raised a different error from the documented one."""
    end(processor)

    for run in (processor.run_mailbox_loop, processor.run_mailbox_step, processor.run_single_mailbox_loop):
        with pytest.raises(MailboxClosedError, match=r"cannot run the mailbox loop: the mailbox is (QUIESCED|CLOSED)"):
            run()

    assert action.log == []


# -- suspending and completing the loop --------------------------------------------------------------------------------


def test_completion_is_for_ever(processor: MailboxProcessor, action: Action) -> None:
    """A single step once ran mail after the completion, which a run of the loop did not."""
    action.turns = [lambda _: on_another_thread(processor.all_actions_completed)]
    processor.run_mailbox_loop()
    action.mail(processor, "late")

    processor.run_mailbox_loop()
    stepped = [processor.run_mailbox_step(), processor.run_single_mailbox_loop()]

    assert stepped == [False, False]
    assert action.log == ["action"]
    assert not processor.is_mailbox_loop_running()


def test_a_reported_error_is_raised_in_the_loop_before_other_mail(processor: MailboxProcessor, action: Action) -> None:
    error = LookupError("lost")
    action.mail(processor, "before")
    on_another_thread(lambda: processor.report_throwable(error))

    with pytest.raises(LookupError) as caught:
        processor.run_mailbox_loop()

    assert caught.value is error
    assert action.log == []


# -- single steps ----------------------------------------------------------------------------------------------------


def test_mail_that_sends_mail_can_be_suspended_while_the_default_action_is(
    processor: MailboxProcessor, action: Action
) -> None:
    """Without a default action to come back to, only mail can end the loop: it must get through."""

    def send_another() -> None:
        action.log.append("mail")
        processor.main_mailbox_executor.execute(send_another)
        if len(action.log) == 5:
            on_another_thread(processor.suspend)

    processor.run_mailbox_step()
    action.log.clear()
    send_another()

    processor.run_mailbox_loop()

    assert action.log == ["mail"] * 5


# -- suspending and resuming the default action ------------------------------------------------------------------------


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


# -- idle: the default action has nothing to do, there is no mail, and more may come -----------------------------------


def test_executors_say_whether_the_processor_is_idle_but_for_the_main_one(processor: MailboxProcessor) -> None:
    executors = [processor.mailbox_executor(0), processor.mailbox_executor(7), processor.main_mailbox_executor]
    before = [each.is_idle() for each in executors]
    processor.run_mailbox_step()
    suspended = [each.is_idle() for each in executors]
    processor.main_mailbox_executor.execute(do_nothing)

    assert (before, suspended) == ([False] * 3, [True, True, False])
    assert not any(each.is_idle() for each in executors)
    assert processor.main_mailbox_executor.priority == MIN_PRIORITY


# -- many threads ----------------------------------------------------------------------------------------------------
