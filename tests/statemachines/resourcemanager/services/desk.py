"""A workshop for the services: a scheduler whose every answer the test decides, and a handler thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from statemachines.resourcemanager import (
    ApplicationSubmission,
    ContainerRequest,
    Resource,
    RMContainer,
    RMContainerState,
)

from ....kit.holding import held
from ..builders import FakeScheduler, Workshop
from ..inner import ApplicationUse, InvalidRequestError, WaitingAsk

TIMEOUT_S = 60.0


class DeskScheduler(FakeScheduler):
    """Records its calls, and answers as the test has set it."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, list[RMContainer]] = {}  # by attempt
        self.why_refused: str | None = None  # any submission
        self.move_fails: str | None = None  # why, though the check had found nothing
        self.moved: list[tuple[str, str]] = []
        self.priorities: list[tuple[str, int]] = []
        self.resized: list[tuple[str, Resource]] = []
        self.too_large: set[Resource] = set()  # what `request_resize` refuses
        self.waits: dict[str, list[WaitingAsk]] = {}  # by attempt
        self.uses: dict[str, ApplicationUse] = {}  # by attempt, but for its live containers

    @contextmanager
    def locked(self) -> Iterator[DeskScheduler]:
        """It is its own policy."""
        yield self

    def application_use(self, attempt_id: str, used: Any = None) -> ApplicationUse:
        use = self.uses.get(attempt_id, ApplicationUse())
        return use._replace(live=tuple(self.live_containers(attempt_id)))

    def waiting_asks(self, attempt_id: str, looks: Any = None) -> list[WaitingAsk]:
        return self.waits.get(attempt_id, [])

    def live_containers(self, attempt_id: str) -> list[RMContainer]:
        return self.live.get(attempt_id, [])

    def check_submission(self, submission: ApplicationSubmission) -> str | None:
        return self.why_refused

    def check_move(self, application: str, queue: str) -> None:
        return None

    def move_application(self, application: str, queue: str) -> None:
        if self.move_fails is not None:
            raise InvalidRequestError(self.move_fails)
        self.moved.append((application, queue))

    def update_priority(self, application: str, priority: int) -> None:
        self.priorities.append((application, priority))

    def request_resize(self, container_id: str, resource: Resource) -> bool:
        if resource in self.too_large:
            return False
        self.resized.append((container_id, resource))
        return True

    def queue_info(self, path: str) -> None:
        return None


class Desk(Workshop):
    """A workshop with a DeskScheduler."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.desk_scheduler = DeskScheduler()
        self.scheduler = self.desk_scheduler
        self.context.scheduler = self.scheduler  # type: ignore[assignment]

    def live(self, attempt: str, number: int, state: str = "RUNNING", **more: Any) -> RMContainer:
        """A live container, of 1 GB and a core by default, known to the context and the scheduler."""
        request = ContainerRequest(**({"resource": Resource(1024, 1000), "kind": "map"} | more))
        container_id = f"container{attempt.removeprefix('appattempt').rpartition('_')[0]}_01_{number:06d}"
        app_id = "application" + attempt.removeprefix("appattempt").rpartition("_")[0]
        container = RMContainer(self.context, container_id, app_id, attempt, "node1:45454", request, ())
        self.context.containers[container_id] = container
        self.desk_scheduler.live.setdefault(attempt, []).append(container)
        assert state in RMContainerState.__members__
        return self._put(container, state)


class HandlerThread:
    """Runs its tasks one after the other; can be held up."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._thread = self._pool.submit(threading.current_thread).result(TIMEOUT_S)
        self._mails: list[Future[Any]] = []

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def execute(self, function: Callable[[], Any]) -> None:
        self._mails.append(self._pool.submit(function))

    def call(self, function: Callable[[], Any]) -> Any:
        """As `RMContext.call`: the result, or the error, of what runs on the thread."""
        return function() if self.is_current() else self._pool.submit(function).result(TIMEOUT_S)

    def flush(self) -> None:
        """Returns once all that was handed over before is done."""
        self.call(lambda: None)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is done in the block; all that is handed over meanwhile is done after it."""
        with held(self.execute):
            yield

    @contextmanager
    def of(self, workshop: Workshop) -> Iterator[HandlerThread]:
        """Makes this the handler thread of a workshop's context, and ends it after the block."""
        context = workshop.context
        context.call, context.execute, context.on_handler_thread = self.call, self.execute, self.is_current
        with self._pool:
            yield self
        for mail in self._mails:
            mail.result()
