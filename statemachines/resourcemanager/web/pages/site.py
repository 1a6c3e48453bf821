"""The frame around a resource manager's pages: its publications, its users, and the notice of a handler that hangs.

Threads: the loop's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request

from dispatcher.ops.shared import Ops
from dispatcher.pages import table
from dispatcher.pages.site import NavEntry, Site, View
from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.model import ReadModel
from statemachines.resourcemanager.web.pages import cluster_texts
from statemachines.resourcemanager.web.pages.access import Viewer, viewer_of
from statemachines.resourcemanager.web.shared import RMWeb, known_refusal
from statemachines.resourcemanager.web.users import UserError

__all__ = ["ROOT", "ClusterSite", "View"]

ROOT: Final = "/cluster"
_OWN: Final = (
    NavEntry("apps", "Applications", "/apps"),
    NavEntry("nodes", "Nodes", "/nodes"),
    NavEntry("scheduler", "Queues", "/scheduler"),
)
ALWAYS: Final = ("entities", "process")
"""The pages of every daemon that are there without the ops API."""


class ClusterSite(Site):
    """The pages of one resource manager."""

    home = ""
    notice_template = "cluster_notice.html"
    templates_of = ("statemachines.resourcemanager.web.pages", *Site.templates_of)

    def __init__(self, rm: RMWeb, ops: Ops, api: str) -> None:
        of_daemons = [each for each in table.NAV if ops.config.enabled or each.name in ALWAYS]
        super().__init__(ops, (*_OWN, *of_daemons), api=api)
        self.templates.filters.update(cluster_texts.FILTERS)
        self.rm = rm

    @property
    def model(self) -> ReadModel:
        return self.rm.model

    @property
    def number(self) -> int:
        return self.model.number

    def root(self, request: Request) -> str:
        return ROOT

    def api(self, request: Request) -> str:
        return self._api

    def now_ms(self) -> int:
        return self.model.now_ms()

    def age_ms(self) -> int:
        return self.model.age_ms()

    async def viewer(self, request: Request) -> Viewer:
        """The user of the request. Raises UserError: `user.name` is not a user's name (400)."""
        return await viewer_of(self.rm, request)

    def link(self, entity: str) -> str | None:
        if entity.startswith("application_"):
            return f"{ROOT}/app/{entity}"
        return f"{ROOT}/appattempt/{entity}" if entity.startswith("appattempt_") else None

    def facts(self) -> Sequence[tuple[str, str]]:
        model, manager = self.model, self.model.manager
        return (
            ("Reported as Hadoop", self.rm.config.hadoop_version),
            ("Service state", manager.state.name),
            ("Cluster timestamp", str(model.cluster_timestamp)),
            ("State store", manager.store_name),
            ("Scheduler", manager.scheduler_name),
            ("Partitions", ", ".join(model.node_labels) or "only the default one"),
            ("REST API", Markup('<a href="/ws/v1/cluster/info">/ws/v1/cluster</a>')),
            ("Metrics", Markup('<a href="/metrics">/metrics</a>')),
        )

    def explained(self, request: Request, error: Exception) -> Refusal:
        return known_refusal(error) or super().explained(request, error)

    async def values(self, request: Request) -> dict[str, Any]:
        try:
            viewer = await self.viewer(request)
        except UserError:
            viewer = Viewer(self.rm.clients.acls, None, None)
        hang, is_active = self.model.hang(), self.model.is_active()
        return {
            **await super().values(request),
            "user": viewer.name,
            "hang": hang if hang is None or viewer.may_view_all() else hang.without_ids(),
            "is_on": is_active,
            "status": "active" if is_active else "not active",
        }
