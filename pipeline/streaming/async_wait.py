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
from time import perf_counter_ns
from typing import Any, Literal, TypeAlias

from dispatcher.mailbox import MailboxExecutor, MailboxTimeService, ProcessingTimeService
from pipeline.streaming.call_host import AnswerBox, Call, CallHost
from pipeline.streaming.call_metrics import CallMetrics
from pipeline.streaming.call_path import DEFAULT_BATCH_SIZE, BatchCall, CallPath, RecordCall
from pipeline.streaming.deadlines import Deadlines
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.emission import Emission, OutputAvailability
from pipeline.streaming.error_policy import DeadLetter, ErrorPolicy, OnError
from pipeline.streaming.failures import RetryAfter
from pipeline.streaming.functions import AnyFunction, as_results
from pipeline.streaming.hosts import make_host
from pipeline.streaming.queues import (
    OrderedStreamElementQueue,
    ResultFuture,
    StreamElementQueue,
    UnorderedStreamElementQueue,
)
from pipeline.streaming.rate_limit import RateLimit, RateLimiter
from pipeline.streaming.retry import RetryStrategy
from pipeline.streaming.sharing import SharedCalls

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
        self._timeout_ms = timeout_ms
        self._errors = ErrorPolicy(name, on_error, dead_letter, self.metrics)
        self._retry = retry if retries else None
        self._retries_at_end = retries_at_end
        self._read_ahead = read_ahead
        self._timers = MailboxTimeService(processing_time_service, mailbox_executor)
        self._box = AnswerBox(mailbox_executor.execute, self._fetch_answers)
        self._queue: StreamElementQueue[Any, Any] = (
            OrderedStreamElementQueue(capacity + read_ahead)
            if output_mode == "ordered"
            else UnorderedStreamElementQueue(capacity + read_ahead)
        )
        self._emission = Emission(self._queue, output, output_availability, mailbox_executor)
        self._deadlines: Deadlines[RecordCall] = Deadlines(self._timers, timeout_ms, self._late)
        self._path = CallPath(
            self._host,
            self._box,
            mailbox_executor,
            self._timers,
            # The operator's own cost: limits are equal, and share a limiter, whatever their cost functions are.
            cost_of=_cost_of(rate_limit),
            limiter=self._host.limiter_for(rate_limit) if isinstance(rate_limit, RateLimit) else rate_limit,
            concurrency=concurrency,
            max_batch_size=max_batch_size or min(capacity, DEFAULT_BATCH_SIZE),
            linger_ms=linger_ms,
            nothing_follows=self._nothing_follows,
        )
        self._dedupe_by = dedupe_by
        self._combine = combine
        self._shared: SharedCalls[RecordCall, Any] = SharedCalls(remember, remember_ms)
        self._retrying: dict[RecordCall, None] = {}  # calls that wait for a retry, in the order of their failures
        self._under_way = 0  # attempts begun that have neither been answered nor given up
        self._is_open = False  # from `open` until `close`
        self._is_closed = False  # answers are for nobody
        self._has_ended = False  # the input
        self._is_ending = False  # the input has ended: no more retries
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
            self._is_ending = True
            retrying, self._retrying = self._retrying, {}
            for call in retrying:
                if call.retry_timer is not None:
                    call.retry_timer.cancel()
                self._make_again(call)
        self._path.flush()
        while not self._queue.is_empty():
            self._executor.yield_()

    def close(self) -> None:
        """Give up the calls under way and close the function, if the host is this operator's. After a failure, too."""
        self._is_open, self._is_closed = False, True
        self._emission.stop()
        self._timers.quiesce()
        self._path.close()
        for call in self._deadlines:
            call.is_done = True
            if call.retry_timer is not None:
                call.retry_timer.cancel()  # or the time service would keep it, and all of this, until then
            self._path.give_up(call)
        self.metrics.ended += self._under_way
        self._under_way = 0
        self._deadlines.clear()
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
        call = RecordCall(record.value, self._box, entry, perf_counter_ns())
        self._deadlines.add(call)
        if self._dedupe_by is None or self._leads(call):
            self._begin(call)

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
            self._path.flush()  # nothing will come that could fill the batch
        return room

    def _nothing_follows(self) -> bool:
        """No call will begin before another has ended."""
        return self._queue.is_full() or (self._has_ended and not self._retrying)

    def _check_open(self) -> None:
        if not self._is_open:
            what = "it has been closed, make another one" if self._is_closed else "call open() first"
            raise RuntimeError(f"{self.name}: the operator is not open: {what}")

    def _put_when_there_is_room(self, element: StreamElement[Any]) -> ResultFuture[Any]:
        while (entry := self._queue.try_put(element)) is None:
            self._path.flush()  # nothing will come that could fill the batch
            self._executor.yield_()
        return entry

    def _leads(self, call: RecordCall) -> bool:
        """Whether the call is to be made; if not, another one's outcome is or will be its own."""
        assert self._dedupe_by is not None
        call.key = self._dedupe_by(call.value)
        role, results = self._shared.join(call.key, call, self._timers.current_processing_time())
        if role == "lead":
            call.leads = True
            return True
        if role == "known":
            self.metrics.remembered += 1
            self.metrics.completed += 1
            self._complete(call, results or ())
            self._emission.run()
        else:
            self.metrics.shared += 1
        return False

    # --------------------------------------------------------------------------------------------------- answers

    def _fetch_answers(self) -> None:
        """The mail of the hosts."""
        box = self._box
        box.is_notified = False
        answers = box.answers
        if self._is_closed:
            answers.clear()
            return
        is_plain = self._retry is None and self._dedupe_by is None and self._combine is None
        metrics = self.metrics
        count_call_time, count_queue_wait = metrics.call_time.record_ns, metrics.queue_wait.record_ns
        try:
            while answers:
                call = answers.popleft()
                if type(call) is not RecordCall:
                    self._answered_batch(call)
                elif is_plain and type(call.results) is list and not call.is_done:
                    # What _answered comes to for most calls, without its calls of methods.
                    if call.is_counted:
                        self._path.ended(call)
                    self._under_way -= 1
                    metrics.ended += 1
                    metrics.completed += 1
                    count_call_time(call.ended_ns - call.started_ns)
                    if call.is_first:
                        count_queue_wait(call.started_ns - call.taken_ns)
                    call.is_done = True
                    call.entry.complete(call.results)
                else:
                    self._answered(call)
        finally:
            # One that failed the task must not take the others along: they are still answers.
            if answers and not box.is_notified:
                box.notify()
            self._emission.run()

    def _answered(self, call: RecordCall) -> None:
        if call.is_done:
            return
        if isinstance(call.error, RetryAfter):
            self._pause(call.error)  # before its end makes room for another
        if call.is_counted:
            self._path.ended(call)
        if call.is_returned:
            call.is_returned = False
            self._path.start(call)
            return
        self._ended(call)
        self.metrics.call_time.record_ns(call.ended_ns - call.started_ns)
        self._count_wait(call)
        self._settle(call)

    def _begin(self, call: RecordCall) -> None:
        call.is_begun = True
        self._under_way += 1
        self.metrics.calls += 1
        self._path.start(call)

    def _ended(self, call: RecordCall) -> None:
        call.is_begun = False
        self._under_way -= 1
        self.metrics.ended += 1

    def _count_wait(self, call: RecordCall) -> None:
        if call.is_first:
            call.is_first = False
            if self._read_ahead:
                call.prolonged_ms = min(call.waited_ms(), self._timeout_ms)
            self.metrics.queue_wait.record_ns(call.started_ns - call.taken_ns)

    def _answered_batch(self, call: Call) -> None:
        assert isinstance(call, BatchCall)
        if call.is_returned:
            self._path.submit_again(call)
            return
        members = call.hand_out()
        for member in members:
            if isinstance(member.error, RetryAfter):
                self._pause(member.error)
        self._path.ended(call)
        self.metrics.call_time.record_ns(call.ended_ns - call.started_ns)
        failure: BaseException | None = None
        for member in members:
            self._ended(member)
            self._count_wait(member)
            try:
                self._settle(member)
            except BaseException as error:  # fails the task; the others are answered all the same
                failure = failure or error
        if failure is not None:
            raise failure

    def _settle(self, call: RecordCall) -> None:
        """An attempt has been answered: make another one, or let this be the record's outcome."""
        error = call.error
        results: Sequence[Any] = ()
        if error is None:
            results = call.results
            if type(results) is not list:
                try:
                    results = as_results(results)
                except TypeError as refused:
                    error = call.error = refused
        if self._wants_another(call, results, error):
            due_ms = call.deadline_ms + call.prolonged_ms
            if self._timeout_ms > 0 and due_ms <= self._timers.current_processing_time():
                self._end_late([call])  # its time is over, though the timer has not fired yet
            elif isinstance(error, RetryAfter):
                self._start_again(call)
            else:
                self._retry_later(call)
        elif error is None:
            self._succeed(call, results)
        else:
            self._fail(call, error)

    def _succeed(self, call: RecordCall, results: Sequence[Any]) -> None:
        self.metrics.completed += 1
        self._complete(call, results)
        if call.leads:
            now_ms = self._timers.current_processing_time()
            for waiter in self._shared.finish(call.key, results, now_ms):
                self.metrics.completed += 1
                self._complete(waiter, results)

    def _complete(self, call: RecordCall, results: Sequence[Any]) -> None:
        call.is_done = True
        call.entry.complete(results if self._combine is None else self._combine(call.value, results))

    def _fail(self, call: RecordCall, error: BaseException) -> None:
        """The record's outcome is `error`, and that of those that share its call. Raises what fails the task."""
        failure: BaseException | None = None
        for failed in (call, *(self._shared.fail(call.key) if call.leads else ())):
            self.metrics.failed += 1
            try:
                self._complete(failed, self._errors.results_of(failed, error))
            except BaseException as raised:
                # Whatever waits for the queue goes on, and sees the failure.
                self._complete(failed, ())
                failure = failure or raised
        if failure is not None:
            raise failure

    # ---------------------------------------------------------------------------------------- retries and timeouts

    def _wants_another(self, call: RecordCall, results: Sequence[Any], error: BaseException | None) -> bool:
        """Whether the record's call is to be made again after this outcome of an attempt."""
        retry = self._retry
        if isinstance(error, RetryAfter):
            return True
        if retry is None or self._is_ending or not retry.can_retry(call.attempts):
            return False
        return retry.retries_error(error) if error is not None else retry.retries_result(results)

    def _pause(self, wanted: RetryAfter) -> None:
        self._path.pause(self._timers.current_processing_time() + wanted.delay_s * 1000)

    def _retry_later(self, call: RecordCall) -> None:
        assert self._retry is not None
        now_ms = self._timers.current_processing_time()
        self._retrying[call] = None
        call.retry_timer = self._timers.register_timer(
            now_ms + self._retry.backoff_ms(call.attempts), lambda _: self._retry_now(call)
        )

    def _retry_now(self, call: RecordCall) -> None:
        if call in self._retrying:
            del self._retrying[call]
            self._make_again(call)

    def _make_again(self, call: RecordCall) -> None:
        call.retry_timer = None
        call.attempts += 1
        self._start_again(call)

    def _start_again(self, call: RecordCall) -> None:
        call.prepare_again()
        self.metrics.retried += 1
        self._begin(call)

    def _late(self, calls: list[RecordCall]) -> None:
        """Their time is over. Nothing happens to those whose outcome has arrived, though nobody has fetched it."""
        self._end_late([call for call in calls if not self._has_outcome(call) and not self._prolong(call)])

    def _end_late(self, late: list[RecordCall]) -> None:
        for call in late:
            call.is_done = True  # all of them, before one makes room for another: whatever comes now is too late
        failure: BaseException | None = None
        for call in late:
            try:
                self._complete(call, self._results_of_late(call))
            except BaseException as error:
                self._complete(call, ())
                failure = failure or error
        self._emission.run()
        if failure is not None:
            raise failure

    def _results_of_late(self, call: RecordCall) -> Sequence[Any]:
        if call in self._retrying:
            del self._retrying[call]
            if call.retry_timer is not None:
                call.retry_timer.cancel()
        elif call.is_begun:
            self._path.give_up(call)
            self._ended(call)
        self.metrics.timed_out += 1
        self._hand_over(call)
        try:
            results = as_results(self._host.timeout(call.value, self._timeout_ms, call.attempts))
        except BaseException as error:
            self.metrics.failed += 1
            return self._errors.results_of(call, error)
        self.metrics.completed += 1
        return results

    def _prolong(self, call: RecordCall) -> bool:
        """One that was read ahead has its whole time from when its call was started, and not less for having waited."""
        if not self._read_ahead:
            return False
        now_ms = self._timers.current_processing_time()
        if call.is_first and self._path.is_direct:
            # Those before it end within a timeout, so one that has waited longer waits for something that hangs.
            waited_ms = call.waited_ms() if call.started_ns else self._timeout_ms
            call.prolonged_ms = min(waited_ms, self._timeout_ms)
        if call.deadline_ms + call.prolonged_ms <= now_ms:
            return False
        self._timers.register_timer(
            call.deadline_ms + call.prolonged_ms, lambda _: None if call.is_done else self._late([call])
        )
        return True

    def _has_outcome(self, call: RecordCall) -> bool:
        """Whether an answer has arrived that ends the record. One that leads to another attempt does not."""
        if call.batch is not None:
            return call.batch.ended_ns != 0
        if not call.ended_ns or isinstance(call.error, RetryAfter):
            return False
        retry = self._retry
        if retry is None or self._is_ending:
            return True
        if call.error is not None:
            return not (retry.can_retry(call.attempts) and retry.retries_error(call.error))
        results = call.results if isinstance(call.results, list) else (call.results,)
        return not (retry.can_retry(call.attempts) and retry.retries_result(results))

    def _hand_over(self, call: RecordCall) -> None:
        """A late call shares nothing any more; one that others wait for is followed by another."""
        if self._dedupe_by is None:
            return
        if not call.leads:
            self._shared.unjoin(call.key, call)
            return
        following = self._shared.abandon(call.key)
        while following is not None and following.is_done:  # late with this one: it needs no call of its own
            following = self._shared.abandon(call.key)
        if following is not None:
            following.leads = True
            self._begin(following)


def _cost_of(rate_limit: RateLimit | RateLimiter | None) -> Callable[[Any], float]:
    if rate_limit is None:
        return lambda _: 1.0
    return (rate_limit.limit if isinstance(rate_limit, RateLimiter) else rate_limit).cost_of


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
