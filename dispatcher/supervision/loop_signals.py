"""Waiting for SIGINT and SIGTERM on a running event loop, which goes on."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from dispatcher.errors import InvalidValueError
from dispatcher.service import Service, ServiceState
from dispatcher.supervision.health import parts_of
from dispatcher.supervision.signals import StopSignals, has_failed
from dispatcher.supervision.systemd import Supervision
from dispatcher.util.foreign import tell
from dispatcher.util.functions import require_kind
from dispatcher.util.threads import in_own_thread

log: logging.Logger = logging.getLogger("dispatcher.supervision.signals")

T = TypeVar("T")


class LoopSignals(StopSignals):
    """Signals that stop a service, with a wait for tasks. The loop keeps its own handlers, such as one for SIGHUP.

    A loop that handles signals keeps its wakeup descriptor too, which wakes it for these signals as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()  # never changes
        self._woken = asyncio.Event()

    def __enter__(self) -> Self:
        if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), LoopSignals):
            raise InvalidValueError(
                "run_until_signal runs already, and one at a time has the signals: add your services to one "
                "CompositeService, and run that"
            )
        super().__enter__()
        if self._previous_wakeup is not None and self._previous_wakeup >= 0:
            signal.set_wakeup_fd(self._previous_wakeup)
            self._previous_wakeup = None
        self._loop.add_reader(self._read_end, self._on_readable)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._read_end)
        if self._previous_wakeup is not None:
            present = signal.set_wakeup_fd(self._previous_wakeup)
            if present != self._write_end:  # the loop has set its own meanwhile
                signal.set_wakeup_fd(present)
            self._previous_wakeup = None
        super().__exit__()

    async def wait_for_next(self) -> bool:
        """Wait for a signal or a `notify`, and return whether a signal has come."""
        if self.received is None:
            await self._woken.wait()
            self._woken.clear()
        return self.received is not None

    def _on_readable(self) -> None:
        os.read(self._read_end, 4096)
        self._woken.set()


async def run_until_signal(service: Service) -> int:
    """Run `service` as `dispatcher.run_until_signal` does, in a program whose event loop runs already.

    Waits for SIGINT, SIGTERM or the end of the service, and returns the same exit code: 128 + the signal's number, 0 if
    the program stopped the service, or 1 after a failure. The health of the process covers the service, and systemd
    gets its messages. A second signal during the stop changes nothing.

    The loop goes on: the service starts and stops on a separate thread. If you cancel the waiting task, the service
    drains and stops, and then the cancellation goes on.

    Raises:
        ValueError: you're not on the main thread, the only one where Python handles signals, or another call of this
            runs.
        Exception: `init` or `start` raised it.
    """
    require_kind(service, "service", Service)
    with LoopSignals() as signals:
        supervision = Supervision(service)
        parts = parts_of(service)
        for part in parts:
            part.register_service_listener(lambda _: signals.notify())

        def start() -> None:
            supervision.__enter__()
            service.start()
            if service.in_state(ServiceState.STARTED):
                supervision.started()

        def stop() -> None:
            try:
                supervision.stopping()
                service.stop()
                service.wait_for_service_to_stop()  # a handler or another thread may have begun the stop
            finally:
                supervision.__exit__()

        try:
            await _to_its_end(in_own_thread(start, f"{service.name}-aio-start"))
            while not (service.in_state(ServiceState.STOPPED) or has_failed(parts) or await signals.wait_for_next()):
                continue
        finally:
            await _to_its_end(in_own_thread(stop, f"{service.name}-aio-stop"))
        if signals.received is not None:
            tell(log, logging.INFO, "%s: stopped by signal %d", service.name, signals.received)
            return signals.exit_code
        return 1 if has_failed(parts) else 0


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await the work to its end, even if the waiting task is cancelled, which then takes effect."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()
