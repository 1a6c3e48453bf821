"""/cluster and /cluster/apps: the key figures, and the list of applications, also as CSV."""

from __future__ import annotations

import asyncio
import csv
import io
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from dispatcher.pages import page_texts
from dispatcher.pages.site import View
from dispatcher.util.figures import NOTHING, count, memory, percent, thousandths
from dispatcher.util.terminal import printable
from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.compiled import compiled, values_of
from statemachines.resourcemanager.read.fields import (
    APPLICATION_FIELDS,
    ENDED,
    NO_STATUS,
    WAITING,
    Around,
    Field,
    Unit,
)
from statemachines.resourcemanager.read.past import present
from statemachines.resourcemanager.reports import (
    APPLICATION_STATES,
    WAITING_STATES,
    ApplicationReport,
    FailureCause,
    WaitingReport,
)
from statemachines.resourcemanager.web.pages.app_groups import (
    FAILED_PATH,
    GROUP_FILTERS,
    OF_WAITING,
    WAITING_PATH,
    chosen,
    group_filter,
    kind_of,
    panels,
)
from statemachines.resourcemanager.web.pages.listing import (
    Key,
    ListedColumn,
    Query,
    columns_of,
    first_page,
    matching,
    page_of,
    parse,
    sort_value,
)
from statemachines.resourcemanager.web.pages.site import ClusterSite

CLUSTER: Final = "/cluster"
APPS: Final = "/cluster/apps"
WHY_SHOWN: Final = 160
"""Characters of why an application waits, in the list."""
_FILTERS: Final = ("q", "user", "queue", "type", *GROUP_FILTERS)
_ROWS_AT_ONCE: Final = 25
_LINES_AT_ONCE: Final = 200
_FORMULA: Final = frozenset("=+-@")
_HIDDEN: Final = "not shown to you"
FAILED: Final = frozenset({"FAILED", "KILLED"})
_UNSEEN: Final = NO_STATUS - 1
"""Sorts hidden applications first, even before those without an exit status."""

COLUMNS: Final = columns_of(APPLICATION_FIELDS)
_SHOWN: Final[Mapping[Unit, Callable[[Any], str]]] = {
    Unit.TIME_MS: page_texts.moment,
    Unit.MEMORY_MB: memory,
    Unit.CORES_MILLI: thousandths,
    Unit.COUNT: count,
}
"""How values of a unit are written in cells, unless as they are."""


def routes(site: ClusterSite) -> Sequence[BaseRoute]:
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
    _Tab("Waiting to start", WAITING_PATH, WAITING_STATES),
    _Tab("Finished", f"{APPS}/FINISHED", ("FINISHED",)),
    _Tab("Failed", FAILED_PATH, ("FAILED",)),
    _Tab("Killed", f"{APPS}/KILLED", ("KILLED",)),
)


async def list_view(site: ClusterSite, request: Request) -> View:
    model = site.model
    viewer = await site.viewer(request)
    may_view = viewer.sight()
    states = _states(request.path_params.get("state"))
    kind = kind_of(states)
    columns = [
        each._replace(title=kind.why) if each.name == "why" else each
        for each in COLUMNS
        if kind.lists in each.field.column.lists
    ]
    if kind is OF_WAITING or "cause" in request.query_params:
        await site.rm.wait_groups.fresh()
    query, matches = _asked(site, request, may_view)
    apps, now_ms = model.apps, model.now_ms()
    sees_all = viewer.may_view_all()
    if (
        sees_all
        and query.sort == "id"
        and not (query.filters or query.after or query.before or "state" in request.path_params)
    ):
        page = first_page(apps, query, _by_id)  # as the model has them
    elif sees_all:
        page = await page_of(apps.values(), query, sort_value(COLUMNS, query), _tie, matches)
    else:
        page = await page_of(apps.values(), query, _value_for(may_view, query), _public_tie, matches)
    visible = {app.application_id for app in page.items if may_view(app)}
    wanted = [each.application_id for each in page.items if may_wait(each) and each.application_id in visible]
    waits, late = await site.rm.waits.known(wanted)
    is_live = (
        "live" in request.query_params
    )  # the script lets times grow: rows stay equal until their application changes
    rows: dict[str, Markup] = {}
    template = site.templates.get_template("app_row.html")
    for number, app in enumerate(page.items):
        id = app.application_id
        row_ms = app.as_of_ms if is_live else now_ms
        text = template.render(
            app=app,
            is_visible=id in visible,
            why=_why(app, waits.get(id)) if id in visible else _NO_REASON,
            is_late=id in late,
            columns=[each for each in columns if not each.field.is_public],
            cell=partial(_cell, app, row_ms),
            most=WHY_SHOWN,
        )
        rows[id] = Markup(text)
        if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
    groups = await panels(site, query, states, may_view)
    is_home = request.url.path == CLUSTER
    values = {
        "figures": key_figures(site),
        "tabs": _tabs(request, model.tallies.states),
        "columns": columns,
        "panels": groups,
        "chosen": chosen(query.filters),
        "group_filters": [(name, query.filters[name]) for name in GROUP_FILTERS if name in query.filters],
        "query": query,
        "page": page,
        "csv": query.address(format="csv"),
    }
    return View(
        "apps.html",
        "Cluster" if is_home else "Applications",
        values,
        section="cluster" if is_home else "apps",
        parts=("figures", "tabs", "groups", "pager"),
        rows=rows,
        is_partial=bool(late) or any(each["group"].cause is None for each in groups.get("waiting", ())),
        status=200 if model.is_active() or not is_home else 503,
    )


def _cell(app: ApplicationReport, now_ms: int, column: ListedColumn) -> Any:
    field: Field[ApplicationReport] = column.field
    if field.is_live and app.state in ENDED:
        return NOTHING
    if field.unit is Unit.DURATION_MS:
        return page_texts.since(app.start_ms, now_ms, app.finish_ms)
    value = field.get(app, Around(now_ms))
    if field.unit is Unit.SHARE:
        return NOTHING if app.state in FAILED else page_texts.bar(value, warns=False)
    return _SHOWN.get(field.unit, page_texts.shown)(value)


class _Why(NamedTuple):
    """Why an application waits, or how it ended: the cause in a few words, and what else there is to say."""

    short: str = ""
    more: str = ""
    whole: str = ""


_NO_REASON: Final = _Why()


def _why(app: ApplicationReport, waiting: WaitingReport | None) -> _Why:
    if app.state in ENDED:
        said = page_texts.shown(app.diagnostics, page_texts.LONGEST)
        if app.failure is None:
            return _Why(said, "", said)
        short = app.failure.sentence(app.exit_status)
        return _Why(short, _detail(app), f"{short}; {said}")
    reason = waiting.reason if waiting is not None else None
    if reason is None:
        return _NO_REASON
    cause = reason.cause.value
    return _Why(cause, reason.sentence.removeprefix(cause).lstrip(":, "), reason.sentence)


def _detail(app: ApplicationReport) -> str:
    """What the diagnostics of a failed application say beyond its cause."""
    said = app.diagnostics
    if app.failure is FailureCause.EXITED:
        return said.partition(f" exited with {app.exit_status}: ")[2]
    return said.partition("; ")[2] if said.startswith(app.application_id) else said


def may_wait(app: ApplicationReport) -> bool:
    """Whether there may be something to say about why it waits."""
    return app.state in WAITING or (app.state == "RUNNING" and app.pending_containers > 0)


def _asked(
    site: ClusterSite, request: Request, may_view: Callable[[ApplicationReport], bool]
) -> tuple[Query, Callable[[ApplicationReport], bool]]:
    states = _states(request.path_params.get("state"))
    query = parse(request, COLUMNS, _FILTERS, kind_of(states).sort, "desc")
    filters = query.filters
    is_in_group = group_filter(site, filters, may_view)
    text, user = filters.get("q", "").lower(), filters.get("user")
    queue, type_ = filters.get("queue"), filters.get("type", "").lower()

    def matches(app: ApplicationReport) -> bool:
        return (
            (not states or app.state in states)
            and (user is None or app.user == user)
            and (queue is None or _is_in_queue(app.queue, queue))
            and (not type_ or app.application_type.lower() == type_)
            and (not text or _contains(app, text))
            and (is_in_group is None or is_in_group(app))
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


def _value_for(may_view: Callable[[ApplicationReport], bool], query: Query) -> Callable[[ApplicationReport], Any]:
    """What a list is sorted by, for a user from whom applications are hidden: order and cursor tell nothing of them."""
    value = sort_value(COLUMNS, query)
    is_public = next(column.field.is_public for column in COLUMNS if column.name == query.sort)
    return value if is_public else lambda app: value(app) if may_view(app) else _UNSEEN


def _public_tie(app: ApplicationReport) -> Key:
    """By id, which tells nothing of when it was started."""
    return len(app.application_id), app.application_id


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


def key_figures(site: ClusterSite) -> list[Mapping[str, Any]]:
    model, samples = site.model, list(site.rm.past.samples)
    metrics, now = model.metrics, present(model)
    total, used = metrics.total, metrics.allocated
    unusable = [
        f"{number:,} {state.lower()}" for state, number in metrics.nodes.items() if number and state != "RUNNING"
    ]
    nodes = (
        ", ".join([f"of {metrics.total_nodes:,}", *(unusable or ["all running"])])
        if metrics.total_nodes
        else "none registered"
    )

    def figure(name: str, value: str, detail: str, field: str, link: str) -> Mapping[str, Any]:
        curve = [*(getattr(each, field) for each in samples), getattr(now, field)]
        return {"name": name, "value": value, "detail": detail, "curve": page_texts.sparkline(curve), "link": link}

    ended = f"{metrics.apps_completed + metrics.apps_failed + metrics.apps_killed:,} have ended"
    pending, reserved = f"{memory(metrics.pending.memory_mb)} wanted", f"{metrics.containers_reserved:,} reserved"
    in_memory = f"{memory(used.memory_mb)} of {memory(total.memory_mb)}"
    on_cores = f"{thousandths(used.vcores_milli)} of {thousandths(total.vcores_milli)}"
    on_gpus = f"{thousandths(used.gpu_milli_total)} of {thousandths(total.gpu_milli_total)}"
    queues, all_nodes = "/cluster/scheduler", "/cluster/nodes"
    return [
        figure("Running", f"{now.running:,}", ended, "running", f"{APPS}/RUNNING"),
        figure("Waiting to start", f"{now.waiting:,}", "", "waiting", TABS[2].path),
        figure("Containers", f"{now.containers:,}", reserved, "containers", queues),
        figure("Pending", f"{now.pending:,}", pending, "pending", f"{APPS}?sort=why&order=desc"),
        figure("Memory", percent(now.memory), in_memory, "memory", queues),
        figure("vCores", percent(now.vcores), on_cores, "vcores", queues),
        *([figure("GPUs", percent(now.gpus), on_gpus, "gpus", all_nodes)] if total.gpus else []),
        figure("Nodes", f"{now.nodes:,}", nodes, "nodes", all_nodes),
    ]


# -- CSV ---------------------------------------------------------------------------------------------------------------


async def csv_answer(site: ClusterSite, request: Request) -> Response:
    """All rows of the filtered list, in the order of their start, as a file to download."""
    try:
        may_view = (await site.viewer(request)).sight()
        await site.rm.wait_groups.fresh()
        _, matches = _asked(site, request, may_view)
    except Refusal as refusal:
        return Response(f"{refusal.reason}\n", refusal.status, media_type="text/plain")
    headers = {"Content-Disposition": 'attachment; filename="applications.csv"'}
    return StreamingResponse(_lines(site, may_view, matches), headers=headers, media_type="text/csv; charset=utf-8")


async def _lines(
    site: ClusterSite, may_view: Callable[[ApplicationReport], bool], matches: Callable[[ApplicationReport], bool]
) -> AsyncIterator[bytes]:
    causes = site.rm.wait_groups.causes
    around, waiting = Around(site.model.now_ms()), io.StringIO()
    writer = csv.writer(waiting)
    writer.writerow(CSV.names)
    async for apps in matching(site.model.apps.values(), matches):
        for number, app in enumerate(apps):
            wait = causes.get(app.application_id) if app.state in WAITING else None
            around.wait = wait.cause if wait is not None else None
            writer.writerow((CSV.row if may_view(app) else CSV.public_row)(app, around))
            if number % _LINES_AT_ONCE == _LINES_AT_ONCE - 1:
                await asyncio.sleep(0)
        yield waiting.getvalue().encode("utf-8", "backslashreplace")
        waiting.seek(0)
        waiting.truncate()


def _text(value: str) -> str:
    """What no spreadsheet takes for a formula."""
    plain = value[:5000]
    if not plain.isprintable():  # most texts are, and save the call
        plain = printable(plain)
    return f"'{plain}" if plain[:1] in _FORMULA else plain


_CELLS: Final[dict[Unit, str]] = {
    Unit.TEXT: "text({})",
    Unit.NAME: "text({})",
    Unit.TAGS: "text(' '.join({}))",
    Unit.SHARE: "round({}, 4)",
    Unit.DURATION_MS: "round({} / 1000, 3)",
    Unit.CORES_MILLI: "{} / 1000",
}
"""The expression of the cell of a value that is not None, unless it is the value itself. None makes an empty cell."""


class _Csv(NamedTuple):
    """The columns of the CSV, and the functions that make the row of an application."""

    names: Sequence[str]
    row: Callable[[ApplicationReport, Around], list[object]]
    public_row: Callable[[ApplicationReport, Around], list[object]]
    """For those who may not view it."""


def csv_of(fields: Iterable[Field[ApplicationReport]]) -> _Csv:
    columns = sorted((field for field in fields if field.place is not None), key=lambda field: field.place or 0)
    names, lines = dict[str, Any](text=_text), list[str]()
    cells = [_cell_of(field, value) for field, value in values_of(columns, lines, names)]
    public = [cell if field.is_public else "''" for field, cell in zip(columns, cells, strict=True)]
    public[-1] = repr(_HIDDEN)

    def row(cells: Iterable[str]) -> Callable[..., list[object]]:
        return compiled("row(report, around)", [*lines, f"return [{', '.join(cells)}]"], names)

    return _Csv([field.name for field in columns], row(cells), row(public))


def _cell_of(field: Field[ApplicationReport], value: str) -> str:
    shown = _CELLS.get(field.unit)
    return value if shown is None else f"None if (value := {value}) is None else {shown.format('value')}"


CSV: Final = csv_of(APPLICATION_FIELDS)
