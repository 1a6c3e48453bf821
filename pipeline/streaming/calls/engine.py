"""The records of one operator, from their intake to the emission of their results.

A record is in the queue until its results are emitted. Its call ends once: answered, late or failed. Its outcome then
goes to its entry in the queue, and later events for it are ignored.

Threads: an engine belongs to one thread, which runs its mail and its timers. That is the thread of the function's own
asyncio loop (`LoopThread`), where the end of a coroutine reaches the engine in the loop's next turn; or the mailbox
thread of a StreamTask, to which the answers of a host come as mail. What other threads bring comes as mail in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, TypeVar

from dispatcher.errors import RejectedExecutionError
from dispatcher.util.foreign import is_instance
from pipeline.streaming.cache.session import CacheRequest, FoundResults
from pipeline.streaming.cache.store import ResultKey
from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.call_path import CallPath, HostSlots
from pipeline.streaming.calls.element_queues import (
    OrderedStreamElementQueue,
    StreamElementQueue,
    UnorderedStreamElementQueue,
)
from pipeline.streaming.calls.emission import Emission, Emitted, OutputAvailability
from pipeline.streaming.calls.functions import as_results
from pipeline.streaming.calls.hosts.call_host import AnswerBox, CallHost, HostCall
from pipeline.streaming.calls.lateness import Bound, Lateness
from pipeline.streaming.calls.record_call import BatchCall, RecordCall
from pipeline.streaming.calls.room import GrowingRoom
from pipeline.streaming.calls.sharing import SharedCalls
from pipeline.streaming.calls.thread import CallTimers, EngineMailbox
from pipeline.streaming.elements import UnreadableValue, Watermark
from pipeline.streaming.errors import (
    AsyncOperatorError,
    AsyncTimeoutError,
    CapturedError,
    ResultCacheError,
    RetryAfter,
)
from pipeline.streaming.keys import canonical_keys
from pipeline.streaming.options import AsyncOptions

T = TypeVar("T")


class Engine:
    """Takes records in, makes their calls, and emits their results.

    `mail`, `timers`: of the thread that owns the engine. `output` gets each record and watermark. With `emits`
    "results" or "records", which exclude watermarks, it gets lists of the results of several values, or of pairs of a
    value's element and its results. `name`: the operator's name in messages.
    `output_availability`: see OutputAvailability.
    """

    def __init__(
        self,
        host: CallHost,
        mail: EngineMailbox,
        timers: CallTimers,
        options: AsyncOptions,
        output: Callable[..., Any],
        metrics: CallMetrics,
        name: str,
        *,
        emits: Emitted = "elements",
        output_availability: OutputAvailability | None = None,
    ) -> None:
        self._host = host
        self._mail = mail
        self._timers = timers
        self._options = options
        self._metrics = metrics
        self._name = name
        queue = OrderedStreamElementQueue if options.output_mode == "ordered" else UnorderedStreamElementQueue
        self.queue: StreamElementQueue[Any, Any] = queue(options.first_records(host.is_batch) + options.read_ahead)
        """The records taken in and not emitted, and the watermarks between them."""
        self.emission: Emission = Emission(self.queue, output, output_availability, mail, emits=emits)
        self._room = GrowingRoom.of(self.queue, options, host)  # None: a given capacity
        self._box = AnswerBox(mail, self._fetch_answers)
        self._session = host.result_session  # of the cache; None without a cache
        self._attempts = metrics  # counts attempts begun and ended, in its `calls` and `ended`
        if self._session is not None:
            self._session.on_failure(self._fail_by_cache)
            self._attempts = CallMetrics()
        metrics.attempts = None if self._attempts is metrics else self._attempts
        self._asked: dict[CacheRequest, RecordCall] = {}  # of the cache, without an answer yet
        self._key_of = None if self._session is None else self._session.key_of
        if options.dedupe_by is not None:
            self._key_of = canonical_keys(options.dedupe_by)
        self._combine = options.combine
        self._shared: SharedCalls[RecordCall, Any] = SharedCalls(options.remember, options.remember_ms)
        self._retry = options.enabled_retry
        self._retrying: dict[RecordCall, None] = {}  # wait for their next attempt, in order of failure
        self._retries_have_ended = False
        slots = HostSlots.of(host, options)
        self._host_may_hold = slots.may_wait
        late = self._lateness = Lateness(timers, options, slots, self._shared, self._has_outcome, self._end_late)
        self._path = CallPath(host, self._box, mail, timers, options, self._nothing_follows, self._attempts, late.sent)
        self._under_way = 0  # attempts begun and neither answered nor given up
        self._has_all = False  # the input has ended
        self._is_closed = False  # answers are ignored

    # -- the operator's side

    def try_take(self, value: Any, element: Any) -> bool:
        """Take a record in and start its call; False if the queue is full. `element`: what the queue keeps for it."""
        if self.queue.is_full():
            return False
        self.take(((value, element),))
        return True

    def room(self, wanted: int) -> int:
        """How many of so many records to take in at once. With keys one by one, because known results come at once."""
        return min(max(0, self.queue.capacity - self.queue.size()), wanted if self._key_of is None else 1)

    def take(self, records: Iterable[tuple[Any, Any]]) -> None:
        """Take records in, each with its element, and start their calls. The queue has room for them."""
        put, box, now_ns = self.queue.put_record, self._box, perf_counter_ns()
        calls: list[RecordCall] = []
        unreadable: list[RecordCall] = []
        for value, element in records:
            call = RecordCall(value, box, put(element), now_ns)
            (unreadable if type(value) is UnreadableValue else calls).append(call)
        if self._options.deadline_ms is not None:
            self._lateness.take_in(calls)
        if self._key_of is not None:
            calls = [call for call in calls if self._leads(call)]
        if self._path.is_direct:
            self._lateness.begin(calls)
        if calls:
            self._begin(calls)
        for call in unreadable:
            refused: UnreadableValue = call.value
            call.value = refused.value
            try:
                self._fail(call, refused.error)
            finally:
                self.emission.run()

    def try_put_watermark(self, watermark: Watermark) -> bool:
        """Queue a watermark behind what was taken in before it; False if the queue is full."""
        if self.queue.try_put(watermark) is None:
            return False
        self.emission.run()
        return True

    def make_room(self) -> bool:
        """Grow a full queue if it may and should grow. If it stays full, send the batch: no call will come to fill it.

        Returns whether there is room.
        """
        self.adapt_room()
        if not self.queue.is_full():
            return True
        self.flush()
        return False

    def adapt_room(self) -> None:
        """Fit the queue's capacity to the calls and the memory; call it when either may have changed."""
        if self._room is not None:
            if self._room.adapt(self._under_way + len(self._asked)):
                self._limit()
            self.emission.announce_room()

    def flush(self) -> None:
        """Send the batch as it is, unless calls are still coming to fill it."""
        if not self._asked:
            self._path.flush()

    def end_input(self, *, ends_retries: bool) -> None:
        """No record follows. `ends_retries`: make the waiting retries at once, and none after them."""
        self._has_all = True
        if ends_retries:
            self._retries_have_ended = True
            waiting, self._retrying = self._retrying, {}
            for call in waiting:
                if call.retry_timer is not None:
                    call.retry_timer.cancel()
                self._make_next_attempt(call)
        self.flush()

    def close(self) -> None:
        """Give up all calls, ignore their answers, and emit nothing from now on."""
        self._is_closed = True
        self.emission.stop()
        if self._session is not None:
            self._session.forget_listener(self._fail_by_cache)
            self._asked.clear()
        self._count_ended(self._under_way - self._path.waiting())
        self._metrics.count_repetitions(self._host.take_own_retries())
        self._under_way = 0
        self._path.close()
        for call in self._lateness.unfinished():
            call.is_done = True
            if call.retry_timer is not None:
                call.retry_timer.cancel()  # a pending timer would keep this object alive
            self._path.give_up(call)
        self._lateness.clear()

    # -- keys: one call for all records of a key, and the cache

    def _leads(self, call: RecordCall) -> bool:
        """Whether to make the call; if not, the record shares the outcome of another, or the cache is asked first."""
        assert self._key_of is not None
        call.key = self._key_of(call.value)
        role, results = self._shared.join(call.key, call, self._timers.current_processing_time())
        if role == "lead":
            call.leads = True
            if self._session is None:
                return True
            key = call.key if type(call.key) is ResultKey else self._session.key_of(call.value)
            request = CacheRequest(key, self._bring_remembered)
            self._asked[request] = call
            self._session.submit(request)
        elif role == "known":
            self._metrics.remembered += 1
            self._metrics.completed += 1
            self._complete(call, results or ())
            self.emission.run()
        else:
            self._metrics.shared += 1
            call.follows = True
            self._lateness.join(call, self._shared.leader(call.key))
        return False

    def _bring_remembered(self, requests: list[CacheRequest]) -> None:
        """The cache's thread."""
        with suppress(RejectedExecutionError):  # the mailbox is closed: the state will be replayed
            self._mail.execute(self._fetch_remembered, "fetch remembered results", requests)

    def _fetch_remembered(self, requests: list[CacheRequest]) -> None:
        try:
            _for_each(requests, self._remembered)
        finally:
            if self._nothing_follows():
                self._path.flush()
            self._emit()

    def _remembered(self, answer: CacheRequest) -> None:
        call = self._asked.pop(answer, None)
        if call is None or call.is_done:
            return
        if answer.was_unknown:
            self._metrics.unknown += 1
        if answer.results is not None:
            self._metrics.remembered += 1
            self._succeed(call, answer.results)
        elif answer.error is not None:
            self._fail(call, answer.error)
        else:
            self._begin_missed(call)

    def _begin_missed(self, call: RecordCall) -> None:
        """Begin the call for a record whose results the cache does not have."""
        call.wanted_ns = perf_counter_ns()
        if self._path.is_direct:
            call.sent_ns = call.wanted_ns
            self._lateness.sent((call,))
        self._begin((call,))

    def _fail_by_cache(self, error: ResultCacheError) -> None:
        """The cache's thread: fail the task, whatever `on_error` says."""
        with suppress(RejectedExecutionError):
            self._mail.execute(_raise, "the cache of results has failed", error)

    # -- attempts and their answers

    def _nothing_follows(self) -> bool:
        """Whether no call will begin before another has ended, so that an open batch cannot fill up."""
        return not self._asked and (self.queue.is_full() or (self._has_all and not self._retrying))

    def _limit(self) -> None:
        """From now on more records may be taken in than calls may be in flight."""
        if self._path.is_direct:
            self._path.limit(call for call in self._lateness.unfinished() if call.is_begun)

    def _begin(self, calls: Sequence[RecordCall]) -> None:
        for call in calls:
            call.is_begun = True
        self._under_way += len(calls)
        if self._path.is_direct:
            self._attempts.calls += len(calls)  # other calls count when they are sent
        self._path.start(calls)

    def _fetch_answers(self) -> None:
        """Process the answers; the mail that the host sends."""
        box = self._box
        box.is_notified = False
        answers = box.answers
        if self._is_closed:
            answers.clear()
            return
        path, metrics = self._path, self._metrics
        is_plain = self._retry is None and self._key_of is None and self._combine is None and not path.learns
        count_call_time, count_queue_wait = metrics.call_time.observe, metrics.queue_wait.observe
        count_limit_wait = metrics.limit_wait.observe
        completed = slots = 0
        try:
            while answers:
                call = answers.popleft()
                if type(call) is not RecordCall:
                    self._answered_batch(call)
                elif is_plain and type(call.results) is list and not call.is_done:
                    # _answered, inlined for the common case.
                    if call.is_counted:
                        call.is_counted = False
                        slots += 1
                        if call.was_in_line:
                            count_limit_wait(call.limit_wait_ns())
                    completed += 1
                    started_ns = call.started_ns
                    count_call_time(call.ended_ns - started_ns)
                    if call.is_first:
                        count_queue_wait(started_ns - call.taken_ns)
                    call.is_done = True
                    call.entry.complete(call.results)
                else:
                    self._answered(call)
        finally:
            metrics.completed += completed
            metrics.ended += completed
            self._under_way -= completed
            # An answer that fails the task must not discard those behind it.
            if answers and not box.is_notified:
                box.notify()
            if self._host.has_own_retries:
                metrics.count_repetitions(self._host.take_own_retries())
            if slots:
                path.release(slots)
            self._emit()

    def _emit(self) -> None:
        self.emission.run()
        self.adapt_room()

    def _answered(self, call: RecordCall) -> None:
        if call.is_done:
            return
        if not call.is_returned:
            self._report(call)
        if call.is_counted:
            self._path.ended(call)
        if call.is_returned:
            call.is_returned = False
            self._path.resume(call)
            return
        if not _is_found(call):
            self._metrics.call_time.observe(call.ended_ns - call.started_ns)
        self._settle_attempt(call)

    def _answered_batch(self, call: HostCall) -> None:
        assert isinstance(call, BatchCall)
        if call.is_returned:
            self._path.submit_again(call)
            return
        members = call.hand_out()
        for member in members:
            self._report(member)
        self._path.ended(call)
        if not all(map(_is_found, members)):
            self._metrics.call_time.observe(call.ended_ns - call.started_ns)
        _for_each(members, self._settle_attempt)

    def _settle_attempt(self, call: RecordCall) -> None:
        self._ended(call)
        self._count_wait(call)
        self._settle(call)

    def _report(self, call: RecordCall) -> None:
        """Tell the limits of an answer, before its slot is released to another call."""
        if is_instance(call.error, RetryAfter):
            self._limit()
            self._path.answered(call)
        elif self._path.learns:
            self._path.answered(call)

    def _ended(self, call: RecordCall) -> None:
        call.is_begun = False
        self._under_way -= 1
        if not call.is_waiting:
            if _is_found(call):
                self._attempts.ended += 1
                self._metrics.remembered += 1
            else:
                self._count_ended(1)

    def _count_ended(self, number: int) -> None:
        """Count calls that were answered or given up."""
        self._attempts.ended += number
        if self._attempts is not self._metrics:
            self._metrics.calls += number
            self._metrics.ended += number

    def _count_wait(self, call: RecordCall) -> None:
        if call.is_first:
            call.is_first = False
            if self._host_may_hold:
                call.later_ms = call.waited_in_host_ms()  # the other attempts have the rest of the timeout
            self._metrics.queue_wait.observe(call.started_ns - call.taken_ns)
        if call.was_in_line:
            self._metrics.limit_wait.observe(call.limit_wait_ns())

    def _settle(self, call: RecordCall) -> None:
        """After the answer to an attempt: make another one, or complete the record."""
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
            bound = self._lateness.missed(call)
            if bound is not None:
                self._end_late([call], bound)  # though its timer has not fired yet
            elif is_instance(error, RetryAfter):
                self._start_again(call)
            else:
                self._wait_to_retry(call)
        elif error is None:
            self._succeed(call, results)
        else:
            self._fail(call, error)

    # -- retries

    def _wants_another(self, call: RecordCall, results: Sequence[Any], error: BaseException | None) -> bool:
        """Whether to make the record's call again after this outcome of an attempt."""
        if is_instance(error, RetryAfter):
            return True
        retry = self._retry
        if retry is None or self._retries_have_ended or not retry.can_retry(call.attempts):
            return False
        return retry.retries_error(error) if error is not None else retry.retries_result(results)

    def _has_outcome(self, call: RecordCall) -> bool:
        """Whether an answer that ends the record has arrived; one that leads to another attempt does not."""
        if call.batch is not None:
            return call.batch.ended_ns != 0
        if not call.ended_ns:
            return False
        results = call.results if isinstance(call.results, list) else (call.results,)
        return not self._wants_another(call, results, call.error)

    def _wait_to_retry(self, call: RecordCall) -> None:
        assert self._retry is not None
        due_ms = self._timers.current_processing_time() + self._retry.backoff_ms(call.attempts)
        self._retrying[call] = None
        call.retry_timer = self._timers.register_timer(due_ms, lambda _: self._backed_off(call))

    def _backed_off(self, call: RecordCall) -> None:
        if call in self._retrying:
            del self._retrying[call]
            self._make_next_attempt(call)

    def _make_next_attempt(self, call: RecordCall) -> None:
        call.retry_timer = None
        call.attempts += 1
        self._start_again(call)

    def _start_again(self, call: RecordCall) -> None:
        call.prepare_again(perf_counter_ns())
        self._metrics.retried += 1
        self._begin((call,))

    # -- outcomes

    def _succeed(self, call: RecordCall, results: Sequence[Any]) -> None:
        self._metrics.completed += 1
        self._complete(call, results)
        if call.leads:
            now_ms = self._timers.current_processing_time()
            for follower in self._shared.finish(call.key, results, now_ms):
                self._metrics.completed += 1
                self._complete(follower, results)

    def _complete(self, call: RecordCall, results: Sequence[Any]) -> None:
        call.is_done = True
        call.entry.complete(results if self._combine is None else self._combine(call.value, results))

    def _fail(self, call: RecordCall, error: BaseException) -> None:
        """Fail the record, and those that share its call, with `error`. Raises what fails the task."""
        failed = (call, *(self._shared.end(call.key) if call.leads else ()))
        self._metrics.failed += len(failed)
        self._complete_each(failed, lambda each: self._results_of_failed(each, error))

    def _complete_each(self, calls: Sequence[RecordCall], results_of: Callable[[RecordCall], Sequence[Any]]) -> None:
        """Complete records that were not answered."""

        def complete(call: RecordCall) -> None:
            try:
                self._complete(call, results_of(call))
            except BaseException:
                call.is_done = True
                call.entry.complete(())  # even so: a wait for the queue must end and see the failure
                raise

        _for_each(calls, complete)

    def _end_late(self, late: list[RecordCall], bound: Bound) -> None:
        """End records that have missed their timeout or their deadline."""
        for call in late:
            call.is_done = True  # all of them, before one releases its slot: later answers are ignored
        try:
            self._complete_each(late, lambda call: self._results_of_late(call, bound))
        finally:
            self._emit()

    def _results_of_late(self, call: RecordCall, bound: Bound) -> Sequence[Any]:
        deadline_ms = self._options.deadline_ms if bound == "deadline" else None
        times = call.times(perf_counter_ns())
        late = AsyncTimeoutError(self._options.timeout_ms, call.attempts, times, deadline_ms)
        if call in self._retrying:
            del self._retrying[call]
            if call.retry_timer is not None:
                call.retry_timer.cancel()
        elif call.is_begun:
            self._path.give_up(call)
            self._ended(call)
        self._metrics.timed_out += 1
        self._hand_over(call)
        try:
            results = as_results(self._host.timeout(call.value, late))
        except BaseException as error:
            self._metrics.failed += 1
            return self._results_of_failed(call, error)
        self._metrics.completed += 1
        return results

    def _hand_over(self, call: RecordCall) -> None:
        """Stop sharing a late call; if other records wait for it, one of them makes a new call."""
        if self._key_of is None:
            return
        if not call.leads:
            self._shared.unjoin(call.key, call)
            return
        following = self._shared.abandon(call.key)
        while following is not None and following.is_done:  # late as well: it needs no call
            following = self._shared.abandon(call.key)
        if following is not None:
            following.leads, following.follows = True, False
            if self._session is None:
                self._begin((following,))
            else:
                self._begin_missed(following)

    def _results_of_failed(self, call: RecordCall, error: BaseException) -> Sequence[Any]:
        """Count a failed record, and return the results to emit for it, as `on_error` and `dead_letter` say.

        Raises:
            AsyncOperatorError: `error`, or an error of the user's handler, fails the task.
            ResultCacheError: `error` is one, which is not the record's fault.
        """
        on_error, dead_letter = self._options.on_error, self._options.dead_letter
        if is_instance(error, ResultCacheError):
            raise error
        if on_error == "fail":
            raise AsyncOperatorError(self._name, call.value, error, call.attempts) from error
        if on_error == "drop":
            self._metrics.dropped += 1
            return ()
        self._metrics.captured += 1
        captured = CapturedError.of(call.value, error, call.attempts, call.taken_ns)
        try:
            if callable(on_error):
                return as_results(on_error(captured))
            if dead_letter is None:
                return (captured,)
            dead_letter(captured)
        except Exception as raised:
            raise AsyncOperatorError(self._name, call.value, raised, call.attempts) from raised
        return ()


def _is_found(call: HostCall) -> bool:
    """Whether an attempt that waited for its key got the results of a call made elsewhere."""
    return type(call.results) is FoundResults


def _raise(error: BaseException) -> None:
    raise error


def _for_each(items: Iterable[T], act: Callable[[T], None]) -> None:
    """Call `act` for each item, even if it raises for another. Then raise the first error, which fails the task."""
    failure: BaseException | None = None
    for item in items:
        try:
            act(item)
        except BaseException as error:
            failure = failure or error
    if failure is not None:
        raise failure
