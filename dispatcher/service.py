"""The life cycle of every long-lived part: init, start, stop, after Hadoop's AbstractService.

    NOTINITED --init--> INITED --start--> STARTED --stop--> STOPPED      (stop works from every state)

`start` inits the service if nothing has.

Threads: any thread may call any method. The state changes before the hook runs, under a lock that no thread holds while
it runs a hook or a listener, or waits. Hooks never overlap: if `stop` is called while init's or start's hook runs, the
thread of that hook runs the stop hook right afterwards; a `start` during another thread's init hook waits for it.

A stop cannot wait for the thread that it has to wait for: a handler's, for example. Such a caller gets control back at
once, and a thread of the stop's own carries it out, as in Hadoop.

Interrupts: a KeyboardInterrupt, or a signal handler that raises, may end a hook or a wait. Each call clears in
`finally` what it has noted, so after an interrupt between two lines of `stop`, the next `stop` finishes the work.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from time import monotonic
from typing import Any, Final, Literal, Protocol, Self, TypeVar, cast

from dispatcher.errors import DeadlockError, InvalidTypeError, InvalidValueError, ServiceStateError
from dispatcher.util.foreign import reraise_interrupt, tell, text_of
from dispatcher.util.functions import require_plain
from dispatcher.util.registry import Registry
from dispatcher.util.threads import NO_THREAD, in_own_thread, is_owned

log: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")


class ServiceState(Enum):
    """Where a service is in its life cycle."""

    NOTINITED = "NOTINITED"
    INITED = "INITED"
    STARTED = "STARTED"
    STOPPED = "STOPPED"


class ServiceStateChangeListener(Protocol):
    """Called after each change of a service's state."""

    def state_changed(self, service: Service) -> None:
        """Called when the service has entered another state."""


_ALLOWED = {
    ServiceState.NOTINITED: {ServiceState.INITED, ServiceState.STOPPED},
    ServiceState.INITED: {ServiceState.INITED, ServiceState.STARTED, ServiceState.STOPPED},
    ServiceState.STARTED: {ServiceState.STARTED, ServiceState.STOPPED},
    ServiceState.STOPPED: {ServiceState.STOPPED},
}

_BEFORE_STARTED = (ServiceState.NOTINITED, ServiceState.INITED)

_ADVICE = {
    ServiceState.STARTED: "It is already running.",
    ServiceState.STOPPED: "A stopped service does not come back: make a new one.",
}

Caller = Literal["handler", "hook", "loop"]
"""Why a stop cannot wait on the calling thread: the stop waits for that thread's handler, for the hook that it runs, or
for the coroutines of its event loop."""

_CANNOT_WAIT: Final[dict[Caller, str]] = {
    "handler": "a handler cannot wait until its own dispatcher has stopped: stop() goes on without it",
    "hook": "a hook cannot wait until its own service has stopped: stop() goes on after it",
    "loop": "this blocks the event loop that the stop waits for; use `await aio.stop(dispatcher)`",
}

_SECOND_STOP_S: Final = 10.0
"""How long a second caller of `stop` waits for the first, unless the service has a limit of its own."""


class _HookCall:
    """A call of `init`, `start` or `stop` that runs a hook."""

    __slots__ = ("outer", "stops", "thread")

    def __init__(self, *, stops: bool = False) -> None:
        self.thread: Final = threading.get_ident()
        self.stops: Final = stops  # the hook of `stop`
        self.outer: _HookCall | None = None  # within whose hook this one was called; set once, under _life


class Service:
    """A part with a life cycle. In your subclass, override `service_init`, `service_start` and `service_stop`.

    `with service:` inits it (if needed), starts it, and stops it on the way out. `async with service:` does the same in
    a coroutine, whose event loop keeps running while the stop waits.
    """

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not isinstance(name, str):
            raise InvalidTypeError(f"{type(self).__name__}: name must be a str, not {text_of(name)}")
        self.name: str = name or type(self).__name__
        self.config: Any = None
        """The argument of `init`, set before the hook runs."""
        self._life_changed = self._make_life()  # of _life; any thread; both are replaced in a forked child
        self._stop_deferred = False  # a signal handler called `stop` during a change of its thread; any thread
        self._state = ServiceState.NOTINITED  # written under _life, read by any thread; never goes back
        self._hook: _HookCall | None = None  # the innermost that runs; written under _life, read by any thread
        self._was_started = False  # the start hook has begun; written under _life, read by any thread
        self._terminated = False  # the stop hook has ended; written under _life, read by any thread
        self._stop_thread: threading.Thread | None = None  # the stop's own thread, if it has one; any thread
        self._stop_lacks_thread = False  # that thread could not be started yet; any thread
        self._failure: BaseException | None = None  # guarded by _life; the first one stays
        self.failure_state: ServiceState | None = None  # in which it failed; written under _life, read by any thread
        self._listeners: list[Callable[[Service], None]] = []  # replaced under _life, never changed in place
        # The composite that it was added to; written under _tree, read by any thread.
        self._parent: weakref.ref[CompositeService] | None = None
        _all_services.add(self)

    @property
    def state(self) -> ServiceState:
        """The service's state. Thread-safe."""
        return self._state

    @property
    def failure_cause(self) -> BaseException | None:
        """The first error that made this service fail, if any."""
        return self._failure

    @property
    def parent(self) -> CompositeService | None:
        """The composite service you added this one to, if any."""
        return self._parent() if self._parent is not None else None

    def _ancestors(self) -> list[CompositeService]:
        """The composites around this service, from the inside out."""
        found: list[CompositeService] = []
        parent = self.parent
        while parent is not None and parent not in found:
            found.append(parent)
            parent = parent.parent
        return found

    def in_state(self, *states: ServiceState) -> bool:
        """Whether the service is in this state now."""
        return self._state in states

    def is_starting(self) -> bool:
        """Whether it isn't started yet, or its start hook still runs. Thread-safe, without a lock."""
        # The state first: it becomes STARTED after the hook was noted.
        return self._state in _BEFORE_STARTED or (self._state is ServiceState.STARTED and self._hook is not None)

    def is_stopping(self) -> bool:
        """Whether `stop` was called and the stop hook hasn't ended. Thread-safe, without a lock."""
        return self._state is ServiceState.STOPPED and not self._terminated

    def is_ending(self) -> bool:
        """Whether this service, or the composite it was added to, has begun to stop. Takes no lock."""
        parent = self.parent
        return self._state is ServiceState.STOPPED or (parent is not None and parent.is_ending())

    def unready_reason(self) -> str | None:
        """Return why the service can't do its work although it's STARTED: one of the health page's reasons, else None.

        For subclasses. Any thread can call it, and it doesn't block.
        """
        return None

    def warning(self) -> tuple[str, str] | None:
        """Return a warning sign of trouble in the service as its name and detail, or None.

        For subclasses. Any thread can call it, and it doesn't block.
        """
        return None

    def init(self, config: Any = None) -> None:
        """Prepare the service. Idempotent.

        Raises:
            ServiceStateError: the service is started or stopped.
            Exception: the hook raised it. The service is then stopped, with this error as its `failure_cause`.
        """

        def hook() -> None:
            self.config = config
            self.service_init(config)

        self._advance(ServiceState.INITED, hook)

    def start(self) -> None:
        """Start the service. Inits it first, without a config, if that wasn't done. Idempotent.

        Raises:
            ServiceStateError: the service is stopped.
            Exception: a hook raised it. The service is then stopped, with this error as its `failure_cause`.
        """
        if self._state is ServiceState.NOTINITED:
            self.init()
        self._advance(ServiceState.STARTED, self.service_start)

    def stop(self) -> None:
        """Stop the service, from any state and any thread, including a handler's. Idempotent.

        On return the stop hook has ended, with these exceptions:

        - Another thread still runs the hook of init or start. It then runs the stop hook right after that.
        - The stop would wait for its caller, for example a handler. A separate thread then carries it out.
        - Another thread is carrying out the stop. A second caller waits for it: for dispatchers up to their
          `drain_timeout_s`, for other services up to 10 s. To wait longer, use `wait_for_service_to_stop`.
        - A signal handler has interrupted a change of state. The stop follows that change.

        After an interrupted stop, the service is stopped, or the next `stop` ends it.

        Raises:
            Exception: the stop hook raised it. The service still counts as stopped.
        """
        if is_owned(self._life):
            self._stop_deferred = True
        elif not self._stop_once() and self._keeps_stop_waiting() is None:
            run = self._hook
            if run is None or run.stops:
                self._await_termination(self._longest_stop_s())

    def wait_for_service_to_stop(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the stop to end, and return whether it has. None waits without a limit.

        Raises:
            RuntimeError: the caller would wait for itself: it's a handler or a hook of the service, or it's on the
                thread of a handler's event loop.
        """
        if self._terminated or timeout == 0:
            return self._terminated
        caller = self._keeps_stop_waiting()
        if caller is not None:
            raise DeadlockError(f"{self.name}: {_CANNOT_WAIT[caller]}")
        return self._await_termination(timeout)

    def _keeps_stop_waiting(self) -> Caller | None:
        """Why a stop would wait for the calling thread; None: it would not. For subclasses that have such threads."""
        run = self._hook
        return "hook" if run is not None and run.thread == threading.get_ident() else None

    def _longest_stop_s(self) -> float:
        """For how many seconds a second caller of `stop` waits for the first. A hook for subclasses."""
        return _SECOND_STOP_S

    def _ends_unstarted(self) -> bool:
        """Whether a composite stops this service even if it was never started. A hook for subclasses that hold
        something before: events, an open file."""
        return False

    def register_service_listener(self, listener: ServiceStateChangeListener | Callable[[Service], None]) -> None:
        """Call `listener`, a callable or an object with `state_changed(service)`, after each change of state.

        It runs on the thread of the change. If it raises, the error is only logged.

        Raises:
            TypeError: it's neither, or a call of it runs nothing, as of an `async def`.
        """
        notify = cast(Callable[[Service], None], getattr(listener, "state_changed", listener))
        require_plain(notify, "a service listener", "takes the service")

        def register() -> None:
            self._listeners = [*self._listeners, notify]

        self._change(register)

    def unregister_service_listener(self, listener: ServiceStateChangeListener | Callable[[Service], None]) -> bool:
        """Remove one registration of a listener, and return whether it was registered.

        You can call this from any thread, and from the listener itself, which can still get a change being reported
        then.
        """
        notify = cast(Callable[[Service], None], getattr(listener, "state_changed", listener))

        def unregister() -> bool:
            listeners = list(self._listeners)
            if notify not in listeners:
                return False
            listeners.remove(notify)
            self._listeners = listeners
            return True

        return self._change(unregister)

    def _stop_on_failure(self, error: BaseException) -> None:
        """Note the error as the failure's cause, and stop. A hook for subclasses."""
        self._note_failure(error)
        self.stop()

    def _note_failure(self, error: BaseException) -> None:

        def note() -> None:
            if self._failure is None:
                self._failure = error
                self.failure_state = self._state

        self._change(note)

    def service_init(self, config: Any) -> None:
        """Hook of `init`, for you to override."""

    def service_start(self) -> None:
        """Hook of `start`, for you to override."""

    def service_stop(self) -> None:
        """Hook of `stop`. It must also work if the service was never inited or started, or failed halfway."""

    def __enter__(self) -> Self:
        """Init, if needed, and start.

        Raises:
            RuntimeError: the end of the block would block the event loop of this thread, whose coroutines it has to
                wait for. The state has not changed.
            As `init` and `start`.
        """
        if self._has_coroutines_here():
            raise DeadlockError(
                f"{self.name}: the end of a `with` block waits for its `async def` handlers and blocks the event loop "
                "that runs them; use `async with` here"
            )
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._keeps_stop_waiting() is None:
            self.wait_for_service_to_stop()  # another thread may carry out the stop

    async def __aenter__(self) -> Self:
        """Start on this thread, as `start` does."""
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop while the loop goes on. The stop has a thread of its own, and outlives a cancelled task."""
        await in_own_thread(self.__exit__, f"{self.name}-aio-stop")

    def _has_coroutines_here(self) -> bool:
        """Whether the event loop that runs on the calling thread is to run handlers of this service. A hook."""
        return False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self._state.name}>"

    # -- changes of state ---------------------------------------------------------------------------------------------

    def _make_life(self) -> threading.Condition:
        # Leaf lock: nothing foreign runs under it. Re-entrant: a signal handler may interrupt its holder. CPython runs
        # no signal handler between the acquisition by `with` and the body, nor between the body and the release.
        self._life = threading.RLock()
        return threading.Condition(self._life)

    def _change(self, change: Callable[[], T]) -> T:
        """Make a change of state under the lock. A stop by a signal handler that interrupts it follows it."""
        try:
            with self._life:
                return change()
        finally:
            if self._stop_deferred and not is_owned(self._life):
                self._stop_deferred = False
                self.stop()

    def _advance(self, wanted: ServiceState, hook: Callable[[], None]) -> None:
        """Enter the state and run its hook, unless the service is in that state already."""
        run = _HookCall()
        try:
            while not self._change(lambda: self._enter(wanted, run)):
                continue
            if self._hook is not run:
                return
            self._run_hook(run, wanted, hook)
        finally:
            self._leave(run)  # if an interrupt has cut short the line that does so below
        if self._state is ServiceState.STOPPED:
            self.stop()  # one that came during the hook
        elif self._state is wanted:
            self._notify_listeners()

    def _enter(self, wanted: ServiceState, run: _HookCall) -> bool:
        """Under _life. False after a wait for another thread's hook: look again."""
        if wanted not in _ALLOWED[self._state]:
            raise ServiceStateError(self.name, self._state, wanted, _ADVICE.get(self._state, ""))
        if self._state is wanted:
            return True
        running = self._hook
        if running is not None and running.thread != run.thread:
            self._life_changed.wait()
            return False
        run.outer, self._hook = running, run
        self._was_started |= wanted is ServiceState.STARTED  # first: a composite stops what may have started
        self._state = wanted
        return True

    def _run_hook(self, run: _HookCall, entered: ServiceState, hook: Callable[[], None]) -> None:
        try:
            hook()
        except BaseException as error:
            self._give_up(run, entered, error)
            raise
        finally:
            self._leave(run)

    def _give_up(self, run: _HookCall, entered: ServiceState, error: BaseException) -> None:
        """Stop after a hook that has raised `error`."""
        self._note_failure(error)

        def stop_here() -> None:
            self._state = ServiceState.STOPPED

        self._change(stop_here)
        self._leave(run)
        try:
            self.stop()
        except Exception as second:
            message = "%s: stop after a failed %s failed too: %s"
            tell(log, logging.WARNING, message, self.name, entered.name, text_of(second))

    def _leave(self, run: _HookCall, *, terminates: bool = False) -> None:
        """End a call that ran a hook, if it is the innermost one. Repeating it is harmless, as after an interrupt."""

        def leave() -> None:
            if self._hook is run:
                self._hook = run.outer
                self._terminated |= terminates
                self._life_changed.notify_all()

        self._change(leave)

    def _stop_once(self) -> bool:
        """Stop, or return False at once if another thread carries out the stop, or it has ended. Any thread."""
        caller = self._keeps_stop_waiting()
        run = _HookCall(stops=True)
        try:
            if not self._change(lambda: self._begin_stop(run if caller is None else None)):
                return False
            if caller is None:
                self._run_stop_hook(run)
            else:
                if caller == "loop":
                    message = "%s: stop was called on its event loop's thread and continues in the background; "
                    tell(log, logging.WARNING, f"{message}`await aio.stop(dispatcher)` waits for it", self.name)
                self._stop_on_own_thread()
        finally:
            self._leave(run)
        return True

    def _begin_stop(self, run: _HookCall | None) -> bool:
        """Under _life: whether the caller is to run the stop hook, in the call `run`, or to have it run."""
        self._state = ServiceState.STOPPED
        if self._terminated or self._hook is not None:
            return False
        self._hook = run
        return True

    def _run_stop_hook(self, run: _HookCall) -> None:
        is_over = False
        try:
            self.service_stop()
            is_over = True
        except BaseException as error:
            is_over = isinstance(error, Exception)  # after an interrupt, the next stop runs the hook again
            self._note_failure(error)
            raise
        finally:
            self._leave(run, terminates=is_over)
            if is_over:
                self._notify_listeners()
            elif self._is_over():
                self._continue_stop()

    def _is_over(self) -> bool:
        """After an interrupted stop hook: whether nothing is left for another run to do. A hook for subclasses."""
        return False

    def _continue_stop(self) -> None:
        """Carry out the stop if it began and no thread carries it out; its error is logged. Any thread."""
        if not self.is_stopping():
            return
        try:
            self._stop_once()
        except Exception as error:
            tell(log, logging.ERROR, "%s: its stop failed: %s", self.name, text_of(error))

    def _continue_stops_above(self) -> None:
        """Carry out the stops that have begun of the composites that this service is in."""
        for service in self._ancestors():
            service._continue_stop()

    def _retry_stops(self) -> None:
        """Start the threads that could not be started for this stop or for a stop around it. Does not wait."""
        for service in (self, *self._ancestors()):
            if service._stop_lacks_thread and service.is_stopping() and service._hook is None:
                service._stop_on_own_thread()

    def _stop_on_own_thread(self) -> None:
        thread = self._stop_thread
        if thread is not None and thread.is_alive():
            return
        # Not a daemon: the end of the program must not cut the stop short.
        thread = threading.Thread(target=self._continue_stop, name=f"{self.name}-stop", daemon=False)
        try:
            thread.start()
        except NO_THREAD as error:
            if not self._stop_lacks_thread:
                message = "%s: no thread could be started for its stop, which tries again and goes on without one: %s"
                tell(log, logging.WARNING, message, self.name, text_of(error))
            self._stop_lacks_thread = True
            self._stop_without_thread()
        else:
            self._stop_thread, self._stop_lacks_thread = thread, False

    def _stop_without_thread(self) -> None:
        """A stop began on a thread that it would wait for, and no other thread could be started. A hook for subclasses.

        The next `stop` by another thread carries it out.
        """

    def _await_termination(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else monotonic() + timeout

        def wait() -> None:
            self._life_changed.wait_for(lambda: self._terminated, None if deadline is None else deadline - monotonic())

        self._change(wait)
        return self._terminated

    def _after_fork(self) -> None:
        """In a forked child: make a new lock, since a thread of the parent may have held the old one. Hooks that other
        threads were running go on in the parent alone, so nothing waits for their ends."""
        self._life_changed = self._make_life()  # of _life; any thread; both are replaced in a forked child
        if self._hook is not None and self._hook.thread != threading.get_ident():
            self._hook = None
        self._stop_thread, self._stop_deferred = None, False
        self._terminated = self._state is ServiceState.STOPPED

    def _notify_listeners(self) -> None:
        for notify in self._listeners:
            try:
                notify(self)
            except BaseException as error:
                reraise_interrupt(error)
                tell(log, logging.ERROR, "%s: a service listener failed", self.name, error=error)


def note_failure(service: Service, error: BaseException) -> None:
    """Record why the service fails. The first error, and the state at that moment, stay. Any thread."""
    service._note_failure(error)


def stop_on_failure(service: Service, error: BaseException) -> None:
    """Stop because of an error, from any thread. It becomes the `failure_cause` unless there is one."""
    service._stop_on_failure(error)


_all_services: Registry[Service] = Registry()


def all_services() -> list[Service]:
    """Every service of the process that is still referred to, whatever its state. Any thread."""
    return _all_services.all()


# Held to change which services belong to which composites. Nothing foreign runs under it, but a composite's `_life` is
# taken. Re-entrant: a signal handler may interrupt its holder. Replaced in a forked child.
_tree = threading.RLock()


def _after_fork() -> None:
    global _tree
    _tree = threading.RLock()
    for service in _all_services.all():
        with suppress(AttributeError):  # another thread was about to make it, and does so in the parent alone
            service._after_fork()


os.register_at_fork(after_in_child=_after_fork)


class CompositeService(Service):
    """A service made of services, which it inits and starts in the order you added them, and stops in reverse.

    If one fails to start, those already started are stopped, and you get the error. A child that was never started is
    not stopped, unless it's a dispatcher, which then discards the events posted to it.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.services: tuple[Service, ...] = ()  # replaced under _tree and _life, so a loop over it is safe

    def add_service(self, service: Service) -> None:
        """Add a child before `init`. If you add it later, you start it yourself, and it's stopped with the others.

        Raises:
            TypeError: it isn't a Service.
            ValueError: it already belongs to a composite that hasn't stopped, or the services would form a cycle.
        """
        self.add_services((service,))

    def add_services(self, services: Sequence[Service]) -> None:
        """Add children as `add_service` does. If one is rejected, none is added."""
        for service in services:
            if not isinstance(service, Service):
                raise InvalidTypeError(f"{self.name}: add_service takes a Service, not {text_of(service)}")

        def add() -> None:
            self.services = (*self.services, *services)

        with _tree:
            for index, service in enumerate(services):
                self._check_child(service, (*self.services, *services[:index]))
            for service in services:
                service._parent = weakref.ref(self)
            self._change(add)

    def _check_child(self, service: Service, others: tuple[Service, ...]) -> None:
        """Under _tree. Raises ValueError."""
        parent, path = service.parent, _path(service, self)
        if path is not None:
            names = " -> ".join(each.name for each in (self, *path))
            raise InvalidValueError(f"{self.name}: adding {service.name} would make a cycle of services: {names}")
        if any(each is service for each in others):
            raise InvalidValueError(f"{self.name}: {service.name} was added already; a service is added once")
        if parent is not None and not parent.in_state(ServiceState.STOPPED):
            raise InvalidValueError(
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

    def _keeps_stop_waiting(self) -> Caller | None:
        """Why a stop, of this service or of a child, would wait for the calling thread."""
        callers = (super()._keeps_stop_waiting(), *(service._keeps_stop_waiting() for service in self.services))
        return next((caller for caller in callers if caller is not None), None)

    def _has_coroutines_here(self) -> bool:
        return any(service._has_coroutines_here() for service in self.services)

    def _longest_stop_s(self) -> float:
        return sum(service._longest_stop_s() for service in self.services)

    def _is_over(self) -> bool:
        """Every child that is to be stopped has stopped."""
        return all(child._terminated for child in self._children_to_stop())

    def _ends_unstarted(self) -> bool:
        return any(service._ends_unstarted() for service in self.services)

    def _children_to_stop(self) -> list[Service]:
        return [
            child
            for child in self.services
            if child._was_started or (child._ends_unstarted() and not child.in_state(ServiceState.NOTINITED))
        ]

    def _stop_without_thread(self) -> None:
        """Stop the children whose threads keep the stop waiting. When such a thread ends, it goes on with the stop."""
        for service in self.services:
            if service._keeps_stop_waiting() is not None:
                service.stop()

    def service_stop(self) -> None:
        """Stop every child that was started, in reverse order, wait for each, and then raise the first error.

        A child can be stopping already, from its own handler or another thread.
        """

        def stop(service: Service) -> None:
            service.stop()
            if service._keeps_stop_waiting() is None:
                service._await_termination(None)

        self._stop_children(stop, self._children_to_stop())

    def _stop_children(self, stop: Callable[[Service], object], children: Sequence[Service]) -> None:
        """Call `stop` for each of these children, in reverse order; then raise the first error."""
        first: BaseException | None = None
        for service in reversed(children):
            try:
                stop(service)
            except BaseException as error:
                tell(log, logging.WARNING, "%s: stopping %s failed: %s", self.name, service.name, text_of(error))
                first = first or error
        if first is not None:
            raise first

    @staticmethod
    def _end_child(deadline: float, child: Service) -> None:
        """Stop a child, or wait until `deadline` (monotonic seconds) for another thread that does."""
        if child.in_state(ServiceState.STOPPED):
            child._stop_once()
        else:
            child.stop()
        child.wait_for_service_to_stop(max(0.0, deadline - monotonic()))


def _path(service: Service, goal: Service) -> tuple[Service, ...] | None:
    """The services on the way from `service` down to `goal`; None: `goal` is not inside it."""
    if service is goal:
        return (service,)
    for child in service.services if isinstance(service, CompositeService) else ():
        path = _path(child, goal)
        if path is not None:
            return (service, *path)
    return None
