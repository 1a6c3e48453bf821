"""What an event brings along for its handling."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextvars import Context
from typing import Any, Literal, Protocol

from dispatcher.errors import EventDiscardedError, JournalError
from dispatcher.util.foreign import tell

log = logging.getLogger("dispatcher.async_dispatcher")

DropReason = Literal["stop", "drop_oldest", "superseded"]


class Repeated(Protocol):
    """What is posted again and again, but not while its last event waits."""

    is_queued: bool


class RecoveredFiring:
    """The event of a `post_every` with a key that an earlier run has posted, and not handled."""

    def __init__(self) -> None:
        self.is_queued = True  # the handler thread, or one that discards the event, resets it


class Behind(Protocol):
    """The events that wait behind one that is retrying."""

    def let_go(self) -> None:
        """The event that was retrying has ended: let those behind it go on. Handler thread."""

    def let_go_soon(self) -> None:
        """As `let_go`. Any thread."""


class Delivery:
    """What travels with an event that is more than posted. Never changes; any thread."""

    __slots__ = ("ask", "attempt", "behind", "context", "is_redelivered", "order", "scheduled")

    def __init__(
        self,
        ask: Ask | None = None,
        *,
        scheduled: Repeated | None = None,
        attempt: int = 1,
        context: Context | None = None,
        behind: Behind | None = None,
        is_redelivered: bool = False,
        order: float = 0,
    ) -> None:
        self.ask = ask  # the future that its caller waits for
        self.scheduled = scheduled  # whose firing it is
        self.attempt = attempt  # 2: the handler has failed once
        self.behind = behind  # those that wait behind this event, which is retrying
        self.context = context  # of the post, for the handler; None: its class does not keep it
        self.is_redelivered = is_redelivered  # an earlier run has accepted it, or it was a dead letter
        self.order = order  # its place among the accepted seqs, over its attempts and restarts; 0: its accepted seq

    def again(self, behind: Behind | None, order: float) -> Delivery:
        """For the next attempt, with those that wait behind the event."""
        return Delivery(
            self.ask,
            attempt=self.attempt + 1,
            context=self.context,
            behind=behind,
            is_redelivered=self.is_redelivered,
            order=order,
        )

    def in_context(self, context: Context) -> Delivery:
        return Delivery(
            self.ask,
            scheduled=self.scheduled,
            attempt=self.attempt,
            context=context,
            is_redelivered=self.is_redelivered,
            order=self.order,
        )

    def begin(self) -> bool:
        """The event is about to be handled; False if its caller has withdrawn it. The thread that handles it."""
        if self.scheduled is not None:
            self.scheduled.is_queued = False
        return self.attempt > 1 or self.ask is None or self.ask.claim()

    def discard(self, reason: DropReason) -> None:
        """The event was accepted, and will never be handled."""
        if self.scheduled is not None:
            self.scheduled.is_queued = False
        if self.behind is not None:
            self.behind.let_go_soon()
        if self.ask is not None:
            self.ask.discard(reason)


class AskOwner(Protocol):
    """The asks of one dispatcher. Any thread."""

    name: str

    def forget(self, ask: Ask) -> None:
        """It is done."""

    def settle(self, accepted_seq: int, *, now: bool = False) -> None:
        """Record in the log that the event will never be handled; 0: it is not there.

        `now`: on return, that is as durable as a post. Raises JournalError: it is not.
        """

    def check_wait(self) -> None:
        """Raises AskError if the caller, by waiting, keeps the handler from running; ForkedProcessError: as a post."""


class Withdrawable(Future[Any]):
    """The future of an event that its caller may withdraw until a thread has claimed it. Any thread.

    A claim does not take the future's lock. A signal handler may interrupt the thread that holds that, and post; and
    the post waits for the thread that claims.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name  # of the dispatcher; never changes
        # One item, until a thread claims it to go on with the event, or `cancel` to withdraw the event.
        self._claim: list[None] = [None]

    def claim(self) -> bool:
        """From now on the caller cannot withdraw the event; False if it has."""
        try:
            self._claim.pop()
        except IndexError:
            return False
        return True

    def cancel(self) -> bool:
        """Withdraw the event, unless it was claimed; returns whether it was withdrawn.

        In write-ahead mode, that is as durable as a post when this returns.

        Raises:
            JournalError: it is withdrawn, but the journal cannot be written, so the next start may handle it.
        """
        if not self.claim() or not super().cancel():
            return self.cancelled()
        try:
            self._withdraw()
        finally:
            self._notify_cancel()
        return True

    def _notify_cancel(self) -> None:
        try:
            self.set_running_or_notify_cancel()  # for `concurrent.futures.wait`
        except Exception as error:  # of a callback of the future
            message, fields = "%s: a callback of a cancelled future failed", {"dispatcher": self._name}
            tell(log, logging.ERROR, message, self._name, error=error, extra=fields)

    def _withdraw(self) -> None:
        """The caller has withdrawn the event. Raises JournalError, as `cancel`."""


class OnItsWay(Protocol):
    """The event of an ask on its way into the log. Any thread."""

    def withdraw(self) -> None:
        """Leave it out or, if it is being written, wait until it is there."""


class Ask(Withdrawable):
    """The future of an ask. Any thread."""

    def __init__(self, owner: AskOwner) -> None:
        super().__init__(owner.name)
        self._owner = owner  # never changes
        self._accepted_seq = 0  # the journal's writer sets it, before the event is queued; any thread reads
        self.on_its_way: OnItsWay | None = None  # into the log; the thread that asks sets it, before it returns

    def logged(self, accepted_seq: int) -> None:
        """The event is in the write-ahead log. The journal's writer."""
        self._accepted_seq = accepted_seq
        if self.cancelled():  # `cancel` sees the seq, or this sees the cancellation
            self._owner.settle(accepted_seq)

    def _withdraw(self) -> None:
        try:
            if self.on_its_way is not None:
                self.on_its_way.withdraw()
            # Now, not once the handler thread comes to it: a crash or a stop before that leaves it to the next start.
            self._owner.settle(self._accepted_seq, now=True)
        finally:
            self._owner.forget(self)

    def result(self, timeout: float | None = None) -> Any:
        """As in Future. A timeout withdraws the event, if its handling has not begun.

        Raises:
            AskError: the wait would never end, because the caller keeps the handler from running.
        """
        try:
            return self._wait(super().result, timeout)
        finally:
            del self  # the traceback of the error that is raised refers to this frame

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `result`, but returns the handler's error instead of raising it; None: the handler returned."""
        error: BaseException | None = self._wait(super().exception, timeout)
        return error

    def answer(self, value: Any, error: BaseException | None) -> None:
        """What the handler returned or, unless None, raised. Raises nothing, whatever a callback raises."""
        self._owner.forget(self)
        try:
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)
        except InvalidStateError:  # a stop has given up on it
            pass
        except BaseException as raised:  # of a callback that ends its thread
            name = self._owner.name
            tell(log, logging.ERROR, "%s: a callback of an ask failed", name, error=raised, extra={"dispatcher": name})

    def discard(self, reason: DropReason) -> None:
        """The event was accepted, and will never be handled."""
        self.answer(None, EventDiscardedError(self._owner.name, reason))

    def _wait(self, wait: Callable[[float | None], Any], timeout: float | None) -> Any:
        if not self.done():
            self._owner.check_wait()
        try:
            return wait(timeout)
        except TimeoutError:
            if not self.done():  # otherwise it is the handler's
                with contextlib.suppress(JournalError):  # which the journal has reported
                    self.cancel()
            raise
        finally:
            del self, wait  # as in `result`
