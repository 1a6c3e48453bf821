"""Who looks at a page, and what the buttons on it may do. The loop's thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import Request

from statemachines.resourcemanager.records.acls import Caller, QueueACLs
from statemachines.resourcemanager.records.errors import AccessDeniedError
from statemachines.resourcemanager.reports import ApplicationReport
from statemachines.resourcemanager.web.shared import RMWeb
from statemachines.resourcemanager.web.users import UserError
from statemachines.resourcemanager.web.visibility import may_view, may_view_all, viewer


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user of one request. Answers from configured lists and reports."""

    acls: QueueACLs
    reader: Caller | None
    """Whose rights decide what is shown; None: there is no user."""
    writer: Caller | None
    """On whose behalf buttons act; None: there are no buttons."""

    @property
    def name(self) -> str:
        return self.reader.user if self.reader is not None else "nobody"

    def may_view(self, app: ApplicationReport) -> bool:
        return may_view(self.acls, app, self.reader)

    def sight(self) -> Callable[[ApplicationReport], bool]:
        """A function that answers `may_view` quickly, for thousands of applications."""
        return viewer(self.acls, self.reader)

    def may_view_all(self) -> bool:
        """Whether nothing is hidden from the user."""
        return may_view_all(self.acls, self.reader)

    def may_change(self, app: ApplicationReport) -> bool:
        """Whether buttons that change the application are shown."""
        return self.writer is not None and self.acls.may_modify(app, self.writer)

    def may_administer(self) -> bool:
        """Whether buttons that change nodes are shown."""
        if self.writer is None:
            return False
        try:
            self.acls.check_administrator(self.writer, "refreshNodes")
        except AccessDeniedError:
            return False
        return True


async def viewer_of(rm: RMWeb, request: Request) -> Viewer:
    """Raises UserError: `user.name` is not a user's name (400)."""
    reader, writer = await rm.users.reader(request), None
    if not rm.config.read_only:
        with suppress(UserError):
            writer = await rm.users.writer(request)
    return Viewer(rm.clients.acls, reader, writer)
