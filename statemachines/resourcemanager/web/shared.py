"""What the endpoints of one web address share. The loop's thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.requests import Request

from dispatcher.ops.json_answers import Workers
from dispatcher.util.http_heads import takes_gzip
from statemachines.resourcemanager.read.model import ReadModel
from statemachines.resourcemanager.read.past import Past
from statemachines.resourcemanager.read.waits import Waits
from statemachines.resourcemanager.records.web_config import RMWebConfig
from statemachines.resourcemanager.web.users import Users

if TYPE_CHECKING:
    from statemachines.resourcemanager.services.admin_service import AdminService
    from statemachines.resourcemanager.services.client_rm_service import ClientRMService


@dataclass(slots=True)
class RMWeb:
    """What the endpoints share. The loop's thread."""

    model: ReadModel
    clients: ClientRMService
    """Waits for the handler thread, so an endpoint calls only what gives a future, with a deadline."""
    admin: AdminService
    """As `clients`."""
    config: RMWebConfig
    name: str
    """Of the resource manager."""
    workers: Workers = field(default_factory=Workers)
    """Threads for work that would hold up the loop."""
    users: Users = field(init=False)
    waits: Waits = field(init=False)
    """Why applications wait, for all endpoints and pages together."""
    past: Past = field(init=False)
    """The last minutes of the cluster's key figures."""

    def __post_init__(self) -> None:
        self.users = Users(self.config)
        self.waits = Waits(self.clients.get_waiting_later, lambda: self.model.hang() is not None)
        self.past = Past(self.model)


def wants_gzip(request: Request) -> bool:
    """Whether the client takes an answer that is compressed."""
    return takes_gzip(request.headers.getlist("accept-encoding"))
