"""All that a read model should show, built afresh from the resource manager's state. Handler thread."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from statemachines.resourcemanager import RMApp, reports

from ..inner import ApplicationReport, ReadModel, RMContext, cluster_metrics


def built_afresh(context: RMContext) -> dict[str, Any]:
    live = {id: context.scheduler.live_containers(id) for id in context.attempts}
    nodes = (*context.nodes.values(), *context.inactive_nodes.values())
    return {
        "apps": {id: at_zero(reports.application_report(context, app)) for id, app in context.apps.items()},
        "attempts": {
            id: tuple(reports.attempt_report(context, each) for each in app.attempts)
            for id, app in context.apps.items()
        },
        "containers": {
            id: {each.entity: reports.container_report(each) for each in containers}
            for id, containers in live.items()
            if containers
        },
        "nodes": {each.entity: _without_heartbeat(reports.node_report(context, each)) for each in nodes},
        "queues": tuple(context.scheduler.queues()),
        "metrics": cluster_metrics(context, apps=_app_counts(context)),
    }


def _app_counts(context: RMContext) -> Counter[str]:
    """By the states that clients see."""
    kept = Counter(reports.client_state(app) for app in context.apps.values())
    machines = context.recorder.machines.get(RMApp.machine)
    return kept + Counter(machines.forgotten if machines is not None else {})


def shown(model: ReadModel) -> dict[str, Any]:
    return {
        "apps": {id: at_zero(report) for id, report in model.apps.items()},
        "attempts": model.attempts,
        "containers": model.containers,
        "nodes": {id: _without_heartbeat(report) for id, report in model.nodes.items()},
        "queues": model.queues,
        "metrics": model.metrics,
    }


def at_zero(report: ApplicationReport) -> ApplicationReport:
    """The report as if it were of time 0: what its containers used until then is taken away again.

    All are sums of whole milliseconds times whole amounts: rounded to these digits, they are exact.
    """
    seconds, usage, allocated = report.as_of_ms / 1000, report.usage, report.allocated
    return replace(
        report,
        as_of_ms=0,
        usage=replace(
            usage,
            memory_mb_seconds=round(usage.memory_mb_seconds - seconds * allocated.memory_mb, 3),
            vcore_seconds=round(usage.vcore_seconds - seconds * allocated.vcores_milli / 1000, 6),
            gpu_seconds=round(usage.gpu_seconds - seconds * allocated.gpu_milli_total / 1000, 6),
        ),
    )


def _without_heartbeat(report: reports.NodeReport) -> reports.NodeReport:
    return replace(report, last_heartbeat_ms=0)
