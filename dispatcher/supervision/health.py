"""The health of this process: what `/livez` and `/readyz` answer to probes and service managers.

`live`: the process works, or can recover by itself; otherwise it has to be restarted. `ready`: it works now. Both look
at:

- every dispatcher of the process, as long as it is referred to (`dispatcher.view.dispatchers`). One that has ended, and
  is no part of a watched service, counts only until another one of its name is started: that one replaces it;
- every watched service, with all its parts. `run_until_signal` watches the service that it runs; a `MetricsServer` in a
  CompositeService watches the outermost composite; `health.watch(service)` adds others. Watching a service does not
  keep it alive;
- for `ready`, the checks that the program has registered (`register_check`).

Ready means that all these services are STARTED, and none of `REASONS` holds. Once a service is watched, dispatchers
outside the watched ones may come and go: their orderly stop is no reason.

Any thread may call any function. An answer waits neither for the handler thread nor for a lock that a handler or
logging may hold; only for running checks, at most for their timeouts.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.service import CompositeService, Service, ServiceState
from dispatcher.supervision.checks import HealthCheck
from dispatcher.util import log_files
from dispatcher.util.foreign import plain_text
from dispatcher.view import DispatcherView, dispatchers

REASONS: Final = (
    "failed",
    "stopped",
    "starting",
    "draining",
    "stuck",
    "journal_failed",
    "queue_full",
    "store",
    "check",
)
"""Why a process is not ready, gravest first: the first that holds is the status of the answer."""
QUEUE_FULL_AFTER_S: Final = 1.0
"""A bounded queue at its capacity for this long is a reason."""
_SAME_S: Final = 1.0
"""Two looks may differ by this much on when a run began."""


@dataclass(frozen=True, slots=True)
class HealthReason:
    """Why a process isn't ready, or not live."""

    reason: str
    """One of `REASONS`. A failed check also has its name, for example `check:database`."""
    dispatcher: str | None = None
    """Name of the dispatcher concerned."""
    service: str | None = None
    """Name of another service concerned."""
    seconds: float | None = None
    """How long it has been stuck, or its queue full."""
    since: float | None = field(default=None, compare=False)
    """Since when it has held at every look, in Unix seconds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that have a value."""
        fields = {"reason": self.reason, "dispatcher": self.dispatcher, "service": self.service}
        shown: dict[str, Any] = {name: plain_text(value) for name, value in fields.items() if value is not None}
        return shown if self.seconds is None else {**shown, "seconds": round(self.seconds, 1)}


@dataclass(frozen=True, slots=True)
class HealthWarning:
    """Something for an operator to know, although the process works."""

    warning: str
    """`queue_grows`, `events_fail`, `letters_lost`, `log_lost`, or what a service warns of, such as `store_slow`.

    `journal_lost`: accepted events of an earlier run are lost with a segment of the journal.
    """
    dispatcher: str
    """Name of the dispatcher, or of another service; `logging` for a log file."""
    detail: str
    since: float | None = field(default=None, compare=False)
    """Since when it has held at every look, in Unix seconds."""

    def to_dict(self) -> dict[str, str]:
        return {name: plain_text(getattr(self, name)) for name in ("warning", "dispatcher", "detail")}


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """The answer to a probe."""

    is_ok: bool
    status: str
    """The first of the reasons; without one, `degraded` if there are warnings of trouble to come, otherwise `ok`."""
    reasons: tuple[HealthReason, ...]
    """Reasons in the order of `REASONS`."""
    uptime_s: float
    """Seconds since this process loaded the module."""
    warnings: tuple[HealthWarning, ...] = ()
    """Warnings, which don't make the process unready."""

    def to_json(self) -> str:
        """Return one line of JSON: `{"status": "ok", "reasons": [], "uptime_s": 86400.1}`, plus any `warnings`."""
        reasons = [reason.to_dict() for reason in self.reasons]
        answer: dict[str, Any] = {"status": self.status, "reasons": reasons, "uptime_s": round(self.uptime_s, 1)}
        if self.warnings:
            answer["warnings"] = [warning.to_dict() for warning in self.warnings]
        return json.dumps(answer)


_Key = tuple[str | None, ...]
"""What a reason or a warning is about."""


class Health:
    """Answers for the dispatchers returned by `views`, the watched services and the checks. Any thread can use it.

    `health`, below, is the instance for the process. If you make another, it can cover fewer dispatchers.
    """

    def __init__(
        self,
        views: Callable[[], list[DispatcherView]] = dispatchers,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.views = views
        """The dispatchers covered."""
        self._clock_s = clock_s  # monotonic
        self._since_s = clock_s()  # replaced in a forked child, before another thread runs
        self._lock = threading.Lock()  # leaf lock; replaced in a forked child
        self._watched: tuple[weakref.ref[Service], ...] = ()  # replaced under _lock, read by any thread
        self._checks: dict[str, HealthCheck] = {}  # by name; any thread, each change and each list of it one call
        # Unix seconds, of what the last look has found. Each look replaces it, without a lock: a signal handler may
        # look as well.
        self._since: dict[_Key, float] = {}

    # -- what is looked at ---------------------------------------------------------------------------------------------

    def watch(self, service: Service) -> None:
        """From now on, require `service` and its parts to be started for the process to be ready.

        To undo one `watch`, call `forget` once. It also ends when the service is garbage collected.
        """
        with self._lock:
            self._watched = (*(known for known in self._watched if known() is not None), weakref.ref(service))

    def forget(self, service: Service) -> None:
        """Undo one `watch` of `service`, if there is any."""
        with self._lock:
            watched = list(self._watched)
            for known in watched:
                if known() is service:
                    watched.remove(known)
                    break
            self._watched = tuple(watched)

    @contextmanager
    def watching(self, service: Service) -> Iterator[None]:
        """Watch `service` inside a `with` block."""
        self.watch(service)
        try:
            yield
        finally:
            self.forget(service)

    def register_check(self, name: str, check: Callable[[], Any], timeout_s: float = 1.0) -> None:
        """Make the process ready only while `check()` returns a true value. Replaces an earlier check of the name.

        The check runs on a dedicated thread when `ready` asks, up to once a second. In between, its last result is
        reused. It has failed if it returns a false value, raises, or doesn't return within `timeout_s` seconds. It
        isn't called again before it has returned. The log shows when a check begins to fail, and when it has recovered.

        Raises:
            TypeError: `check` isn't callable, or is an `async def` or a generator function, or `name` isn't a str.
            ValueError: `name` is empty, or `timeout_s` isn't positive and finite.
        """
        made = HealthCheck(name, check, timeout_s, self._clock_s)
        self._checks[made.name] = made

    def unregister_check(self, name: str) -> bool:
        """Forget a check, and return whether there was one."""
        return self._checks.pop(name, None) is not None

    def is_draining(self) -> bool:
        """Whether any dispatcher drains: a stop waits for it, for up to its `drain_timeout_s`."""
        return any(view.is_draining() for view in self.views())

    # -- answers -------------------------------------------------------------------------------------------------------

    def live(self) -> HealthAnswer:
        """Answer whether the process is live: no dispatcher has failed or is stuck for `liveness_stuck_after_s`.

        A dispatcher that lost its handler thread has failed.
        """
        found = []
        views = self._views(self._services())
        for view in views:
            if _has_failed(view):
                found.append(HealthReason("failed", view.name))
            found += _stuck(view, view.liveness_stuck_after_s)
        return self._answer(found, views, [])

    def ready(self, *, waits_for_checks: bool = True, also: Iterable[HealthReason] = ()) -> HealthAnswer:
        """Answer whether the process is ready: all services are started, and none of the other `REASONS` holds.

        Waits for running checks, up to the longest of their timeouts. With `waits_for_checks=False`, you get the last
        answer of each. `also` has further reasons of your own; each `reason` must be one of `REASONS`.
        """
        checks = list(self._checks.values())
        for check in checks:
            check.begin_if_due()
        return self._look(checks, waits_for_checks, also)

    def glance(self) -> HealthAnswer:
        """Answer as `ready` does, without starting a check. It notes since when each reason and warning has held."""
        return self._look([check for check in list(self._checks.values()) if check.has_begun()], False, ())

    def _look(self, checks: list[HealthCheck], waits: bool, also: Iterable[HealthReason]) -> HealthAnswer:
        failed_checks = [check.name for check in checks if not check.is_ok(waits=waits)]  # first: it may wait
        services = self._services()
        views, own = self._views(services), _views_of(services)
        found = [reason for view in views for reason in _reasons_of(view, must_run=view in own or not services)]
        others = [service for service in services if not isinstance(service, AsyncDispatcher)]
        found += [reason for service in others if (reason := _reason_of(service)) is not None]
        found += [HealthReason(f"check:{name}") for name in failed_checks]
        signs = [(sign, view.name) for view in views for sign in view.signs()]
        warned = [((sign.name, name, sign.event_type), sign.detail) for sign, name in signs]
        warned += [((warning[0], each.name, ""), warning[1]) for each in others if (warning := each.warning())]
        warned += [(("log_lost", "logging", str(number)), text) for number, text in enumerate(log_files.warnings())]
        since = self._note({**{key: None for key, _ in warned}, **{_key_of(each): each.seconds for each in found}})
        found = [replace(each, since=since[_key_of(each)]) for each in found]
        warnings = [HealthWarning(key[0], key[1], detail, since[key]) for key, detail in warned]
        return self._answer([*found, *(each for each in also if each not in found)], views, warnings)

    def _note(self, found: Mapping[_Key, float | None]) -> Mapping[_Key, float]:
        """Since when each of these has held; `found` has the seconds of those that know it themselves."""
        now, before = time.time(), self._since
        since = {key: before.get(key, now) for key in found}
        # Another event may be stuck now, and a clock may have been set.
        known = {key: now - seconds for key, seconds in found.items() if seconds is not None}
        since |= {key: at for key, at in known.items() if abs(at - since[key]) >= _SAME_S}
        self._since = since
        return since

    def _answer(
        self, found: list[HealthReason], views: list[DispatcherView], warnings: list[HealthWarning]
    ) -> HealthAnswer:
        reasons = tuple(sorted(found, key=lambda reason: REASONS.index(reason.reason.partition(":")[0])))
        status = reasons[0].reason if reasons else "degraded" if warnings else "ok"
        # A journal loss stays until the next start, so it does not change the status.
        lost = [HealthWarning("journal_lost", view.name, str(loss)) for view in views for loss in view.journal_losses()]
        return HealthAnswer(not reasons, status, reasons, self._clock_s() - self._since_s, (*warnings, *lost))

    def _services(self) -> list[Service]:
        """The watched services with their parts, each once."""
        roots = [service for known in self._watched if (service := known()) is not None]
        return list({id(part): part for root in roots for part in parts_of(root)}.values())

    def _views(self, services: list[Service]) -> list[DispatcherView]:
        """The dispatchers that count, if these services are watched."""
        own = _views_of(services)
        return [view for view in self.views() if view in own or not view.was_replaced()]

    def after_fork(self) -> None:
        """Forget, in a forked child, everything that the parent watches or checks."""
        self._since_s = self._clock_s()
        self._lock = threading.Lock()
        self._watched = ()
        self._since = {}
        for check in self._checks.values():
            check.after_fork()


def _key_of(reason: HealthReason) -> _Key:
    return reason.reason, reason.dispatcher, reason.service


def parts_of(service: Service) -> list[Service]:
    """The service and its parts, recursively."""
    children = service.services if isinstance(service, CompositeService) else ()
    return [service, *(part for child in children for part in parts_of(child))]


def _views_of(services: list[Service]) -> list[DispatcherView]:
    return [service.view for service in services if isinstance(service, AsyncDispatcher)]


def _has_failed(view: DispatcherView) -> bool:
    # In this order: the thread runs before the start hook has ended, and the state is STOPPED before the thread ends.
    is_started, is_alive = not view.is_starting(), view.is_thread_alive()
    return view.failure_cause is not None or (is_started and not is_alive and view.state is ServiceState.STARTED)


def _stuck(view: DispatcherView, after_s: float | None) -> list[HealthReason]:
    running_s = view.running_s()
    return [HealthReason("stuck", view.name, seconds=running_s)] if after_s is not None and running_s > after_s else []


def _reasons_of(view: DispatcherView, *, must_run: bool) -> Iterator[HealthReason]:
    """The reasons of one dispatcher. `must_run`: a stop is one."""
    if _has_failed(view):
        yield HealthReason("failed", view.name)
    elif view.is_starting():
        yield HealthReason("starting", view.name)
    elif view.is_draining():
        if must_run:
            yield HealthReason("draining", view.name)
    elif view.state is ServiceState.STOPPED and must_run:
        yield HealthReason("stopped", view.name)
    yield from _stuck(view, view.handler_warn_after_s)
    if view.journal_is_failed():
        yield HealthReason("journal_failed", view.name)
    full_s = view.full_since_s()
    if full_s is not None and full_s >= QUEUE_FULL_AFTER_S:
        yield HealthReason("queue_full", view.name, seconds=full_s)


def _reason_of(service: Service) -> HealthReason | None:
    """The reason of a service that is not a dispatcher."""
    if service.failure_cause is not None:
        return HealthReason("failed", service=service.name)
    if service.is_starting():
        return HealthReason("starting", service=service.name)
    if service.is_stopping() or (service.state is ServiceState.STOPPED and not all(map(_is_over, parts_of(service)))):
        return HealthReason("draining", service=service.name)
    reason = "stopped" if service.state is ServiceState.STOPPED else service.unready_reason()
    return None if reason is None else HealthReason(reason, service=service.name)


def _is_over(service: Service) -> bool:
    """Never started, or its stop has ended: a handler may leave a stop to another thread."""
    return service.state is not ServiceState.STARTED and not service.is_stopping()


health: Final = Health()
"""The health of this process."""

register_check: Final = health.register_check
"""Register a check with the health of this process."""


os.register_at_fork(after_in_child=health.after_fork)


def watch_whole(service: Service, by: Health = health) -> Service | None:
    """Watch the outermost composite around `service`, and return it, so that the caller can `forget` it.

    Return None, and watch nothing, if `service` is in no composite.
    """
    whole = service
    while whole.parent is not None:
        whole = whole.parent
    if whole is service:
        return None
    by.watch(whole)
    return whole
