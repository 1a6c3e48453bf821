"""Submissions: creates applications, and answers their clients once they are stored.

Threading: any thread may submit and close. Applications are changed on the handler thread only.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial

from dispatcher.errors import RejectedExecutionError
from statemachines.resourcemanager.context import RMContext
from statemachines.resourcemanager.errors import ApplicationRejectedError, InvalidRequestError
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppEventType
from statemachines.resourcemanager.ids import application_id, is_application_id
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.states import RMAppState
from statemachines.resourcemanager.resource import GPU_MILLI
from statemachines.resourcemanager.services.allocations import check_allocation
from statemachines.resourcemanager.submission import ApplicationSubmission

_NOT_STORED = frozenset({RMAppState.NEW, RMAppState.NEW_SAVING})


class ApplicationSubmitter:
    """Allocates ids, creates applications, and acknowledges them once they are stored."""

    def __init__(self, context: RMContext) -> None:
        self._context = context
        self._last_number: int | None = None  # last allocated number; handler thread only
        self._unstored: dict[str, list[Future[str]]] = {}  # by application; handler thread only
        self._lock = threading.Lock()  # leaf lock: nothing foreign is called while it is held
        self._waiting: set[Future[str]] = set()  # guarded by _lock; the thread that removes a future completes it
        self._is_closed = False  # guarded by _lock; set once

    def close(self) -> None:
        """Fail all waiting submissions. Any thread, more than once."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, set()
        for answer in waiting:
            answer.set_exception(
                RejectedExecutionError(
                    "the resource manager stopped before it acknowledged the application, which may be stored "
                    "nevertheless. Once a resource manager runs again, submit it with the same id"
                )
            )

    def submit(self, submission: ApplicationSubmission, timeout: float | None) -> str:
        """As ClientRMService.submit_application says. Any thread."""
        context = self._context
        _check(submission)
        if context.on_handler_thread():
            return self._begin(submission).entity
        answer: Future[str] = Future()
        with self._lock:
            if self._is_closed:
                raise RejectedExecutionError("the resource manager has stopped: nothing was submitted")
            self._waiting.add(answer)
        try:
            context.execute(partial(self._begin_and_answer, submission, answer))
            return answer.result(timeout)
        except TimeoutError:
            advice = "Submit it again with the same id to find out."
            if submission.application_id is None:
                advice = "Look for it among the applications; an id from get_new_application allows a retry."
            about = submission.application_id or repr(submission.name)
            raise TimeoutError(
                f"application {about} was not stored within {timeout} s; it may still be stored later. {advice}"
            ) from None
        finally:
            with self._lock:
                self._waiting.discard(answer)

    def new_id(self) -> str:
        """An unused id. Handler thread only."""
        context = self._context
        known, timestamp = context.apps, context.cluster_timestamp
        if self._last_number is None:  # after the recovery, which may restore ids of the same timestamp
            prefix = application_id(timestamp, 0).rpartition("_")[0] + "_"
            self._last_number = max((app.number for id, app in known.items() if id.startswith(prefix)), default=0)
        while True:
            self._last_number += 1
            id = application_id(timestamp, self._last_number)
            if id not in known:  # a client may have chosen it itself
                return id

    def _begin(self, submission: ApplicationSubmission) -> RMApp:
        context = self._context
        id = submission.application_id or self.new_id()
        app = context.apps.get(id)
        if app is None:
            if not submission.unmanaged_am:
                check_allocation(context, submission.queue, [submission.am_resource])
            app = context.apps[id] = RMApp(context, id, submission)
            payload = {"name": submission.name, "user": submission.user, "queue": submission.queue}
            context.post(RMAppEvent(RMAppEventType.START, id, payload=payload))
        return app

    def _begin_and_answer(self, submission: ApplicationSubmission, answer: Future[str]) -> None:
        """Begin, and complete `answer` in any case: its client waits."""
        try:
            app = self._begin(submission)
        except Exception as error:
            self._answer(answer, error)
            return
        if app.state in _NOT_STORED or app.acknowledge is not None:
            self._unstored.setdefault(app.entity, []).append(answer)
            app.acknowledge = self._acknowledge
        else:
            self._answer(answer, app.entity)

    def _acknowledge(self, app: RMApp) -> None:
        """Called by the application once it is stored, or has ended before that."""
        ended = app.finish_ms is not None
        result = ApplicationRejectedError(app.entity, "; ".join(app.diagnostics)) if ended else app.entity
        for answer in self._unstored.pop(app.entity):
            self._answer(answer, result)

    def _answer(self, answer: Future[str], result: str | Exception) -> None:
        with self._lock:
            if answer not in self._waiting:
                return  # its client has given up
            self._waiting.discard(answer)
        if isinstance(result, str):
            answer.set_result(result)
        else:
            answer.set_exception(result)


def _check(submission: ApplicationSubmission) -> None:
    id = submission.application_id
    if id is not None and not is_application_id(id):
        raise InvalidRequestError(f"{id!r} is not the id of an application: use one from get_new_application, or None")
    if not submission.am_resource.is_possible():
        raise InvalidRequestError(
            f"am_resource is {submission.am_resource}: amounts must be at least 0, and the share of a GPU 1 to "
            f"{GPU_MILLI} thousandths"
        )
    if submission.lifetime_s is not None and submission.lifetime_s < 1:
        raise InvalidRequestError(f"lifetime_s is {submission.lifetime_s}: it must be at least 1, or None for no limit")
