"""The call for a record and the call for a batch of them, as the engine sees them. The engine's thread only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatcher.util.foreign import is_instance
from pipeline.streaming.calls.functions import check_batch_results
from pipeline.streaming.calls.hosts.call_host import AnswerBox, HostCall
from pipeline.streaming.calls.thread import CallTimer
from pipeline.streaming.errors import CallTimes


class RecordCall(HostCall):
    """The call for one record; made again with each retry. Times in ns are of `time.perf_counter_ns`."""

    is_done = False  # the queue has its outcome
    timeout_at_ms = 0  # its timeout, which began when the first attempt was sent; 0: not sent, or there is none
    resent_ms = 0  # later than that: the host had returned it, and it was sent again
    later_ms = 0  # and later: it waited in the host
    turns = 0  # timeouts for which it has waited in the host
    deadline_at_ms = 0  # its deadline; 0: there is none
    attempts = 1  # as the retry strategy counts them
    refusals = 0  # answers that were a RetryAfter
    retry_timer: CallTimer | None = None  # set while it waits for a retry
    key: Any = None  # records of equal keys share a call
    is_begun = False  # an attempt is in flight: neither answered nor given up
    is_first = True  # no attempt has been answered yet
    is_held = False  # the host has returned it, and it was not sent again
    is_waiting = False  # an attempt is begun and not sent to the host
    was_in_line = False  # the limits of the operator may have held it back
    leads = False  # it makes the call for its key
    follows = False  # it waits for the call of its key
    batch: BatchCall | None = None  # the batch it was sent in
    wanted_ns = 0  # when the current attempt was due; 0: at once, when it was taken in
    sent_ns = 0  # when the current attempt was submitted; 0: at once
    waited_ns: int = 0  # earlier attempts: from when each was due to its start
    under_way_ns: int = 0  # earlier attempts: from the start of each to its answer
    turn_ms: float = 0.0  # when the current attempt had its turn at the rate, on the timers' clock
    cost: float = 1.0  # what it costs at an adaptive rate
    between_ns: int = 0  # from each answer to when the next attempt was due

    def __init__(self, value: Any, box: AnswerBox, entry: Any, taken_ns: int) -> None:
        self.value = value
        self.box = box
        self.entry = entry  # the queue's future, which gets the outcome
        self.taken_ns = taken_ns  # when the operator took the record in

    def has_started(self) -> bool:
        """Whether the host has begun the current attempt."""
        return bool(self.started_ns if self.batch is None else self.batch.started_ns)

    def due_ms(self) -> int:
        """When its timeout expires, once it was sent."""
        return self.timeout_at_ms + self.resent_ms + self.later_ms

    def waited_in_host_ms(self) -> int:
        """From submitting the current attempt, which has started, to its start."""
        started_ns = self.started_ns if self.batch is None else self.batch.started_ns
        return (started_ns - (self.sent_ns or self.taken_ns)) // 1_000_000

    def limit_wait_ns(self) -> int:
        """From when the current attempt was due to its start."""
        return self.started_ns - (self.wanted_ns or self.taken_ns)

    def prepare_again(self, now_ns: int) -> None:
        """Clear the answer before the call is made again. The host released the call when it answered."""
        self.waited_ns += self.limit_wait_ns()
        self.under_way_ns += self.ended_ns - self.started_ns
        self.between_ns += now_ns - self.ended_ns
        self.wanted_ns = now_ns
        self.results = self.error = self.batch = None
        self.started_ns = self.ended_ns = 0

    def times(self, now_ns: int) -> CallTimes:
        """Where the record's time went until now."""
        waited_ns, under_way_ns, between_ns = self.waited_ns, self.under_way_ns, self.between_ns
        due_ns = self.wanted_ns or self.taken_ns
        attempt: HostCall = self if self.batch is None else self.batch
        # A record that shares a call is in flight once that call was sent.
        started_ns = attempt.started_ns or (self.sent_ns if self.follows else 0)
        ended_ns = attempt.ended_ns
        waited_ns += (started_ns or now_ns) - due_ns
        if started_ns:
            under_way_ns += (ended_ns or now_ns) - started_ns
        if ended_ns:
            between_ns += now_ns - ended_ns
        return CallTimes(waited_ns / 1e6, under_way_ns / 1e6, between_ns / 1e6)


class BatchCall(HostCall):
    """One call for many records. Its results have one entry for each member."""

    def __init__(self, members: list[RecordCall], box: AnswerBox) -> None:
        super().__init__([member.value for member in members], box)
        self.members = members
        self.wanted: int = len(members)  # members that are not late

    def hand_out(self) -> list[RecordCall]:
        """Give each member that is not late its part of the answer; return those members."""
        entries: Sequence[Any] = ()
        error = self.error
        if error is None:
            try:
                entries = check_batch_results(self.results, len(self.members))
            except (TypeError, ValueError) as refused:
                error = refused
        answered = []
        for index, member in enumerate(self.members):
            if member.is_done:
                continue
            member.batch, member.started_ns, member.ended_ns = None, self.started_ns, self.ended_ns
            if error is not None:
                member.error = error
            elif is_instance(entries[index], BaseException):
                member.error = entries[index]
            else:
                member.results = entries[index]
            answered.append(member)
        return answered
