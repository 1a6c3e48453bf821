"""Why an application waits, for clients. Built on the handler thread and immutable: any thread may read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.states import RMAppAttemptState, RMAppState
from statemachines.resourcemanager.scheduler.core.placement import KnownCauses, NodeLooks
from statemachines.resourcemanager.scheduler.wait_reasons import WaitCause, WaitingAsk, WaitReason

_BEFORE_STORED = frozenset({RMAppState.NEW, RMAppState.NEW_SAVING})
_ACTIVE = frozenset({RMAppState.ACCEPTED, RMAppState.RUNNING})
_BEING_STORED = frozenset({RMAppAttemptState.LAUNCHED_UNMANAGED_SAVING, RMAppAttemptState.FINAL_SAVING})
_MASTER_STARTS = frozenset(
    {RMAppAttemptState.ALLOCATED_SAVING, RMAppAttemptState.ALLOCATED, RMAppAttemptState.LAUNCHED}
)


@dataclass(frozen=True, slots=True)
class WaitingReport:
    """What one application waits for."""

    application_id: str
    as_of_ms: int
    """Unix ms of the resource manager's clock."""
    reason: WaitReason | None
    """Of the ask that is served first, or why it has no asks yet; None: it waits for nothing."""
    asks: tuple[WaitingAsk, ...] = ()
    """Its pending asks, equal ones together, in order of service."""

    @property
    def sentence(self) -> str | None:
        return self.reason.sentence if self.reason is not None else None


def waiting_reports(context: RMContext, app_ids: Iterable[str]) -> list[WaitingReport]:
    """Of those that are known, in the order given. They share their looks at nodes, which bounds what they cost."""
    looks, found = NodeLooks(), [context.apps.get(app_id) for app_id in app_ids]
    return [_waiting_report(context, app, looks) for app in found if app is not None]


def _waiting_report(context: RMContext, app: RMApp, looks: NodeLooks) -> WaitingReport:
    now_ms = context.now_ms()
    attempt = app.current_attempt
    if app.state in _ACTIVE and attempt is not None:
        asks = tuple(context.scheduler.waiting_asks(attempt.entity, looks))
        if asks:
            return WaitingReport(app.entity, now_ms, asks[0].reason, asks)
    return WaitingReport(app.entity, now_ms, _why_no_asks(context, app))


class AppWait(NamedTuple):
    """Why one application waits, in short."""

    application_id: str
    cause: WaitCause
    """That of its WaitingReport's reason."""
    since_ms: int
    """When it began to wait, Unix ms: its start, or that of a later attempt."""


def app_waits(context: RMContext, app_ids: Iterable[str]) -> list[AppWait]:
    """Of those that wait for something. Cheaper than their reports, since most of them wait for the same causes."""
    known, found = KnownCauses(), []
    for app_id in app_ids:
        app = context.apps.get(app_id)
        cause = _cause(context, app, known) if app is not None else None
        if app is not None and cause is not None:
            attempt = app.current_attempt
            is_later = attempt is not None and attempt.number > 1
            found.append(AppWait(app_id, cause, attempt.start_ms if attempt and is_later else app.start_ms))
    return found


def _cause(context: RMContext, app: RMApp, known: KnownCauses) -> WaitCause | None:
    attempt = app.current_attempt
    if app.state in _ACTIVE and attempt is not None:
        cause = context.scheduler.wait_cause(attempt.entity, known)
        if cause is not None:
            return cause
    reason = _why_no_asks(context, app)
    return reason.cause if reason is not None else None


def _why_no_asks(context: RMContext, app: RMApp) -> WaitReason | None:
    state, attempt = app.state, app.current_attempt
    if state in _BEFORE_STORED:
        return WaitReason(WaitCause.STORING, "its submission is being stored", user=app.submission.user)
    if state is RMAppState.SUBMITTED:
        # Once the scheduler has the application, its queue counts it, and may be full by that.
        is_known = context.scheduler.queue_of(app.entity) is not None
        with context.scheduler.locked() as policy:
            refusal = None if is_known else policy.check_submission(app.submission)
        if refusal is not None:
            return WaitReason(WaitCause.QUEUE_CLOSED, refusal, app.submission.queue, app.submission.user)
    elif state is not RMAppState.ACCEPTED:
        return None
    if attempt is not None and attempt.state in _BEING_STORED:
        return WaitReason(WaitCause.STORING, "the state of its attempt is being stored")
    if attempt is None or attempt.state not in _MASTER_STARTS:
        return WaitReason(WaitCause.SCHEDULING, "the scheduler has not taken it yet", app.submission.queue)
    if attempt.master_container is None:
        return WaitReason(WaitCause.MASTER_STARTING, "its master, which it starts itself, has not registered yet")
    sentence = (
        f"its master has container {attempt.master_container} on node {attempt.master_node} and has not registered yet"
    )
    return WaitReason(WaitCause.MASTER_STARTING, sentence, node=attempt.master_node)
