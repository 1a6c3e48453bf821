"""The life cycle of every long-lived part: init, start, stop, after Hadoop's AbstractService.

    NOTINITED --init--> INITED --start--> STARTED --stop--> STOPPED      (stop works from every state)

Threads: any thread may call any method. The state changes before the hook runs, under a lock that is never held
while a hook, a listener or a wait goes on. A stop that arrives while another life-cycle hook is still running
is carried out by the thread that runs that hook, right after it, and a start that arrives while another thread runs
init's hook waits for that one, so that hooks never overlap.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Any, Protocol, Self, cast

from dispatcher.errors import ServiceStateError

log = logging.getLogger(__name__)


class ServiceState(Enum):
    """Where a service is in its life."""

    NOTINITED = "NOTINITED"
    INITED = "INITED"
    STARTED = "STARTED"
    STOPPED = "STOPPED"


class ServiceStateChangeListener(Protocol):
    """Is told after each change of a service's state."""

    def state_changed(self, service: Service) -> None: ...


_ALLOWED = {
    ServiceState.NOTINITED: {ServiceState.INITED, ServiceState.STOPPED},
    ServiceState.INITED: {ServiceState.INITED, ServiceState.STARTED, ServiceState.STOPPED},
    ServiceState.STARTED: {ServiceState.STARTED, ServiceState.STOPPED},
    ServiceState.STOPPED: {ServiceState.STOPPED},
}

_ADVICE = {
    ServiceState.NOTINITED: "Call init() first.",
    ServiceState.STARTED: "It is already running.",
    ServiceState.STOPPED: "A stopped service does not come back: make a new one.",
}


class Service:
    """A part with a life cycle. Subclasses override `service_init`, `service_start` and `service_stop`.

    `with service:` inits (if needed) and starts it, and stops it on the way out.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name or type(self).__name__
        self._config: Any = None  # set by init, before the hook
        self._life = threading.Condition(threading.Lock())  # leaf lock: nothing foreign runs under it
        self._state = ServiceState.NOTINITED  # guarded by _life; never goes back
        self._hook_thread: int | None = None  # guarded by _life: who runs init's or start's hook
        self._stop_pending = False  # guarded by _life: a stop came during that hook
        self._terminated = False  # guarded by _life
        self._failure: BaseException | None = None  # guarded by _life; the first one stays
        self._failure_state: ServiceState | None = None  # guarded by _life
        self._listeners: list[Callable[[Service], None]] = []  # replaced under _life, never changed in place
        _all_services.add(self)

    @property
    def name(self) -> str:
        return self._name

    @property
    def config(self) -> Any:
        """What `init` was given."""
        return self._config

    @property
    def state(self) -> ServiceState:
        return self._state

    @property
    def failure_cause(self) -> BaseException | None:
        """The first error that made this service fail, if any."""
        return self._failure

    @property
    def failure_state(self) -> ServiceState | None:
        """The state the service was in when it failed."""
        return self._failure_state

    def in_state(self, *states: ServiceState) -> bool:
        return self._state in states

    def init(self, config: Any = None) -> None:
        """Prepare the service. Repeating it does nothing.

        Raises:
            ServiceStateError: the service is started or stopped.
            Exception: what the hook raised; the service is stopped then, with that as its `failure_cause`.
        """
        if self._enter(ServiceState.INITED):
            self._config = config
            self._run_hook(ServiceState.INITED, lambda: self.service_init(config))

    def start(self) -> None:
        """Set the service to work. Repeating it does nothing.

        Raises:
            ServiceStateError: it is not inited, or it is stopped already.
            Exception: what the hook raised; the service is stopped then, with that as its `failure_cause`.
        """
        if self._enter(ServiceState.STARTED):
            self._run_hook(ServiceState.STARTED, self.service_start)

    def stop(self) -> None:
        """End the service from any state and any thread, a handler's included. Repeating it does nothing.

        On return the stop hook has run, unless init's or start's hook was still running: then it runs right after that
        one, on its thread. A second caller does not wait for the first: `wait_for_service_to_stop` does.

        Raises:
            Exception: what the stop hook raised; the service counts as stopped all the same.
        """
        with self._life:
            if self._state is ServiceState.STOPPED:
                return
            self._state = ServiceState.STOPPED
            if self._hook_thread is not None:
                self._stop_pending = True
                return
        self._run_stop_hook()

    def wait_for_service_to_stop(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: for ever) for the stop hook to end; says whether it has."""
        with self._life:
            return self._life.wait_for(lambda: self._terminated, timeout)

    def register_service_listener(self, listener: ServiceStateChangeListener | Callable[[Service], None]) -> None:
        """Tell `listener` after each change of state: a callable, or an object with `state_changed(service)`.

        It is called on the thread that made the change; what it raises is logged and goes no further.
        """
        tell = cast(Callable[[Service], None], getattr(listener, "state_changed", listener))
        with self._life:
            self._listeners = [*self._listeners, tell]

    def note_failure(self, error: BaseException) -> None:
        """Record why the service fails; the first error and the state it came in are kept."""
        with self._life:
            if self._failure is None:
                self._failure = error
                self._failure_state = self._state

    def service_init(self, config: Any) -> None:
        """Hook of `init`."""

    def service_start(self) -> None:
        """Hook of `start`."""

    def service_stop(self) -> None:
        """Hook of `stop`. It must cope with a service that was never inited or started, or failed half-way."""

    def __enter__(self) -> Self:
        if self._state is ServiceState.NOTINITED:
            self.init()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name} {self._state.name}>"

    def _enter(self, wanted: ServiceState) -> bool:
        """Change the state, once no other thread runs a hook; False if it is that one already."""
        with self._life:
            while True:
                if wanted not in _ALLOWED[self._state]:
                    raise ServiceStateError(self._name, self._state, wanted, _ADVICE.get(self._state, ""))
                if self._state is wanted:
                    return False
                if self._hook_thread in (None, threading.get_ident()):
                    break
                self._life.wait()
            self._state = wanted
            self._hook_thread = threading.get_ident()
            return True

    def _run_hook(self, entered: ServiceState, hook: Callable[[], None]) -> None:
        try:
            hook()
        except BaseException as error:
            self.note_failure(error)
            with self._life:
                self._hook_thread = None
                self._stop_pending = False
                self._state = ServiceState.STOPPED
            try:
                self._run_stop_hook()
            except Exception as second:
                log.warning("%s: stop after a failed %s failed too: %r", self._name, entered.name, second)
            raise
        with self._life:
            self._hook_thread = None
            stop_pending, self._stop_pending = self._stop_pending, False
            self._life.notify_all()
        if stop_pending:
            self._run_stop_hook()
        elif self._state is entered:
            self._tell_listeners()

    def _run_stop_hook(self) -> None:
        try:
            self.service_stop()
        except BaseException as error:
            self.note_failure(error)
            raise
        finally:
            with self._life:
                self._terminated = True
                self._life.notify_all()
            self._tell_listeners()

    def _after_fork(self) -> None:
        """In a forked child: a thread that stayed with the parent may have held the lock."""
        self._life = threading.Condition(threading.Lock())

    def _tell_listeners(self) -> None:
        for tell in self._listeners:
            try:
                tell(self)
            except Exception:
                log.exception("%s: a service listener failed", self._name)


_all_services: weakref.WeakSet[Service] = weakref.WeakSet()


def _after_fork() -> None:
    for service in _all_services:
        service._after_fork()


os.register_at_fork(after_in_child=_after_fork)


class CompositeService(Service):
    """A service made of services: inits and starts them in the order added, stops them in reverse.

    When one fails to start, those already started are stopped and the error goes to the caller.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._services: list[Service] = []  # replaced, never changed in place: a pass works on what it found

    @property
    def services(self) -> tuple[Service, ...]:
        return tuple(self._services)

    def add_service(self, service: Service) -> None:
        """Add a child. Add before `init`: a child that comes later is stopped with the others, but not started."""
        with self._life:
            self._services = [*self._services, service]

    def service_init(self, config: Any) -> None:
        for service in self._services:
            service.init(config)

    def service_start(self) -> None:
        for service in self._services:
            if self.in_state(ServiceState.STARTED):
                service.start()

    def service_stop(self) -> None:
        """Stop the children in reverse, each of them, and raise the first error at the end."""
        first: BaseException | None = None
        for service in reversed(self._services):
            if not service.in_state(ServiceState.INITED, ServiceState.STARTED):
                continue
            try:
                service.stop()
            except Exception as error:
                log.warning("%s: stopping %s failed: %r", self.name, service.name, error)
                first = first or error
        if first is not None:
            raise first
