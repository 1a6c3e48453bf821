"""/metrics and the probes of the process, as routes of an app that serves other pages too. Needs the extra `web`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dispatcher.supervision.health import HealthAnswer, health
from dispatcher.web.endpoints import guarded, json_answer, zipped
from dispatcher.web.waiting import Workers

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PROBES: Final = ("/livez", "/readyz", "/healthz")
_ZIP_LEVEL: Final = 9


def _ready() -> HealthAnswer:
    return health.ready(waits_for_checks=False)


def probe_routes(
    registry: CollectorRegistry | None, workers: Workers, ready: Callable[[], HealthAnswer] = _ready
) -> list[Route]:
    """Routes of /metrics and the probes. `ready` must not block, because it is called on the loop.

    `registry`: what /metrics shows. By default, prometheus_client's own.
    """
    live, *ready_paths = PROBES
    return [
        Route("/metrics", guarded(_metrics(registry, workers)), methods=["GET"]),
        Route(live, _probe(health.live), methods=["GET"]),
        *(Route(path, _probe(ready), methods=["GET"]) for path in ready_paths),
    ]


def _probe(answer: Callable[[], HealthAnswer]) -> Callable[[Request], Awaitable[Response]]:
    async def probe(request: Request) -> Response:
        found = answer()
        return json_answer(found.to_json().encode(), 200 if found.is_ok else 503)

    return probe


def _metrics(registry: CollectorRegistry | None, workers: Workers) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of /metrics. It renders on a thread, because a page of many series takes long."""

    async def metrics(request: Request) -> Response:
        from prometheus_client.exposition import choose_encoder  # a door starts sooner without it
        from prometheus_client.registry import REGISTRY

        from dispatcher.metrics.page import render_page

        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        names = request.query_params.getlist("name[]") or None

        def render() -> Response:
            page = Response(
                render_page(REGISTRY if registry is None else registry, encode, names),
                headers={"Content-Type": content_type, "Vary": "Accept"},
            )
            return zipped(request, page, _ZIP_LEVEL)

        return await workers.run(render)

    return metrics
