"""The calls of an operator's records: answers, retries, timeouts, and calls shared by key. Mailbox thread only.

A record's call ends once: answered, late or failed. Its outcome then goes to its entry in the operator's queue, and
later events for it are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from dispatcher.mailbox import MailboxExecutor, ProcessingTimeService
from pipeline.streaming.cache.recall import Recall
from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.call_path import CallPath, HostSlots
from pipeline.streaming.calls.element_queues import ResultFuture
from pipeline.streaming.calls.emission import Emission
from pipeline.streaming.calls.failures import Bound, ErrorPolicy, Lateness
from pipeline.streaming.calls.functions import as_results
from pipeline.streaming.calls.hosts.call_host import AnswerBox, Call, CallHost
from pipeline.streaming.calls.record_call import BatchCall, RecordCall
from pipeline.streaming.calls.retries import Retries
from pipeline.streaming.calls.sharing import SharedCalls
from pipeline.streaming.errors import AsyncTimeoutError, RetryAfter
from pipeline.streaming.options import AsyncOptions


class RecordCalls:
    """Makes a call for each record, completes the record's entry with the outcome, and runs `emission`.

    `nothing_follows`: see CallPath. `on_ended` is called after calls have ended, with the emission done.
    """

    def __init__(
        self,
        host: CallHost,
        executor: MailboxExecutor,
        timers: ProcessingTimeService,
        emission: Emission,
        errors: ErrorPolicy,
        metrics: CallMetrics,
        options: AsyncOptions,
        nothing_follows: Callable[[], bool],
        on_ended: Callable[[], None] | None = None,
    ) -> None:
        self._host = host
        self._timers = timers
        self._emission = emission
        self._errors = errors
        self._metrics = metrics
        self._has_own_retries = host.has_own_retries
        self._on_ended = on_ended
        self._timeout_ms = options.timeout_ms
        self._deadline_ms = options.deadline_ms
        self._retries = Retries(options.enabled_retry, timers, self._start_again)
        asked = nothing_follows, self._begin_missed, self._succeed, self._fail, self._after_recall
        self._recall: Recall[RecordCall] = Recall(host.result_session, executor, metrics, *asked)
        self._dedupe_by = options.dedupe_by or self._recall.key_of
        self._combine = options.combine
        self._box = AnswerBox(executor.execute, self._fetch_answers)
        self._shared: SharedCalls[RecordCall, Any] = SharedCalls(options.remember, options.remember_ms)
        self._slots = HostSlots.of(host, options)
        late = self._lateness = Lateness(
            timers, options, self._slots, self._shared, self._retries.has_outcome, self._end_late
        )
        self._begin_timeout, follows = late.begin, self._recall.nothing_follows
        self._path = CallPath(host, self._box, executor, timers, options, follows, metrics, late.sent)
        self._under_way = 0  # attempts begun and neither answered nor given up
        self._is_closed = False  # answers are ignored
        self.end_retries = self._retries.end
        """Make the waiting retries at once, and none after them."""

    def make(self, value: Any, entry: ResultFuture[Any]) -> None:
        """Start the call for a record whose outcome goes to `entry`."""
        call = RecordCall(value, self._box, entry, perf_counter_ns())
        if self._deadline_ms is not None:
            self._lateness.take_in(call)
        if self._dedupe_by is None or self._leads(call):
            path = self._path
            # _begin, inlined: this runs for each record.
            if path.is_direct:
                self._begin_timeout(call)
                self._metrics.calls += 1
            call.is_begun = True
            self._under_way += 1
            path.start(call)

    def flush(self) -> None:
        """Send the batch as it is, unless calls are still coming to fill it."""
        if not self._recall.asked:
            self._path.flush()

    def under_way(self) -> int:
        """Attempts begun and neither answered nor given up, including those that wait for the limits or the cache."""
        return self._under_way + self._recall.asked

    def limit(self) -> None:
        """From now on more records may be taken in than calls may be under way."""
        if self._path.is_direct:
            self._path.limit(call for call in self._lateness.unfinished() if call.is_begun)

    def is_retrying(self) -> bool:
        return self._retries.are_waiting()

    def close(self) -> None:
        """Give up all calls and ignore their answers."""
        self._is_closed = True
        self._recall.close()
        self._metrics.ended += self._under_way - self._path.waiting()
        self._metrics.count_repetitions(self._host.take_own_retries())
        self._under_way = 0
        self._path.close()
        for call in self._lateness.unfinished():
            call.is_done = True
            if call.retry_timer is not None:
                call.retry_timer.cancel()  # a pending timer would keep this object alive
            self._path.give_up(call)
        self._lateness.clear()

    def _leads(self, call: RecordCall) -> bool:
        """Whether to make the call; if not, the record shares the outcome of another, or the cache is asked first."""
        assert self._dedupe_by is not None
        call.key = self._dedupe_by(call.value)
        role, results = self._shared.join(call.key, call, self._timers.current_processing_time())
        if role == "lead":
            call.leads = True
            if self._recall.key_of is None:
                return True
            self._recall.ask(call)
            return False
        if role == "known":
            self._metrics.remembered += 1
            self._metrics.completed += 1
            self._complete(call, results or ())
            self._emission.run()
        else:
            self._metrics.shared += 1
            call.follows = True
            self._lateness.join(call, self._shared.leader(call.key))
        return False

    def _begin_missed(self, call: RecordCall) -> None:
        """Begin the call for a record whose results the cache does not have."""
        call.wanted_ns = perf_counter_ns()
        if self._path.is_direct:
            call.sent_ns = call.wanted_ns
            self._lateness.sent(call)
        self._begin(call)

    def _after_recall(self) -> None:
        if self._recall.nothing_follows():
            self._path.flush()
        self._emit()

    def _fetch_answers(self) -> None:
        """Process the answers; the mail that the hosts send."""
        box = self._box
        box.is_notified = False
        answers = box.answers
        if self._is_closed:
            answers.clear()
            return
        is_plain = not self._retries.are_enabled and self._dedupe_by is None and self._combine is None
        is_plain = is_plain and not self._path.learns
        metrics = self._metrics
        count_call_time, count_queue_wait = metrics.call_time.record_ns, metrics.queue_wait.record_ns
        count_limit_wait = metrics.limit_wait.record_ns
        completed = 0
        try:
            while answers:
                call = answers.popleft()
                if type(call) is not RecordCall:
                    self._answered_batch(call)
                elif is_plain and type(call.results) is list and not call.is_done:
                    # _answered, inlined for the common case.
                    if call.is_counted:
                        self._path.ended(call)
                        if call.was_in_line:
                            count_limit_wait(call.limit_wait_ns())
                    self._under_way -= 1
                    metrics.ended += 1
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
            # An answer that fails the task must not discard those behind it.
            if answers and not box.is_notified:
                box.notify()
            if self._has_own_retries:
                metrics.count_repetitions(self._host.take_own_retries())
            self._emit()

    def _emit(self) -> None:
        self._emission.run()
        if self._on_ended is not None:
            self._on_ended()

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
        self._ended(call)
        self._metrics.call_time.record_ns(call.ended_ns - call.started_ns)
        self._count_wait(call)
        self._settle(call)

    def _report(self, call: RecordCall) -> None:
        """Tell the limits of an answer, before its slot is released to another call."""
        if isinstance(call.error, RetryAfter):
            self.limit()
            self._path.answered(call)
        elif self._path.learns:
            self._path.answered(call)

    def _begin(self, call: RecordCall) -> None:
        call.is_begun = True
        self._under_way += 1
        self._metrics.calls += self._path.is_direct  # another call counts when it is sent
        self._path.start(call)

    def _ended(self, call: RecordCall) -> None:
        call.is_begun = False
        self._under_way -= 1
        if not call.is_waiting:
            self._metrics.ended += 1

    def _count_wait(self, call: RecordCall) -> None:
        if call.is_first:
            call.is_first = False
            if self._slots.may_wait:
                call.later_ms = call.waited_in_host_ms()  # the other attempts have the rest of the timeout
            self._metrics.queue_wait.record_ns(call.started_ns - call.taken_ns)
        if call.was_in_line:
            self._metrics.limit_wait.record_ns(call.limit_wait_ns())

    def _answered_batch(self, call: Call) -> None:
        assert isinstance(call, BatchCall)
        if call.is_returned:
            self._path.submit_again(call)
            return
        members = call.hand_out()
        for member in members:
            self._report(member)
        self._path.ended(call)
        self._metrics.call_time.record_ns(call.ended_ns - call.started_ns)
        failure: BaseException | None = None
        for member in members:
            self._ended(member)
            self._count_wait(member)
            try:
                self._settle(member)
            except BaseException as error:  # fails the task once the other members are settled
                failure = failure or error
        if failure is not None:
            raise failure

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
        if self._retries.wants_another(call, results, error):
            bound = self._lateness.missed(call)
            if bound is not None:
                self._end_late([call], bound)  # though its timer has not fired yet
            elif isinstance(error, RetryAfter):
                self._start_again(call)
            else:
                self._retries.wait(call)
        elif error is None:
            self._succeed(call, results)
        else:
            self._fail(call, error)

    def _succeed(self, call: RecordCall, results: Sequence[Any]) -> None:
        self._metrics.completed += 1
        self._complete(call, results)
        if call.leads:
            now_ms = self._timers.current_processing_time()
            for waiter in self._shared.finish(call.key, results, now_ms):
                self._metrics.completed += 1
                self._complete(waiter, results)

    def _complete(self, call: RecordCall, results: Sequence[Any]) -> None:
        call.is_done = True
        call.entry.complete(results if self._combine is None else self._combine(call.value, results))

    def _fail(self, call: RecordCall, error: BaseException) -> None:
        """Fail the record, and those that share its call, with `error`. Raises what fails the task."""
        failure: BaseException | None = None
        for failed in (call, *(self._shared.fail(call.key) if call.leads else ())):
            self._metrics.failed += 1
            try:
                self._complete(failed, self._errors.results_of(failed, error))
            except BaseException as raised:
                # Complete it even so: a wait for the queue must end and see the failure.
                self._complete(failed, ())
                failure = failure or raised
        if failure is not None:
            raise failure

    def _start_again(self, call: RecordCall) -> None:
        call.prepare_again(perf_counter_ns())
        self._metrics.retried += 1
        self._begin(call)

    def _end_late(self, late: list[RecordCall], bound: Bound) -> None:
        """End records that have missed their timeout or their deadline."""
        for call in late:
            call.is_done = True  # all of them, before one releases its slot: later answers are ignored
        failure: BaseException | None = None
        for call in late:
            try:
                self._complete(call, self._results_of_late(call, bound))
            except BaseException as error:
                self._complete(call, ())
                failure = failure or error
        self._emit()
        if failure is not None:
            raise failure

    def _results_of_late(self, call: RecordCall, bound: Bound) -> Sequence[Any]:
        deadline_ms = self._deadline_ms if bound == "deadline" else None
        late = AsyncTimeoutError(self._timeout_ms, call.attempts, call.times(perf_counter_ns()), deadline_ms)
        if not self._retries.give_up(call) and call.is_begun:
            self._path.give_up(call)
            self._ended(call)
        self._metrics.timed_out += 1
        self._hand_over(call)
        try:
            results = as_results(self._host.timeout(call.value, late))
        except BaseException as error:
            self._metrics.failed += 1
            return self._errors.results_of(call, error)
        self._metrics.completed += 1
        return results

    def _hand_over(self, call: RecordCall) -> None:
        """Stop sharing a late call; if other records wait for it, one of them makes a new call."""
        if self._dedupe_by is None:
            return
        if not call.leads:
            self._shared.unjoin(call.key, call)
            return
        following = self._shared.abandon(call.key)
        while following is not None and following.is_done:  # late as well: it needs no call
            following = self._shared.abandon(call.key)
        if following is not None:
            following.leads, following.follows = True, False
            (self._begin if self._recall.key_of is None else self._begin_missed)(following)
