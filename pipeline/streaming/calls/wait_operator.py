"""The operator that calls a service for each record without waiting for it, after Flink's AsyncWaitOperator.

Threads: everything here belongs to the mailbox thread. Calls run on a CallHost, whose threads only append answers and
send a mail. Timers are mail, too. The operator waits in two places, and runs mail of its own priority there: when its
queue is full, and at the end of the input.

A record is in the queue from when it is taken in until its results have been given to `output`. Its call ends once:
answered, late, or failed; whatever comes afterwards is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Literal, TypeAlias

from dispatcher.mailbox import MailboxExecutor, MailboxTimeService, ProcessingTimeService
from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.call_path import DEFAULT_BATCH_SIZE
from pipeline.streaming.calls.element_queues import (
    OrderedStreamElementQueue,
    ResultFuture,
    StreamElementQueue,
    UnorderedStreamElementQueue,
)
from pipeline.streaming.calls.emission import Emission, OutputAvailability
from pipeline.streaming.calls.error_policy import DeadLetter, ErrorPolicy, OnError
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import make_host
from pipeline.streaming.calls.rate_limit import RateLimit, RateLimiter
from pipeline.streaming.calls.record_calls import RecordCalls
from pipeline.streaming.calls.retry import RetryStrategy
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark

OutputMode: TypeAlias = Literal["ordered", "unordered"]


class AsyncWaitOperator:
    """Calls `function` for each record, and emits its results in order or as they come; watermarks keep their place.

    `function`: an AsyncFunction, a coroutine function or a blocking one, for which the operator makes a host of its
        own; or a CallHost that runs already, and goes on when the operator is closed.
    `timeout_ms`: for a record with all its attempts, from when it is taken in; 0 is none, if there is no `retry`.
    `retries_at_end`: at the end of the input, Flink makes the retries that wait at once, and none after that; with this
        they are made in their time.
    `capacity`: how many elements are in the queue at most, watermarks and what is not emitted yet included.
    `read_ahead`: elements taken in beyond the capacity. At most `capacity` calls are under way all the same, and the
        next one starts the moment one has ended, not after a thread or two have been woken. A host that is given has
        to have `capacity` as its `max_calls` for that.
    `on_error`: what becomes of a record whose call has failed for good. "fail" fails the task, "drop" counts it,
        "capture" emits a CapturedError in its place, or gives it to `dead_letter` at once if there is one. A callable
        is given the CapturedError and returns results to emit, as a function does.
    `rate_limit`: a RateLimit holds for the operator, or with scope "worker" for all that share its host; a RateLimiter
        for all that share that.
    `concurrency`: calls under way at most, if fewer than `capacity`; with the batch form, batches.
    `dedupe_by`: value -> key. While a call for a key is under way, others of that key wait for its outcome. `remember`
        results of finished calls stay known, the last used, for `remember_ms` if that is given.
    `combine`: (value, results) -> results, for each record when it is complete, on the mailbox thread: what is shared
        by a key is then made the record's own. It is given what is captured, too, and the results of a timeout.
    `max_batch_size`, `linger_ms`: for the batch form: a batch goes when it is full, when its first member has waited
        that long, or when the queue is full. With 0 ms it goes as soon as other mail has run.
    `output_availability`: see OutputAvailability; records are emitted only while it gives None.
    """

    def __init__(
        self,
        function: AnyFunction[Any, Any] | CallHost,
        *,
        timeout_ms: int,
        mailbox_executor: MailboxExecutor,
        processing_time_service: ProcessingTimeService,
        output: Callable[[StreamElement[Any]], Any],
        capacity: int = 100,
        read_ahead: int = 0,
        output_mode: OutputMode = "ordered",
        retry: RetryStrategy | None = None,
        retries_at_end: bool = False,
        on_error: OnError = "fail",
        dead_letter: DeadLetter | None = None,
        rate_limit: RateLimit | RateLimiter | None = None,
        concurrency: int | None = None,
        dedupe_by: Callable[[Any], Any] | None = None,
        remember: int = 0,
        remember_ms: int | None = None,
        combine: Callable[[Any, Sequence[Any]], Sequence[Any]] | None = None,
        pool_size: int | None = None,
        max_batch_size: int | None = None,
        linger_ms: int = 0,
        metrics: CallMetrics | None = None,
        output_availability: OutputAvailability | None = None,
        name: str = "async wait",
    ) -> None:
        """Check the settings; nothing is started.

        Raises:
            ValueError: a number or a mode is not possible; the message names it. TypeError: `function` is none.
        """
        retries = retry is not None and retry.is_enabled()
        _check_settings(timeout_ms, retries, output_mode, concurrency, max_batch_size, linger_ms)
        if remember and dedupe_by is None:
            raise ValueError(f"remember is {remember}; results are remembered by a key, so give dedupe_by, too")
        self.name = name
        self.metrics = metrics if metrics is not None else CallMetrics()
        self._owns_host = not isinstance(function, CallHost)
        self._host = (
            function if isinstance(function, CallHost) else make_host(function, pool_size=pool_size, max_calls=capacity)
        )
        if not self._host.is_batch and (max_batch_size is not None or linger_ms):
            raise ValueError(
                f"max_batch_size is {max_batch_size} and linger_ms {linger_ms}, but {self._host.name} takes one value "
                "at a time. Give it an async_invoke_batch, or leave these out."
            )
        self._executor = mailbox_executor
        self._retries_at_end = retries_at_end
        self._timers = MailboxTimeService(processing_time_service, mailbox_executor)
        self._queue: StreamElementQueue[Any, Any] = (
            OrderedStreamElementQueue(capacity + read_ahead)
            if output_mode == "ordered"
            else UnorderedStreamElementQueue(capacity + read_ahead)
        )
        self._emission = Emission(self._queue, output, output_availability, mailbox_executor)
        self._calls = RecordCalls(
            self._host,
            mailbox_executor,
            self._timers,
            self._emission,
            ErrorPolicy(name, on_error, dead_letter, self.metrics),
            self.metrics,
            self._nothing_follows,
            timeout_ms=timeout_ms,
            retry=retry if retries else None,
            read_ahead=read_ahead,
            rate_limit=rate_limit,
            concurrency=concurrency,
            dedupe_by=dedupe_by,
            remember=remember,
            remember_ms=remember_ms,
            combine=combine,
            max_batch_size=max_batch_size or min(capacity, DEFAULT_BATCH_SIZE),
            linger_ms=linger_ms,
        )
        self._is_open = False  # from `open` until `close`
        self._is_closed = False
        self._has_ended = False  # the input
        self._restored: deque[StreamElement[Any]] = deque()  # not in the queue yet

    # ------------------------------------------------------------------------------------------------ life cycle

    def initialize_state(self, state: Iterable[StreamElement[Any]]) -> None:
        """Take up what `snapshot_state` gave, to be called for again by `open`. Call it before that."""
        if self._is_open or self._is_closed:
            raise RuntimeError(f"{self.name}: initialize_state comes before open, which has been called")
        self._restored = deque(state)

    def open(self) -> None:
        """Open the function, then take in what was restored; waits while the queue is full.

        Raises:
            Exception: what the function's `open` raised.
        """
        self._is_open = True
        if self._owns_host:
            self._host.start()
        restored = self._restored
        while restored:
            element = restored[0]  # it stays until it is in the queue: this may wait, and a snapshot be taken meanwhile
            if isinstance(element, Watermark):
                self.process_watermark(element)
            else:
                self.process_element(element)
            restored.popleft()

    def end_input(self) -> None:
        """Wait until all that was taken in is emitted. Waiting retries are made at once, and none after that, if the
        operator was not told to make `retries_at_end` as ever.
        """
        self._check_open()
        self._has_ended = True
        if not self._retries_at_end:
            self._calls.end_retries()
        self._calls.flush()
        while not self._queue.is_empty():
            self._executor.yield_()

    def close(self) -> None:
        """Give up the calls under way and close the function, if the host is this operator's. After a failure, too."""
        self._is_open, self._is_closed = False, True
        self._emission.stop()
        self._timers.quiesce()
        self._calls.close()
        if self._owns_host:
            self._host.stop()

    def snapshot_state(self) -> list[StreamElement[Any]]:
        """The elements that were taken in and are not emitted, in the queue's order: completed ones included."""
        return [*self._queue.values(), *self._restored]

    # ---------------------------------------------------------------------------------------------------- input

    def process_element(self, record: StreamRecord[Any]) -> None:
        """Start the call for a record. Waits while the queue is full, and runs mail meanwhile.

        Raises:
            RuntimeError: the operator is not open. AsyncOperatorError: a mail has failed.
        """
        if not self._is_open:
            self._check_open()
        entry = self._queue.try_put(record)
        if entry is None:
            entry = self._put_when_there_is_room(record)
        self._calls.make(record.value, entry)

    def process_watermark(self, watermark: Watermark) -> None:
        """Queue a watermark behind what was taken in before. Waits as `process_element` does."""
        self._check_open()
        if self._queue.try_put(watermark) is None:
            self._put_when_there_is_room(watermark)
        self._emission.run()

    def is_available(self) -> bool:
        """Whether the queue has room, so that the next element will not wait."""
        return not self._queue.is_full()

    def available_future(self) -> Future[None] | None:
        """None if there is room; else a future, completed on the mailbox thread, when an emission has made some."""
        room = self._emission.room()
        if room is not None:
            self._calls.flush()  # nothing will come that could fill the batch
        return room

    def _nothing_follows(self) -> bool:
        """No call will begin before another has ended."""
        return self._queue.is_full() or (self._has_ended and not self._calls.is_retrying())

    def _check_open(self) -> None:
        if not self._is_open:
            what = "it has been closed, make another one" if self._is_closed else "call open() first"
            raise RuntimeError(f"{self.name}: the operator is not open: {what}")

    def _put_when_there_is_room(self, element: StreamElement[Any]) -> ResultFuture[Any]:
        while (entry := self._queue.try_put(element)) is None:
            self._calls.flush()  # nothing will come that could fill the batch
            self._executor.yield_()
        return entry


def _check_settings(
    timeout_ms: int,
    retries: bool,
    output_mode: object,
    concurrency: int | None,
    max_batch_size: int | None,
    linger_ms: int,
) -> None:
    if timeout_ms < 0 or (retries and timeout_ms == 0):
        raise ValueError(f"timeout_ms is {timeout_ms}; it has to be positive" + (", as retries end with it" * retries))
    if output_mode not in ("ordered", "unordered"):
        raise ValueError(f'output_mode is {output_mode!r}; choose "ordered" or "unordered"')
    for name, number, least in (
        ("concurrency", concurrency, 1),
        ("max_batch_size", max_batch_size, 1),
        ("linger_ms", linger_ms, 0),
    ):
        if number is not None and number < least:
            raise ValueError(f"{name} is {number}; it has to be {least} or more")
