"""The operator that calls a service for each record without waiting for it, after Flink's AsyncWaitOperator.

Threads: everything here belongs to the mailbox thread. Calls run on a CallHost, whose threads only append answers and
send a mail. Timers are mail as well. The operator waits in two places, where it runs mail of its own priority: while
its queue is full, and at the end of the input.

A record is in the queue from its intake until its results were passed to `output`. Its call ends once: answered, late
or failed; later events for it are ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Unpack

from dispatcher.mailbox import MailboxExecutor, MailboxTimeService, ProcessingTimeService
from pipeline.streaming.calls.call_counts import CallMetrics, counts_of
from pipeline.streaming.calls.emission import OutputAvailability
from pipeline.streaming.calls.engine import Engine
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import host_for
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.errors import OperatorStateError
from pipeline.streaming.options import AsyncOptions, OperatorOptions, takes_options


class AsyncWaitOperator:
    """Calls `function` for each record and emits the results, ordered or unordered. Watermarks keep their place.

    Creating one checks the options and starts nothing.

    `function`: an AsyncFunction, a coroutine function or a blocking one. The operator then creates a host. If you pass
        a running CallHost, it keeps running when the operator is closed.
    `timeout_ms`, `options`: see AsyncOptions.
    `output_availability`: see OutputAvailability. Records are emitted only while it returns None.

    Raises:
        ValueError, TypeError: an option is invalid, or not for this function. The message names it.
    """

    @takes_options(OperatorOptions)
    def __init__(
        self,
        function: AnyFunction[Any, Any] | CallHost,
        *,
        timeout_ms: int,
        mailbox_executor: MailboxExecutor,
        processing_time_service: ProcessingTimeService,
        output: Callable[[StreamElement[Any]], Any],
        output_availability: OutputAvailability | None = None,
        metrics: CallMetrics | None = None,
        name: str = "async wait",
        **options: Unpack[OperatorOptions],
    ) -> None:
        given = AsyncOptions(timeout_ms=timeout_ms, **options)
        self.name = name
        self.metrics: CallMetrics = counts_of(metrics)
        self._owns_host = not isinstance(function, CallHost)
        self._host = host_for(function, given)
        self._executor = mailbox_executor
        self._ends_retries = not given.retries_at_end
        self._timers = MailboxTimeService(processing_time_service, mailbox_executor)
        self._engine = Engine(
            self._host,
            mailbox_executor,
            self._timers,
            given,
            output,
            self.metrics,
            name,
            output_availability=output_availability,
        )
        self._is_open = False  # from `open` until `close`
        self._is_closed = False
        self._restored: deque[StreamElement[Any]] = deque()  # not in the queue yet

    def initialize_state(self, state: Iterable[StreamElement[Any]]) -> None:
        """Restore the elements of a `snapshot_state`. Call it before `open`, which makes their calls again."""
        if self._is_open or self._is_closed:
            raise OperatorStateError(f"{self.name}: call initialize_state before open")
        self._restored = deque(state)

    def open(self) -> None:
        """Open the function, then process the restored elements, waiting while the queue is full.

        Raises what the function's `open` raises.
        """
        self._is_open = True
        if self._owns_host:
            self._host.start()
        restored = self._restored
        while restored:
            element = restored[0]  # removed once it is queued: a snapshot may be taken while this waits
            if isinstance(element, Watermark):
                self.process_watermark(element)
            else:
                self.process_element(element)
            restored.popleft()

    def end_input(self) -> None:
        """Wait until everything taken in is emitted.

        Unless `retries_at_end` is set, the waiting retries are made at once, and none after them.
        """
        self._check_open()
        self._engine.end_input(ends_retries=self._ends_retries)
        while not self._engine.queue.is_empty():
            self._executor.yield_()

    def close(self) -> None:
        """Give up the calls in flight, and close the function if the operator owns its host. Works after a failure."""
        self._is_open, self._is_closed = False, True
        self._timers.quiesce()
        self._engine.close()
        if self._owns_host:
            self._host.stop()

    def snapshot_state(self) -> list[StreamElement[Any]]:
        """Return the elements taken in and not emitted, in queue order, including completed ones."""
        return [*self._engine.queue.values(), *self._restored]

    def process_element(self, record: StreamRecord[Any]) -> None:
        """Start the call for a record. While the queue is full, this waits and runs mail.

        Raises:
            RuntimeError: the operator isn't open.
            AsyncOperatorError: a mail failed the task.
        """
        if not self._is_open:
            self._check_open()
        while not self._engine.try_take(record.value, record):
            self._wait_for_room()

    def process_watermark(self, watermark: Watermark) -> None:
        """Queue a watermark behind the elements taken in before it. Waits as `process_element` does."""
        self._check_open()
        while not self._engine.try_put_watermark(watermark):
            self._wait_for_room()

    def size(self) -> int:
        """Count the elements taken in and not emitted. Thread-safe."""
        return self._engine.queue.size()

    def is_available(self) -> bool:
        """Whether the queue has room for the next element."""
        return not self._engine.queue.is_full()

    def available_future(self) -> Future[None] | None:
        """Return None if there's room, or else a future, completed on the mailbox thread by an emission."""
        return None if self._engine.make_room() else self._engine.emission.room()

    def _wait_for_room(self) -> None:
        if not self._engine.make_room():
            self._executor.yield_()

    def _check_open(self) -> None:
        if not self._is_open:
            what = "it has been closed, make another one" if self._is_closed else "call open() first"
            raise OperatorStateError(f"{self.name}: the operator is not open: {what}")
