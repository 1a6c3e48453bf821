"""Who sees an application, and with it its attempts, containers and history.

This is the one place that decides it: REST, pages, CSV, the ops API and their streams ask here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from dispatcher.errors import InvalidValueError
from dispatcher.ops.sight import MaySee
from statemachines.resourcemanager.records.acls import Caller, OwnedApplication, QueueACLs
from statemachines.resourcemanager.records.ids import application_of, attempt_of
from statemachines.resourcemanager.reports import ApplicationReport, view_key

if TYPE_CHECKING:
    from starlette.requests import Request

    from statemachines.resourcemanager.web.shared import RMWeb

_OF_APPLICATIONS: Final = ("application_", "appattempt_", "container_")


def may_view(acls: QueueACLs, app: OwnedApplication, caller: Caller | None) -> bool:
    """Whether the caller may see all of an application, which nobody may without a user."""
    return caller is not None and acls.may_view(app, caller)


def may_view_all(acls: QueueACLs, caller: Caller | None) -> bool:
    """Whether the caller may see all of every application, also of one that is no longer known."""
    return caller is not None and acls.may_view_all(caller)


def viewer(acls: QueueACLs, caller: Caller | None) -> Callable[[ApplicationReport], bool]:
    """A `may_view` that decides once for all applications of one user, queue and list: there may be thousands."""
    known: dict[tuple[str, str, str | None], bool] = {}

    def may(report: ApplicationReport) -> bool:
        key = view_key(report)
        found = known.get(key)
        if found is None:
            found = known[key] = may_view(acls, report, caller)
        return found

    return may


async def may_see(rm: RMWeb, request: Request) -> MaySee:
    """Which entities the user of a request may see: the hook of the ops API.

    An application that isn't known (any more) is seen by those who see all. Nodes are for everyone.
    """
    acls, caller = rm.clients.acls, await rm.users.reader(request)
    return partial(_may_see, rm, viewer(acls, caller), may_view_all(acls, caller))


def _may_see(rm: RMWeb, may: Callable[[ApplicationReport], bool], sees_all: bool, entity: str | None) -> bool:
    if sees_all or entity is None:
        return sees_all
    if not entity.startswith(_OF_APPLICATIONS):
        return True
    app = rm.model.apps.get(_application(entity))
    return app is not None and may(app)


def _application(entity: str) -> str:
    """The id of the application to which an entity belongs, if it's a valid one."""
    if entity.startswith("application_"):
        return entity
    try:
        return application_of(attempt_of(entity) if entity.startswith("container_") else entity)
    except InvalidValueError:
        return ""
