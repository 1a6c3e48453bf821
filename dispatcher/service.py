"""The life cycle of every long-lived part: init, start, stop, after Hadoop's AbstractService.

    NOTINITED --init--> INITED --start--> STARTED --stop--> STOPPED      (stop works from every state)

Threads: any thread may call any method. The state changes before the hook runs, under a lock that no thread holds while
it runs a hook or a listener, or waits. Hooks never overlap: if `stop` is called while init's or start's hook runs, the
thread of that hook runs the stop hook right afterwards; a `start` during another thread's init hook waits for it.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any, Protocol, Self, cast

from dispatcher.errors import ServiceStateError
from dispatcher.util.foreign import reraise_interrupt, tell, text_of
from dispatcher.util.histogram import snapshot

log = logging.getLogger(__name__)


class ServiceState(Enum):
    """Where a service is in its life."""

    NOTINITED = "NOTINITED"
    INITED = "INITED"
    STARTED = "STARTED"
    STOPPED = "STOPPED"


class ServiceStateChangeListener(Protocol):
    """Called after each change of a service's state."""

    def state_changed(self, service: Service) -> None: ...


_ALLOWED = {
    ServiceState.NOTINITED: {ServiceState.INITED, ServiceState.STOPPED},
    ServiceState.INITED: {ServiceState.INITED, ServiceState.STARTED, ServiceState.STOPPED},
    ServiceState.STARTED: {ServiceState.STARTED, ServiceState.STOPPED},
    ServiceState.STOPPED: {ServiceState.STOPPED},
}

_BEFORE_STARTED = (ServiceState.NOTINITED, ServiceState.INITED)

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
        if name is not None and not isinstance(name, str):
            raise TypeError(f"{type(self).__name__}: name must be a str, not {text_of(name)}")
        self.name = name or type(self).__name__
        self.config: Any = None
        """The argument of `init`, set before the hook."""
        # Leaf lock: nothing foreign runs under it. Re-entrant: a signal handler may interrupt its holder.
        self._life = threading.Condition(threading.RLock())
        self._changing: set[int] = set()  # threads amid a change of state; any thread adds and removes itself
        self._stop_deferred = False  # a signal handler called `stop` amid a change; any thread
        self._state = ServiceState.NOTINITED  # written under _life, read by any thread; never goes back
        self._hook_thread: int | None = None  # guarded by _life: the thread that runs init's or start's hook
        self._stop_pending = False  # guarded by _life: a stop came during that hook
        self._terminated = False  # guarded by _life
        self._failure: BaseException | None = None  # guarded by _life; the first one stays
        self.failure_state: ServiceState | None = None  # in which it failed; written under _life, read by any thread
        self._listeners: list[Callable[[Service], None]] = []  # replaced under _life, never changed in place
        # The composite that it was added to; written under _tree, read by any thread.
        self._parent: weakref.ref[CompositeService] | None = None
        _all_services.add(self)

    @property
    def state(self) -> ServiceState:
        return self._state

    @property
    def failure_cause(self) -> BaseException | None:
        """The first error that made this service fail, if any."""
        return self._failure

    @property
    def parent(self) -> CompositeService | None:
        """The composite service that this one was added to, if any."""
        return self._parent() if self._parent is not None else None

    def in_state(self, *states: ServiceState) -> bool:
        return self._state in states

    def is_starting(self) -> bool:
        """It is not started yet, or its start hook still runs. Any thread; takes no lock."""
        # The state first: it becomes STARTED after the thread of the hook was noted.
        return self._state in _BEFORE_STARTED or (self._state is ServiceState.STARTED and self._hook_thread is not None)

    def is_stopping(self) -> bool:
        """`stop` was called, and the stop hook has not ended. Any thread; takes no lock."""
        return self._state is ServiceState.STOPPED and not self._terminated

    def is_ending(self) -> bool:
        """Whether this service, or the composite that it was added to, has begun to stop. Takes no lock."""
        parent = self.parent
        return self._state is ServiceState.STOPPED or (parent is not None and parent.is_ending())

    def init(self, config: Any = None) -> None:
        """Prepare the service. Repeating it does nothing.

        Raises:
            ServiceStateError: the service is started or stopped.
            Exception: raised by the hook; the service is then stopped, with this error as its `failure_cause`.
        """
        if self._enter(ServiceState.INITED):
            self.config = config
            self._run_hook(ServiceState.INITED, lambda: self.service_init(config))

    def start(self) -> None:
        """Start the service. Repeating it does nothing.

        Raises:
            ServiceStateError: the service is not inited, or it is stopped.
            Exception: raised by the hook; the service is then stopped, with this error as its `failure_cause`.
        """
        if self._enter(ServiceState.STARTED):
            self._run_hook(ServiceState.STARTED, self.service_start)

    def stop(self) -> None:
        """Stop the service, from any state and any thread, including a handler's. Repeating it does nothing.

        On return the stop hook has run, unless init's or start's hook is still running: the stop hook then runs right
        after it, on its thread. A second caller returns at once; `wait_for_service_to_stop` waits. A signal handler may
        call it, too: if it interrupts a change of state, the stop follows that change.

        Raises:
            Exception: raised by the stop hook; the service still counts as stopped.
        """
        if threading.get_ident() in self._changing:
            self._stop_deferred = True
            return
        with self._change():
            if self._state is ServiceState.STOPPED:
                return
            self._state = ServiceState.STOPPED
            if self._hook_thread is not None:
                self._stop_pending = True
                return
        self._run_stop_hook()

    def wait_for_service_to_stop(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds (None: for ever) for the stop hook to end; returns whether it has."""
        with self._life:
            return self._life.wait_for(lambda: self._terminated, timeout)

    def register_service_listener(self, listener: ServiceStateChangeListener | Callable[[Service], None]) -> None:
        """Call `listener`, a callable or an object with `state_changed(service)`, after each change of state.

        It runs on the thread that made the change; an error that it raises is only logged.
        """
        notify = cast(Callable[[Service], None], getattr(listener, "state_changed", listener))
        with self._life:
            self._listeners = [*self._listeners, notify]

    def note_failure(self, error: BaseException) -> None:
        """Record why the service fails; the first error, and the state at that moment, stay."""
        with self._life:
            if self._failure is None:
                self._failure = error
                self.failure_state = self._state

    def service_init(self, config: Any) -> None:
        """Hook of `init`."""

    def service_start(self) -> None:
        """Hook of `start`."""

    def service_stop(self) -> None:
        """Hook of `stop`. It must cope with a service that was never inited or started, or that failed half-way."""

    def __enter__(self) -> Self:
        if self._state is ServiceState.NOTINITED:
            self.init()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self._state.name}>"

    def _enter(self, wanted: ServiceState) -> bool:
        """Change the state once no other thread runs a hook; False if the service is already in that state."""
        with self._change():
            while True:
                if wanted not in _ALLOWED[self._state]:
                    raise ServiceStateError(self.name, self._state, wanted, _ADVICE.get(self._state, ""))
                if self._state is wanted:
                    return False
                if self._hook_thread in (None, threading.get_ident()):
                    break
                self._changing.discard(threading.get_ident())
                self._life.wait()
                self._changing.add(threading.get_ident())
            self._hook_thread = threading.get_ident()
            self._state = wanted
            return True

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Hold the lock for a change of state. A stop by a signal handler that interrupts the change follows it."""
        try:
            self._changing.add(threading.get_ident())
            with self._life:
                yield
        finally:
            self._changing.discard(threading.get_ident())
            if self._stop_deferred:
                self._stop_deferred = False
                self.stop()

    def _run_hook(self, entered: ServiceState, hook: Callable[[], None]) -> None:
        try:
            hook()
        except BaseException as error:
            self.note_failure(error)
            with self._change():
                self._hook_thread = None
                self._stop_pending = False
                self._state = ServiceState.STOPPED
            try:
                self._run_stop_hook()
            except Exception as second:
                message = "%s: stop after a failed %s failed too: %s"
                tell(log, logging.WARNING, message, self.name, entered.name, text_of(second))
            raise
        with self._change():
            self._hook_thread = None
            stop_pending, self._stop_pending = self._stop_pending, False
            self._life.notify_all()
        if stop_pending:
            self._run_stop_hook()
        elif self._state is entered:
            self._notify_listeners()

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
            self._notify_listeners()

    def _after_fork(self) -> None:
        """In a forked child: make a new lock, since a thread of the parent may have held the old one."""
        self._life = threading.Condition(threading.RLock())
        self._changing.clear()

    def _notify_listeners(self) -> None:
        for notify in self._listeners:
            try:
                notify(self)
            except BaseException as error:
                reraise_interrupt(error)
                tell(log, logging.ERROR, "%s: a service listener failed", self.name, error=error)


_all_services: weakref.WeakSet[Service] = weakref.WeakSet()


def all_services() -> list[Service]:
    """Every service of the process that is still referred to, whatever its state. Any thread."""
    return snapshot(lambda: list(_all_services))


# Held to change which services belong to which composites. Nothing foreign runs under it, but a composite's `_life` is
# taken. Re-entrant: a signal handler may interrupt its holder. Replaced in a forked child.
_tree = threading.RLock()


def _after_fork() -> None:
    global _tree
    _tree = threading.RLock()
    for service in _all_services:
        service._after_fork()


os.register_at_fork(after_in_child=_after_fork)


class CompositeService(Service):
    """A service made of services: inits and starts them in the order added, stops them in reverse.

    If one fails to start, the services already started are stopped, and the caller gets the error.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.services: tuple[Service, ...] = ()  # replaced under _tree and _life, so a loop over it is safe

    def add_service(self, service: Service) -> None:
        """Add a child before `init`. A child added later is stopped with the others, but not started.

        Raises:
            TypeError: it is not a Service.
            ValueError: it belongs to a composite already, which has not stopped; or the services would form a cycle.
        """
        self.add_services((service,))

    def add_services(self, services: Sequence[Service]) -> None:
        """Add children as `add_service` does: all of them, or none if one is refused."""
        for service in services:
            if not isinstance(service, Service):
                raise TypeError(f"{self.name}: add_service takes a Service, not {text_of(service)}")
        with _tree:
            for index, service in enumerate(services):
                self._check_child(service, (*self.services, *services[:index]))
            for service in services:
                service._parent = weakref.ref(self)
            with self._life:
                self.services = (*self.services, *services)

    def _check_child(self, service: Service, others: tuple[Service, ...]) -> None:
        """Under _tree. Raises ValueError."""
        parent, path = service.parent, _path(service, self)
        if path is not None:
            names = " -> ".join(each.name for each in (self, *path))
            raise ValueError(f"{self.name}: adding {service.name} would make a cycle of services: {names}")
        if any(each is service for each in others):
            raise ValueError(f"{self.name}: {service.name} was added already; a service is added once")
        if parent is not None and not parent.in_state(ServiceState.STOPPED):
            raise ValueError(
                f"{self.name}: {service.name} belongs to {parent.name} already, which starts and stops it. Add it to "
                f"one of the two, or add {parent.name} as a whole."
            )

    def service_init(self, config: Any) -> None:
        for service in self.services:
            service.init(config)

    def service_start(self) -> None:
        for service in self.services:
            if self.in_state(ServiceState.STARTED):
                service.start()

    def service_stop(self) -> None:
        """Stop every child, in reverse order, then raise the first error."""
        first: BaseException | None = None
        for service in reversed(self.services):
            if not service.in_state(ServiceState.INITED, ServiceState.STARTED):
                continue
            try:
                service.stop()
            except Exception as error:
                tell(log, logging.WARNING, "%s: stopping %s failed: %s", self.name, service.name, text_of(error))
                first = first or error
        if first is not None:
            raise first


def _path(service: Service, goal: Service) -> tuple[Service, ...] | None:
    """The services from this one, through its parts, to `goal`; None: that is not among them."""
    if service is goal:
        return (service,)
    for child in service.services if isinstance(service, CompositeService) else ():
        path = _path(child, goal)
        if path is not None:
            return (service, *path)
    return None
