"""What the endpoints of one web address share. The loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from dispatcher.errors import RejectedExecutionError
from dispatcher.web.plain_answers import SOON, Refusal
from dispatcher.web.waiting import Workers, within
from statemachines.resourcemanager.read.model import ReadModel
from statemachines.resourcemanager.read.past import Past
from statemachines.resourcemanager.read.queue_paths import queue_paths
from statemachines.resourcemanager.read.wait_groups import WaitGroups
from statemachines.resourcemanager.read.waits import WaitingReports
from statemachines.resourcemanager.records.errors import (
    AccessDeniedError,
    ApplicationNotStoredError,
    ApplicationRejectedError,
    ChangeNotStoredError,
    InvalidRequestError,
    NotFoundError,
)
from statemachines.resourcemanager.records.web_config import RMWebConfig
from statemachines.resourcemanager.web.users import Users

if TYPE_CHECKING:
    from statemachines.resourcemanager.services.admin_service import AdminService
    from statemachines.resourcemanager.services.client_rm_service import ClientRMService

T = TypeVar("T")

_OF_THE_HOST: Final = 0.9
"""How much of the host's own deadline for an answer a change may take: the host's error does not tell what to do."""
_STATUS_OF: Final[Mapping[type[Exception], int]] = {
    AccessDeniedError: 403,
    NotFoundError: 404,
    InvalidRequestError: 400,
    ApplicationRejectedError: 400,
}


@dataclass(slots=True)
class RMWeb:
    """What the endpoints share. Use it on the loop's thread."""

    model: ReadModel
    clients: ClientRMService
    """Waits for the handler thread, so from an endpoint, call only methods that return a future, with a deadline."""
    admin: AdminService
    """To be used like `clients`."""
    config: RMWebConfig
    name: str
    """Name of the resource manager."""
    workers: Workers = field(default_factory=Workers)
    """Threads for work that would hold up the loop."""
    users: Users = field(init=False)
    waits: WaitingReports = field(init=False)
    """Why applications wait, for all endpoints and pages together."""
    wait_groups: WaitGroups = field(init=False)
    """Waiting applications by cause, for all endpoints and pages together."""
    past: Past = field(init=False)
    """The last minutes of the cluster's key figures."""

    def __post_init__(self) -> None:
        self.users = Users(self.config)
        self.waits = WaitingReports(self.clients.get_waiting_later, self._is_hanging)
        self.wait_groups = WaitGroups(self.model, self.clients.get_waits_later, self._is_hanging)
        self.past = Past(self.model)

    def queue_paths(self) -> Callable[[str], str]:
        """The path of a queue as applications name it, by the last publication. Any thread may call the function."""
        return queue_paths(self.model.queues, self.clients.acls.path_of)

    def _is_hanging(self) -> bool:
        return self.model.hang() is not None


def known_refusal(error: Exception) -> Refusal | None:
    """The answer to a client for an error of the resource manager's services; None: it is none of them."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RejectedExecutionError | TimeoutError | ApplicationNotStoredError | ChangeNotStoredError):
        return Refusal(503, str(error), SOON)
    status = next((status for kind, status in _STATUS_OF.items() if isinstance(error, kind)), None)
    return None if status is None else Refusal(status, str(error))


class WriteDeadline:
    """When the answer to a request that changes something is due."""

    def __init__(self, rm: RMWeb) -> None:
        config = rm.config
        self.seconds: float = min(config.write_timeout_s, _OF_THE_HOST * config.request_deadline_s)
        self._model = rm.model
        self._at_s = asyncio.get_running_loop().time() + self.seconds

    def left_s(self) -> float:
        return max(0.0, self._at_s - asyncio.get_running_loop().time())

    async def result(self, future: Future[T], advice: str) -> T:
        """What the handler thread makes of a call, as long as there is time.

        Raises:
            Refusal: 503: there is no answer in time; `advice` says what to do.
        """
        try:
            return await within(future, self.left_s())
        except TimeoutError:
            late = f"the resource manager has not done this within {self.seconds:g} s; {advice}"
            raise Refusal(503, late, SOON) from None

    async def published(self, most_s: float | None = None) -> None:
        """Wait until the model has all that was done before, so that the client's next request sees it.

        What was done stays done, so an answer must not fail for this: it returns when the time is over, too.
        """
        left_s = self.left_s() if most_s is None else min(most_s, self.left_s())
        with suppress(TimeoutError):
            await self._model.published(left_s)
