"""Rules C3 of the reference: idle means that the default action has nothing to do, there is no mail, and more may come.

And whether the mailbox thread waits, which others may ask.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from dispatcher.mailbox import MIN_PRIORITY, MailboxProcessor

from .conftest import TIMEOUT_S, Action, announce_waits, do_nothing


def is_idle(processor: MailboxProcessor) -> list[bool]:
    """What the processor and its executors say."""
    return [processor.is_idle(), processor.mailbox_executor(0).is_idle(), processor.mailbox_executor(7).is_idle()]


def test_a_suspended_default_action_without_mail_is_idle(processor: MailboxProcessor) -> None:
    before = is_idle(processor)
    processor.run_mailbox_step()
    suspended = is_idle(processor)
    processor.main_mailbox_executor.execute(do_nothing)

    assert (before, suspended, is_idle(processor)) == ([False] * 3, [True] * 3, [False] * 3)


def test_the_main_executor_knows_no_processor_and_is_never_idle(processor: MailboxProcessor) -> None:
    processor.run_mailbox_step()

    assert processor.main_mailbox_executor.priority == MIN_PRIORITY
    assert not processor.main_mailbox_executor.is_idle()


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
