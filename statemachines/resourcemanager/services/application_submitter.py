"""Submissions: creates applications, and acknowledges them once they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.states import RMAppState
from statemachines.resourcemanager.records.acls import Caller
from statemachines.resourcemanager.records.errors import (
    AccessDeniedError,
    ApplicationNotStoredError,
    ApplicationRejectedError,
    InvalidRequestError,
)
from statemachines.resourcemanager.records.ids import application_id, is_application_id
from statemachines.resourcemanager.records.resource import GPU_MILLI, MOST, shown
from statemachines.resourcemanager.records.submission import ApplicationSubmission
from statemachines.resourcemanager.services.allocations import check_allocation
from statemachines.resourcemanager.services.handler_calls import Stored

# YARN's limits:
_MOST_TAGS = 10
_LONGEST_TAG = 100
_LONGEST_TYPE = 20
_PRIORITIES = range(-(2**31), 2**31)
# Ours:
_LONGEST_LIFETIME_S = 10**11  # 3,000 years: its end has a date
_NOT_STORED = frozenset({RMAppState.NEW, RMAppState.NEW_SAVING})


class ApplicationSubmitter:
    """Allocates ids, creates applications, and acknowledges them once they are stored. Handler thread only."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self._last_number = 0  # last allocated number
        self._unstored: dict[str, list[Stored[str]]] = {}  # by application

    def submission(self, submission: ApplicationSubmission, caller: Caller | None) -> Callable[[], Stored[str]]:
        """What the handler thread does for a submission. Any thread.

        Raises:
            InvalidRequestError: the submission is not valid.
        """
        checked = _checked(submission, caller)

        def begin() -> Stored[str]:
            app = self._begin(checked, caller)
            if app.is_unstored:
                raise _rejection(app)
            stored = Stored(app.entity)
            if app.state in _NOT_STORED or app.acknowledge is not None:
                self._unstored.setdefault(app.entity, []).append(stored)
                app.acknowledge = self._acknowledge
            else:
                stored.confirm()
            return stored

        return begin

    def new_id(self) -> str:
        """An unused id. Its timestamp is later than any that was stored: a recovery sees to that."""
        context = self._context
        known, timestamp = context.apps, context.cluster_timestamp
        while True:
            self._last_number += 1
            id = application_id(timestamp, self._last_number)
            if id not in known:  # a client may have chosen it itself
                return id

    def _begin(self, submission: ApplicationSubmission, caller: Caller | None) -> RMApp:
        context = self._context
        id = submission.application_id or self.new_id()
        app = context.apps.get(id)
        if app is None:
            if caller is not None:
                self._check_queue(id, submission, caller)
            if not submission.unmanaged_am:
                check_allocation(context, submission.queue, [submission.am_resource])
            app = context.apps[id] = RMApp(context, id, submission)
            payload = {"name": submission.name, "user": submission.user, "queue": submission.queue}
            context.post(RMAppEvent(RMAppEventType.START, id, payload=payload))
        return app

    def _check_queue(self, id: str, submission: ApplicationSubmission, caller: Caller) -> None:
        """
        Raises:
            AccessDeniedError: the caller may not submit to the queue.
            InvalidRequestError: the queue cannot take the application.
        """
        acls, queue = self._context.acls, submission.queue
        if acls.path_of(queue) is not None and not acls.may_submit(queue, caller):
            raise AccessDeniedError(
                caller.user, f"User {caller.user} does not have permission to submit {id} to queue {queue}"
            )
        with self._context.scheduler.locked() as policy:
            refusal = policy.check_submission(submission)
        if refusal is None and acls.path_of(queue) is None:  # the FIFO scheduler itself takes any name
            refusal = f"queue {queue!r} does not exist"
        if refusal is not None:
            raise InvalidRequestError(f"{id} cannot be submitted: {refusal}")

    def _acknowledge(self, app: RMApp) -> None:
        """Called by the application once it is stored, or has ended before that."""
        for stored in self._unstored.pop(app.entity):
            if app.finish_ms is None:
                stored.confirm()
            else:
                stored.refuse(_rejection(app))


def _rejection(app: RMApp) -> ApplicationRejectedError:
    kind = ApplicationNotStoredError if app.is_refused_by_store else ApplicationRejectedError
    return kind(app.entity, "; ".join(app.diagnostics))


def _checked(submission: ApplicationSubmission, caller: Caller | None) -> ApplicationSubmission:
    """The submission as it is kept. Raises InvalidRequestError."""
    id = submission.application_id
    if id is not None and not is_application_id(id):
        raise InvalidRequestError(f"{id!r} is not the id of an application: use one from get_new_application, or None")
    if not submission.am_resource.is_possible():
        raise InvalidRequestError(
            f"am_resource is {submission.am_resource}: amounts must be 0 to {MOST}, and the share of a GPU 1 to "
            f"{GPU_MILLI} thousandths"
        )
    if submission.lifetime_s is not None and submission.lifetime_s < 1:
        raise InvalidRequestError(f"lifetime_s is {submission.lifetime_s}: it must be at least 1, or None for no limit")
    check_lifetime(submission.lifetime_s)
    check_priority(submission.priority)
    return submission._replace(
        user=submission.user if caller is None else caller.user,
        tags=_checked_tags(submission.tags),
        application_type=submission.application_type[:_LONGEST_TYPE] or "YARN",
        launch=None if submission.launch is None else submission.launch.copied(),
    )


def check_lifetime(lifetime_s: int | None) -> None:
    """Raises InvalidRequestError."""
    if lifetime_s is not None and lifetime_s > _LONGEST_LIFETIME_S:
        raise InvalidRequestError(
            f"lifetime_s is {shown(lifetime_s)}: it must be at most {_LONGEST_LIFETIME_S}, or None for no limit"
        )


def check_priority(priority: int) -> None:
    """Raises InvalidRequestError."""
    if priority not in _PRIORITIES:
        raise InvalidRequestError(
            f"the priority must be {_PRIORITIES[0]} to {_PRIORITIES[-1]}, and {shown(priority)} is not"
        )


def _checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """In lower case, each once, within YARN's limits. Raises InvalidRequestError."""
    checked = tuple(dict.fromkeys(tag.strip().lower() for tag in tags))
    if len(checked) > _MOST_TAGS:
        raise InvalidRequestError(f"Too many applicationTags: {len(checked)}; the maximum is {_MOST_TAGS}")
    for tag in checked:
        if len(tag) > _LONGEST_TAG:
            raise InvalidRequestError(
                f"Tag {tag[:_LONGEST_TAG]}... is too long: it has {len(tag)} characters; the maximum is {_LONGEST_TAG}"
            )
        if not (tag.isascii() and tag.isprintable()):
            raise InvalidRequestError(f"A tag can only have printable ASCII characters. Invalid tag: {tag!a}")
    return checked
