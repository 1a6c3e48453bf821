"""Rules C3 of the reference: idle means that the default action has nothing to do, there is no mail, and more may come.

And whether the mailbox thread waits, which others may ask.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from dispatcher.mailbox import MIN_PRIORITY, MailboxProcessor, MailOptions

from .conftest import TIMEOUT_S, Action, announce_waits, do_nothing, on_another_thread


@pytest.fixture
def suspended(processor: MailboxProcessor) -> MailboxProcessor:
    """A processor whose default action has suspended itself."""
    processor.run_mailbox_step()
    return processor


def is_idle(processor: MailboxProcessor) -> bool:
    """What the processor and its executors say: the same."""
    answers = {processor.is_idle(), processor.mailbox_executor(0).is_idle(), processor.mailbox_executor(7).is_idle()}
    assert len(answers) == 1
    return answers.pop()


def test_a_suspended_default_action_without_mail_is_idle(suspended: MailboxProcessor) -> None:
    assert is_idle(suspended)


def test_an_available_default_action_is_not_idle(processor: MailboxProcessor) -> None:
    assert not is_idle(processor)


@pytest.mark.parametrize("options", [MailOptions.DEFAULT, MailOptions.URGENT, MailOptions.DEFERRABLE])
@pytest.mark.parametrize("batched", [False, True])
def test_with_mail_of_any_kind_nothing_is_idle(
    suspended: MailboxProcessor, options: MailOptions, batched: bool
) -> None:
    suspended.main_mailbox_executor.execute(do_nothing, options=options)
    if batched:
        suspended.mailbox.create_batch()

    assert not is_idle(suspended)


def test_with_the_last_mail_gone_it_is_idle_again(suspended: MailboxProcessor) -> None:
    suspended.main_mailbox_executor.execute(do_nothing)

    suspended.run_mailbox_step()

    assert is_idle(suspended)


def test_a_mail_may_find_its_processor_idle(suspended: MailboxProcessor) -> None:
    seen: list[bool] = []
    suspended.main_mailbox_executor.execute(lambda: seen.append(is_idle(suspended)))

    suspended.run_mailbox_step()

    assert seen == [True]


@pytest.mark.parametrize("call", [lambda resume: resume(), on_another_thread], ids=["mailbox thread", "another"])
def test_a_resumed_default_action_is_not_idle(
    suspended: MailboxProcessor, action: Action, call: Callable[[Callable[[], None]], None]
) -> None:
    """From another thread the resume is a mail, so it is not idle at once either."""
    call(action.suspensions[0].resume)

    assert not is_idle(suspended)


@pytest.mark.parametrize("end", [MailboxProcessor.prepare_close, MailboxProcessor.close])
def test_a_processor_that_takes_no_more_mail_is_not_idle(
    suspended: MailboxProcessor, end: Callable[[MailboxProcessor], None]
) -> None:
    end(suspended)

    assert not is_idle(suspended)


def test_the_main_executor_knows_no_processor_and_is_never_idle(suspended: MailboxProcessor) -> None:
    assert suspended.main_mailbox_executor.priority == MIN_PRIORITY
    assert not suspended.main_mailbox_executor.is_idle()


def test_others_see_whether_the_mailbox_thread_waits(action: Action) -> None:
    with ThreadPoolExecutor(1) as pool:
        processor = pool.submit(MailboxProcessor, action).result(TIMEOUT_S)
        waiting = announce_waits(processor.mailbox)
        before = processor.mailbox.parking.is_waiting()
        loop = pool.submit(processor.run_mailbox_loop)
        assert waiting.wait(TIMEOUT_S)

        during = processor.mailbox.parking.is_waiting()
        processor.suspend()
        loop.result(TIMEOUT_S)

    assert (before, during, processor.mailbox.parking.is_waiting()) == (False, True, False)


def test_a_mailbox_thread_that_was_woken_does_not_wait(action: Action) -> None:
    seen: list[bool] = []
    with ThreadPoolExecutor(1) as pool:
        processor = pool.submit(MailboxProcessor, action).result(TIMEOUT_S)
        waiting = announce_waits(processor.mailbox)
        loop = pool.submit(processor.run_mailbox_loop)
        assert waiting.wait(TIMEOUT_S)

        processor.main_mailbox_executor.execute(
            lambda: (seen.append(processor.mailbox.parking.is_waiting()), processor.suspend())
        )
        loop.result(TIMEOUT_S)

    assert seen == [False]
