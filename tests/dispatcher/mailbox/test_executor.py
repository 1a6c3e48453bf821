"""Rules C3 of the reference: executors send commands to the mailbox, and let its thread run them while it waits."""

from __future__ import annotations

import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from dispatcher.mailbox import (
    MIN_PRIORITY,
    MailboxClosedError,
    MailboxExecutor,
    MailboxStateError,
    MailOptions,
    RejectedExecutionError,
    TaskMailbox,
)

from .conftest import TIMEOUT_S, announce_waits, do_nothing, mail, on_another_thread


@pytest.fixture
def executor(mailbox: TaskMailbox) -> MailboxExecutor:
    return MailboxExecutor(mailbox, 1)


@pytest.fixture
def log() -> list[Any]:
    return []


each_yield = pytest.mark.parametrize("yield_once", [MailboxExecutor.yield_, MailboxExecutor.try_yield])

# -- execute ---------------------------------------------------------------------------------------------------------


def test_a_command_becomes_a_mail_of_the_executors_priority(mailbox: TaskMailbox, executor: MailboxExecutor) -> None:
    executor.execute(do_nothing, "about %d and %s", 1, "two", options=MailOptions.URGENT)

    taken = mailbox.take(MIN_PRIORITY)
    assert taken.runnable is do_nothing
    assert taken.priority == executor.priority == 1
    assert taken.description == "about 1 and two"
    assert taken.is_urgent


@pytest.mark.parametrize("end", [TaskMailbox.quiesce, TaskMailbox.close])
@pytest.mark.parametrize("method", ["execute", "submit"])
def test_once_the_mailbox_is_not_open_commands_are_rejected(
    mailbox: TaskMailbox, executor: MailboxExecutor, end: Callable[[TaskMailbox], Any], method: str
) -> None:
    """The message once showed the description's format, with the values left out."""
    end(mailbox)

    with pytest.raises(RejectedExecutionError, match=r"^timer of 12 ms was rejected: .*the mailbox is ") as caught:
        getattr(executor, method)(do_nothing, "timer of %s ms", 12)

    assert isinstance(caught.value.__cause__, MailboxClosedError)
    assert mailbox.size() == 0


def test_a_rejected_command_without_a_description_is_named(mailbox: TaskMailbox, executor: MailboxExecutor) -> None:
    mailbox.close()

    with pytest.raises(RejectedExecutionError, match=r"do_nothing.* was rejected"):
        executor.as_executor().submit(do_nothing)


# -- submit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LookupError("lost"), SystemExit(3), GeneratorExit(), CancelledError()])
def test_an_error_of_a_submitted_command_goes_to_its_future_only(
    executor: MailboxExecutor, error: BaseException
) -> None:
    def leave() -> None:
        raise error

    future = executor.submit(leave)

    executor.yield_()

    assert future.exception(0) is error


def test_ctrl_c_in_a_submitted_command_ends_the_loop_of_the_main_thread_as_well(executor: MailboxExecutor) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    future = executor.submit(interrupt)

    with pytest.raises(KeyboardInterrupt):
        executor.yield_()

    assert isinstance(future.exception(0), KeyboardInterrupt)


async def _coroutine() -> None: ...


def _generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("command", [_coroutine, _generator, partial(_coroutine)])
def test_a_submitted_command_that_runs_nothing_is_an_error(executor: MailboxExecutor, command: Any) -> None:
    futures = [executor.submit(command), executor.as_executor().submit(command)]

    executor.yield_()
    executor.yield_()

    assert all("calling it ran nothing" in str(future.exception(0)) for future in futures)


def test_a_command_is_not_run_once_its_future_or_its_mail_is_cancelled(
    mailbox: TaskMailbox, executor: MailboxExecutor, log: list[Any]
) -> None:
    first, second = (executor.submit(lambda: log.append("ran")) for _ in range(2))
    first.cancel()
    executor.yield_()
    taken = mailbox.take(MIN_PRIORITY)

    cancelled = [taken.try_cancel(), taken.try_cancel()]
    taken.run()

    assert cancelled == [True, True]
    assert second.cancelled()
    assert log == []


def test_as_executor_passes_arguments_on(executor: MailboxExecutor) -> None:
    future = executor.as_executor().submit(divmod, 7, 2)
    keywords = executor.as_executor().submit(sorted, [1, 2], reverse=True)

    executor.yield_()
    executor.yield_()

    assert future.result(0) == (3, 1)
    assert keywords.result(0) == [2, 1]


# -- yield -----------------------------------------------------------------------------------------------------------


@each_yield
def test_a_yield_runs_one_mail_of_its_priority_or_a_higher_one(
    mailbox: TaskMailbox, executor: MailboxExecutor, log: list[Any], yield_once: Callable[[MailboxExecutor], Any]
) -> None:
    for priority in (0, 2, 1):
        MailboxExecutor(mailbox, priority).execute(lambda priority=priority: log.append(priority))  # type: ignore[misc]

    yield_once(executor)
    after_one = list(log)
    yield_once(executor)

    assert after_one == [2]
    assert log == [2, 1]
    assert not executor.try_yield()
    assert MailboxExecutor(mailbox, 0).try_yield()
    assert log == [2, 1, 0]


def test_a_yield_waits_for_mail() -> None:
    with ThreadPoolExecutor(1) as pool:
        mailbox = pool.submit(TaskMailbox).result(TIMEOUT_S)
        executor = MailboxExecutor(mailbox, 1)
        waiting = announce_waits(mailbox)
        yielded = pool.submit(executor.yield_)
        assert waiting.wait(TIMEOUT_S)

        future = executor.submit(lambda: threading.get_ident())

        yielded.result(TIMEOUT_S)
        assert future.result(0) != threading.get_ident()


@each_yield
def test_a_yield_raises_the_mail_s_error_and_is_for_the_thread_of_a_mailbox_that_is_not_closed(
    mailbox: TaskMailbox, executor: MailboxExecutor, yield_once: Callable[[MailboxExecutor], Any]
) -> None:
    executor.execute(lambda: 1 / 0)

    with pytest.raises(MailboxStateError, match="belongs to thread"):
        on_another_thread(lambda: yield_once(executor))
    with pytest.raises(ZeroDivisionError):
        yield_once(executor)
    mailbox.close()
    with pytest.raises(MailboxClosedError):
        yield_once(executor)


# -- looking ---------------------------------------------------------------------------------------------------------


def test_work_should_be_interrupted_while_mail_waits(mailbox: TaskMailbox, executor: MailboxExecutor) -> None:
    before = executor.should_interrupt()
    mailbox.put(mail("of any priority", MIN_PRIORITY))

    assert not before
    assert executor.should_interrupt()
