"""/cluster and /cluster/apps: the key figures, and the list of applications, also as CSV."""

from __future__ import annotations

import asyncio
import csv
import io
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from dispatcher.util.figures import memory, percent, thousandths
from dispatcher.util.terminal import printable
from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.past import present
from statemachines.resourcemanager.reports import APPLICATION_STATES, ApplicationReport
from statemachines.resourcemanager.web.pages import page_texts
from statemachines.resourcemanager.web.pages.access import Viewer
from statemachines.resourcemanager.web.pages.listing import Column, Key, Query, first_page, matching, page_of, parse
from statemachines.resourcemanager.web.pages.site import Site, View

CLUSTER: Final = "/cluster"
APPS: Final = "/cluster/apps"
WAITING_STATES: Final = ("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED")
ENDED: Final = frozenset({"FINISHED", "FAILED", "KILLED"})
WHY_SHOWN: Final = 160
"""Characters of why an application waits, in the list."""
_FILTERS: Final = ("q", "user", "queue", "type")
_ROWS_AT_ONCE: Final = 25
_LINES_AT_ONCE: Final = 200
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_HIDDEN: Final = "not shown to you"

COLUMNS: Final = (
    Column("id", "ID", lambda app: 0, "id", is_number=True),
    Column("name", "Name", lambda app: app.name.lower()[:200], "cut name"),
    Column("user", "User", lambda app: app.user.lower(), "c2 cut"),
    Column("queue", "Queue", lambda app: app.queue, "c2 cut"),
    Column("type", "Type", lambda app: app.application_type.lower(), "c4"),
    Column("state", "State", lambda app: app.state),
    Column("started", "Started", lambda app: app.start_ms, "c4", is_number=True),
    Column("elapsed", "Elapsed", None, "c2 number", is_number=True),
    Column("progress", "Progress", lambda app: app.progress, "c3", is_number=True),
    Column("containers", "Containers", lambda app: app.containers, "c2 number", is_number=True),
    Column("memory", "Memory", lambda app: app.allocated.memory_mb, "c2 number", is_number=True),
    Column("vcores", "vCores", lambda app: app.allocated.vcores_milli, "c4 number", is_number=True),
    Column("why", "Why it waits", lambda app: app.pending_containers, "why", is_number=True),
)
_FIELDS: Final = (
    *("id", "name", "user", "queue", "type", "tags", "priority", "state", "final_status", "started", "launched"),
    *("finished", "elapsed_s", "progress", "containers", "memory_mb", "vcores", "gpus", "pending_containers"),
    "diagnostics",
)


def routes(site: Site) -> Sequence[BaseRoute]:
    async def listed(request: Request) -> Response:
        if request.query_params.get("format") == "csv":
            return await csv_answer(site, request)
        return await site.page(lambda it: list_view(site, it))(request)

    return [
        Route(CLUSTER, listed, methods=["GET"]),
        Route(APPS, listed, methods=["GET"]),
        Route(f"{APPS}/{{state}}", listed, methods=["GET"]),
    ]


# -- the list ----------------------------------------------------------------------------------------------------------


class _Tab(NamedTuple):
    title: str
    path: str
    states: tuple[str, ...]


TABS: Final = (
    _Tab("All", APPS, ()),
    _Tab("Running", f"{APPS}/RUNNING", ("RUNNING",)),
    _Tab("Waiting to start", f"{APPS}/ACCEPTED,SUBMITTED,NEW_SAVING,NEW", WAITING_STATES),
    _Tab("Finished", f"{APPS}/FINISHED", ("FINISHED",)),
    _Tab("Failed", f"{APPS}/FAILED", ("FAILED",)),
    _Tab("Killed", f"{APPS}/KILLED", ("KILLED",)),
)


async def list_view(site: Site, request: Request) -> View:
    model = site.model
    query, matches = _asked(request)
    viewer = await site.viewer(request)
    apps, now_ms = model.apps, model.now_ms()
    if query.sort == "id" and not (query.filters or query.after or query.before or "state" in request.path_params):
        page = first_page(apps, query, _by_id)  # as the model has them
    else:
        page = await page_of(apps.values(), query, _value(query), _tie, matches)
    visible = {app.application_id for app in page.items if viewer.may_view(app)}
    waits, late = await site.rm.waits.known(
        each.application_id for each in page.items if may_wait(each) and each.application_id in visible
    )
    is_live = (
        "live" in request.query_params
    )  # the script lets times grow: rows stay equal until their application changes
    rows: dict[str, Markup] = {}
    template = site.templates.get_template("app_row.html")
    for number, app in enumerate(page.items):
        id = app.application_id
        text = template.render(
            app=app,
            is_visible=id in visible,
            why=waits[id].reason if id in visible and id in waits else None,
            is_late=id in late,
            has_ended=app.state in ENDED,
            now_ms=app.as_of_ms if is_live else now_ms,
            most=WHY_SHOWN,
        )
        rows[id] = Markup(text)
        if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
    is_home = request.url.path == CLUSTER
    values = {
        "figures": key_figures(site),
        "tabs": _tabs(request, model.app_counts()),
        "columns": COLUMNS,
        "query": query,
        "page": page,
        "csv": query.address(format="csv"),
    }
    return View(
        "apps.html",
        "Cluster" if is_home else "Applications",
        values,
        section="cluster" if is_home else "apps",
        parts=("figures", "tabs", "pager"),
        rows=rows,
        is_partial=bool(late),
        status=200 if model.is_active() or not is_home else 503,
    )


def may_wait(app: ApplicationReport) -> bool:
    """Whether there may be something to say about why it waits."""
    return app.state in WAITING_STATES or (app.state == "RUNNING" and app.pending_containers > 0)


def _asked(request: Request) -> tuple[Query, Callable[[ApplicationReport], bool]]:
    states = _states(request.path_params.get("state"))
    query = parse(request, COLUMNS, _FILTERS, "id", "desc")
    filters = query.filters
    text, user = filters.get("q", "").lower(), filters.get("user")
    queue, type_ = filters.get("queue"), filters.get("type", "").lower()

    def matches(app: ApplicationReport) -> bool:
        return (
            (not states or app.state in states)
            and (user is None or app.user == user)
            and (queue is None or _is_in_queue(app.queue, queue))
            and (not type_ or app.application_type.lower() == type_)
            and (not text or _contains(app, text))
        )

    return query, matches


def _states(given: str | None) -> frozenset[str]:
    if given is None:
        return frozenset()
    found = frozenset(filter(None, given.upper().split(",")))
    if not found <= set(APPLICATION_STATES):
        raise Refusal(404, f"{given[:100]}: not a state of applications; expected {', '.join(APPLICATION_STATES)}")
    return found


def _is_in_queue(path: str, queue: str) -> bool:
    return path == queue or path.startswith(f"{queue}.") or path.endswith(f".{queue}")


def _contains(app: ApplicationReport, text: str) -> bool:
    return (
        text in app.application_id
        or text in app.name.lower()
        or text in app.user.lower()
        or text in app.queue.lower()
        or any(text in tag for tag in app.tags)
    )


def _value(query: Query) -> Callable[[ApplicationReport], Any]:
    found = next(column.value for column in COLUMNS if column.name == query.sort)
    assert found is not None  # `parse` accepts only those
    return found


def _tie(app: ApplicationReport) -> Key:
    return app.start_ms, len(app.application_id), app.application_id


def _by_id(app: ApplicationReport) -> Key:
    return 0, *_tie(app)


def _tabs(request: Request, counts: Counter[str]) -> list[Mapping[str, Any]]:
    path = APPS if request.url.path == CLUSTER else request.url.path
    return [
        {
            "title": tab.title,
            "path": tab.path,
            "count": sum(counts[state] for state in tab.states) if tab.states else counts.total(),
            "is_current": tab.path == path,
        }
        for tab in TABS
    ]


# -- figures -----------------------------------------------------------------------------------------------------------


def key_figures(site: Site) -> list[Mapping[str, Any]]:
    model, samples = site.model, list(site.rm.past.samples)
    metrics, now = model.metrics, present(model)
    total, used = metrics.total, metrics.allocated
    unusable = {state: number for state, number in metrics.nodes.items() if number and state != "RUNNING"}
    nodes = ", ".join(f"{number} {state.lower()}" for state, number in unusable.items()) or "all running"

    def figure(
        name: str, value: str, of: str, detail: str, field: str, link: str, top: float = 1.0
    ) -> Mapping[str, Any]:
        curve = [*(getattr(each, field) for each in samples), getattr(now, field)]
        drawn = page_texts.sparkline(curve, top)
        return {"name": name, "value": value, "of": of, "detail": detail, "curve": drawn, "link": link}

    ended = f"{metrics.apps_completed + metrics.apps_failed + metrics.apps_killed:,} have ended"
    wanted = f"{memory(metrics.pending.memory_mb)} wanted"
    figures = [
        figure("Running", f"{now.running:,}", "", ended, "running", f"{APPS}/RUNNING"),
        figure("Waiting to start", f"{now.waiting:,}", "", "", "waiting", TABS[2].path),
        figure(
            "Containers",
            f"{now.containers:,}",
            "",
            f"{metrics.containers_reserved:,} reserved",
            "containers",
            "/cluster/scheduler",
        ),
        figure("Pending containers", f"{now.pending:,}", "", wanted, "pending", f"{APPS}?sort=why&order=desc"),
        figure(
            "Memory",
            percent(now.memory),
            f"of {memory(total.memory_mb)}",
            f"{memory(used.memory_mb)} allocated",
            "memory",
            "/cluster/scheduler",
        ),
        figure(
            "vCores",
            percent(now.vcores),
            f"of {thousandths(total.vcores_milli)}",
            f"{thousandths(used.vcores_milli)} allocated",
            "vcores",
            "/cluster/scheduler",
        ),
    ]
    if total.gpus:
        gpus = thousandths(used.gpu_milli_total)
        figures.append(
            figure(
                "GPUs",
                percent(now.gpus),
                f"of {thousandths(total.gpu_milli_total)}",
                f"{gpus} allocated",
                "gpus",
                "/cluster/nodes",
            )
        )
    figures.append(figure("Nodes", f"{now.nodes:,}", f"of {metrics.total_nodes:,}", nodes, "nodes", "/cluster/nodes"))
    return figures


# -- CSV ---------------------------------------------------------------------------------------------------------------


async def csv_answer(site: Site, request: Request) -> Response:
    """All rows of the filtered list, in the order of their start, as a file to download."""
    try:
        _, matches = _asked(request)
        viewer = await site.viewer(request)
    except Refusal as refusal:
        return Response(f"{refusal.reason}\n", refusal.status, media_type="text/plain")
    headers = {"Content-Disposition": 'attachment; filename="applications.csv"'}
    return StreamingResponse(_lines(site, viewer, matches), headers=headers, media_type="text/csv; charset=utf-8")


async def _lines(site: Site, viewer: Viewer, matches: Callable[[ApplicationReport], bool]) -> AsyncIterator[bytes]:
    now_ms, waiting = site.model.now_ms(), io.StringIO()
    writer = csv.writer(waiting)
    writer.writerow(_FIELDS)
    async for apps in matching(site.model.apps.values(), matches):
        for number, app in enumerate(apps):
            writer.writerow(_record(app, now_ms, is_visible=viewer.may_view(app)))
            if number % _LINES_AT_ONCE == _LINES_AT_ONCE - 1:
                await asyncio.sleep(0)
        yield waiting.getvalue().encode("utf-8", "backslashreplace")
        waiting.seek(0)
        waiting.truncate()


def _record(app: ApplicationReport, now_ms: int, *, is_visible: bool) -> list[object]:
    head = (app.application_id, app.name, app.user, app.queue, app.application_type, " ".join(app.tags))
    about: list[object] = [*map(_cell, head), app.priority, app.state, app.final_status]
    if not is_visible:
        return [*about, *([""] * (len(_FIELDS) - len(about) - 1)), _HIDDEN]
    return [
        *about,
        *(app.start_ms, app.launch_ms or "", app.finish_ms or ""),
        round(((app.finish_ms or now_ms) - app.start_ms) / 1000, 3),
        *(round(app.progress, 4), app.containers, app.allocated.memory_mb, app.allocated.vcores_milli / 1000),
        *(app.allocated.gpu_milli_total / 1000, app.pending_containers, _cell(app.diagnostics)),
    ]


def _cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    plain = printable(text[:5000])
    return f"'{plain}" if plain.startswith(_FORMULA) else plain
