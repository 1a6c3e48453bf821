"""/cluster/app/{id}: one application, its attempts and containers, its course, and why it waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from dispatcher.pages.site import View
from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.fields import ENDED, Around, resources_s
from statemachines.resourcemanager.records.ids import application_of, container_prefix, is_application_id
from statemachines.resourcemanager.reports import ApplicationAttemptReport, ApplicationReport, ContainerReport
from statemachines.resourcemanager.web.pages import timeline
from statemachines.resourcemanager.web.pages.applications import FAILED, may_wait
from statemachines.resourcemanager.web.pages.histories import Entered, Histories, history_of
from statemachines.resourcemanager.web.pages.site import ClusterSite

APP: Final = "/cluster/app"
CONTAINERS_SHOWN: Final = 200
_DRAWN: Final = 24
"""Most containers in the timeline; the first half of them is always visible."""
_UNFOLDED: Final = 12


def routes(site: ClusterSite, histories: Histories) -> Sequence[BaseRoute]:
    async def attempt(request: Request) -> Response:
        return RedirectResponse(f"{APP}/{application_of(request.path_params['id'])}")

    async def container(request: Request) -> Response:
        return RedirectResponse(f"/cluster/entity/{request.path_params['id']}")

    return [
        Route(f"{APP}/{{id}}", site.page(lambda request: app_view(site, histories, request)), methods=["GET"]),
        Route("/cluster/appattempt/{id}", attempt, methods=["GET"]),
        Route("/cluster/container/{id}", container, methods=["GET"]),
    ]


def find(site: ClusterSite, request: Request) -> ApplicationReport:
    """The application that the address names. Raises Refusal (404)."""
    id = request.path_params["id"]
    app = site.model.apps.get(id)
    if app is None:
        reason = (
            "it is unknown, or was forgotten after its end" if is_application_id(id) else "this is not the id of one"
        )
        raise Refusal(404, f"application {id[:100]}: {reason}")
    return app


async def app_view(site: ClusterSite, histories: Histories, request: Request) -> View:
    app = find(site, request)
    id, model = app.application_id, site.model
    viewer = await site.viewer(request)
    if not viewer.may_view(app):
        return View("app.html", id, {"app": app, "is_visible": False}, section="apps")
    attempts = model.attempts.get(id, ())
    live = {each.attempt_id: model.containers.get(each.attempt_id, {}) for each in attempts}
    containers = [each for found in live.values() for each in found.values()]
    waits, late = await site.rm.waits.known([id] if app.state not in ENDED else [])
    now_ms = model.now_ms()
    memory_mb_s, vcore_s, _ = resources_s(app, Around(now_ms))
    values = {
        "app": app,
        "is_visible": True,
        "attempts": attempts[::-1],
        "containers": containers[:CONTAINERS_SHOWN],
        "containers_left_out": max(0, len(containers) - CONTAINERS_SHOWN),
        "waiting": waits.get(id),
        "is_late": id in late and may_wait(app),
        "has_ended": app.state in ENDED,
        "memory_mb_s": memory_mb_s,
        "vcore_s": vcore_s,
        "timeline": await _timeline(histories, model.failures, app, attempts, containers, now_ms),
        "may_change": viewer.may_change(app) and app.state not in ENDED,
        "history": await history_of(site, id, await site.sight(request)),
    }
    parts = ("head", "waiting", "facts", "timeline", "attempts", "containers", "history")
    return View("app.html", app.name or id, values, "apps", parts, is_partial=bool(late))


async def _timeline(
    histories: Histories,
    failures: Mapping[str, int],
    app: ApplicationReport,
    attempts: Sequence[ApplicationAttemptReport],
    containers: Sequence[ContainerReport],
    now_ms: int,
) -> Mapping[str, Any]:
    """Two drawings: the visible rows, and the later containers."""
    ids = container_ids(attempts, containers)
    wanted = [app.application_id, *(each.attempt_id for each in attempts), *ids]
    try:
        found = await histories.of(wanted)
    except Refusal:
        found = {}
    made_ms = {each.container_id: each.created_ms for each in containers}
    states = {each.container_id: each.state for each in containers}
    rows = [_app_row(app, found.get(app.application_id, ()))]
    for each in attempts:
        rows.append(_attempt_row(each, found.get(each.attempt_id, ())))
    bars = []
    for id in ids:
        moves: tuple[Entered, ...] = found.get(id, ())
        if not moves and id in made_ms:
            moves = (Entered(made_ms[id], states[id]),)
        if moves:
            exit_status = failures.get(id) or moves[-1].exit_status
            failure = f"exit status {exit_status}" if exit_status else ""
            label = f"container {id.rpartition('_')[2].lstrip('0')}"
            bars.append(timeline.row_of(label, id, moves, failure=failure))
    rows += bars[:_UNFOLDED]
    folded = bars[_UNFOLDED:_DRAWN]
    return {
        "drawing": timeline.draw(rows, now_ms, app.submit_ms, app.finish_ms),
        "folded": timeline.draw(folded, now_ms, app.submit_ms, app.finish_ms) if folded else Markup(""),
        "folded_count": len(folded),
        "others": max(0, len(containers) - len(bars)),
    }


def container_ids(attempts: Sequence[ApplicationAttemptReport], containers: Sequence[ContainerReport]) -> list[str]:
    """The first containers of the attempts, ended ones too: their ids count up from the master's."""
    known = {each.container_id for each in containers}
    prefixes: dict[str, None] = {}
    for attempt in attempts:
        master = attempt.master_container
        epoch = 0
        if master is not None and master.startswith("container_e"):
            epoch = int(master.removeprefix("container_e").partition("_")[0])
        prefixes[container_prefix(attempt.attempt_id, epoch)] = None
    share = _DRAWN // max(1, len(prefixes))
    ids = dict.fromkeys(f"{prefix}{number:06d}" for prefix in prefixes for number in range(1, share + 1))
    rest = [id for id in sorted(known) if id not in ids]
    return [*ids, *rest][: 2 * _DRAWN]


def _failure(final_status: str) -> str:
    """An application or attempt has finished, but its master said that it has not succeeded."""
    return f"final status {final_status}" if final_status in FAILED else ""


def _with_end(moves: Sequence[Entered], finish_ms: int | None, state: str) -> Sequence[Entered]:
    """The moves, which may have been looked up before the end."""
    return moves if finish_ms is None or moves[-1].state == state else [*moves, Entered(finish_ms, state)]


def _app_row(app: ApplicationReport, moves: Sequence[Entered]) -> timeline.Row:
    if not moves:
        moves = [Entered(app.submit_ms, "ACCEPTED")]
        if app.launch_ms is not None:
            moves.append(Entered(app.launch_ms, "RUNNING"))
        if app.finish_ms is not None:
            moves.append(Entered(app.finish_ms, app.state))
    moves = _with_end(moves, app.finish_ms, app.state)
    return timeline.row_of("application", app.application_id, moves, app.submit_ms, _failure(app.final_status))


def _attempt_row(attempt: ApplicationAttemptReport, moves: Sequence[Entered]) -> timeline.Row:
    if not moves:
        moves = [Entered(attempt.start_ms, attempt.state if attempt.finish_ms is None else "RUNNING")]
    moves = _with_end(moves, attempt.finish_ms, attempt.state)
    number = attempt.attempt_id.rpartition("_")[2].lstrip("0")
    failure = _failure(attempt.final_status)
    return timeline.row_of(f"attempt {number}", attempt.attempt_id, moves, attempt.start_ms, failure)
