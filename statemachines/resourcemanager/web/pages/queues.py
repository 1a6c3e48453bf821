"""/cluster/scheduler: the tree of queues, with capacity, use and maximum of each as one bar, for each partition."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from dispatcher.pages.site import View
from dispatcher.web.plain_answers import Refusal
from statemachines.resourcemanager.read.past import share
from statemachines.resourcemanager.read.queue_paths import lineage
from statemachines.resourcemanager.records.resource import Resource
from statemachines.resourcemanager.reports import waiting_apps
from statemachines.resourcemanager.scheduler.queue_info import PartitionInfo, QueueInfo
from statemachines.resourcemanager.web.pages import admin_changes, cluster_texts
from statemachines.resourcemanager.web.pages.site import ClusterSite

SCHEDULER: Final = "/cluster/scheduler"
_MOST_DEPTH: Final = 4
_QUEUES_AT_ONCE: Final = 50
_USERS_SHOWN: Final = 50


def routes(site: ClusterSite) -> Sequence[BaseRoute]:
    return [Route(SCHEDULER, site.page(lambda request: queues_view(site, request)), methods=["GET"])]


async def queues_view(site: ClusterSite, request: Request) -> View:
    model = site.model
    labels = list(dict.fromkeys(each.partition for queue in model.queues for each in queue.partitions))
    shown = request.query_params.get("partition")
    if shown is not None and shown not in labels:
        raise Refusal(404, f"partition {shown[:100]!r}: no queue may use it; known: {', '.join(labels)}")
    counts = _counts(site)
    queues = []
    for number, queue in enumerate(model.queues):
        queues.append(_shown(queue, shown, counts))
        if number % _QUEUES_AT_ONCE == _QUEUES_AT_ONCE - 1:
            await asyncio.sleep(0)
    values = {
        "queues": queues,
        "partitions": labels if len(labels) > 1 else [],
        "partition": shown,
        "scheduler": model.manager.scheduler_name,
        "users_shown": _USERS_SHOWN,
        "changes": admin_changes.queue_changes(site),
        "changes_of": "Queue",
    }
    return View("scheduler.html", "Queues", values, "scheduler", ("queues", "changes"))


def _counts(site: ClusterSite) -> Mapping[tuple[str, str | None], Counter[str]]:
    """Applications by state: of each queue with all below it (user None), and of each user in it."""
    found: defaultdict[tuple[str, str | None], Counter[str]] = defaultdict(Counter)
    path_of = site.rm.queue_paths()
    for (queue, user, state), count in site.model.tallies.places.items():
        for path in lineage(path_of(queue)):
            found[path, None][state] += count
            found[path, user][state] += count
    return found


class _Applications(NamedTuple):
    """Of a queue or a user in it."""

    running: int
    waiting: int

    @classmethod
    def of(cls, states: Mapping[str, int]) -> _Applications:
        return cls(states.get("RUNNING", 0), waiting_apps(states))


def _shown(
    queue: QueueInfo, partition: str | None, counts: Mapping[tuple[str, str | None], Mapping[str, int]]
) -> Mapping[str, Any]:
    partitions = [each for each in queue.partitions if partition in (None, each.partition)]
    used = [each for each in partitions if _matters(each) or (partition is None and not each.partition)]
    return {
        "queue": queue,
        "applications": _Applications.of(counts.get((queue.path, None), {})),
        "of_users": {each.user: _Applications.of(counts.get((queue.path, each.user), {})) for each in queue.users},
        "name": queue.path.rpartition(".")[2],
        "depth": min(queue.path.count("."), _MOST_DEPTH),
        "bars": [{"info": each, "drawing": _bar(queue.path, each), "text": _text(each)} for each in used],
    }


def _matters(info: PartitionInfo) -> bool:
    return info.absolute_capacity > 0 or info.absolute_used_capacity > 0 or info.absolute_maximum_capacity > 0


def _bar(path: str, info: PartitionInfo) -> Markup:
    """From 0 to 100 % of the partition: light to the capacity, dark what is used, marks at capacity and maximum."""
    capacity, used = _within(info.absolute_capacity), _within(info.absolute_used_capacity)
    maximum = _within(info.absolute_maximum_capacity)
    wanted = min(maximum, info.absolute_used_capacity + _pending_percent(info))
    said = (
        f"{path}{f' in {info.partition}' if info.partition else ''}: {info.absolute_used_capacity:.1f} % used "
        f"of {info.absolute_capacity:.1f} % guaranteed, "
        f"up to {info.absolute_maximum_capacity:.1f} %"
    )
    return Markup(
        '<svg class="bars" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" aria-label="{0}">'
        '<title>{0}</title><rect class="track" y="3" width="{1:.2f}" height="14"></rect>'
        '<rect class="share" y="3" width="{2:.2f}" height="14"></rect>'
        '<rect class="pending" x="{3:.2f}" y="8" width="{4:.2f}" height="4"></rect>'
        '<rect class="used" y="6" width="{5:.2f}" height="8"></rect>'
        '<rect class="over" x="{2:.2f}" y="6" width="{6:.2f}" height="8"></rect>'
        '<line class="limit" x1="{1:.2f}" x2="{1:.2f}" y1="1" y2="19"></line>'
        '<line class="mark" x1="{2:.2f}" x2="{2:.2f}" y1="0" y2="20"></line></svg>'
    ).format(said, maximum, capacity, used, max(0.0, wanted - used), min(used, capacity), max(0.0, used - capacity))


def _pending_percent(info: PartitionInfo) -> float:
    """What the pending asks would add, in percent of the partition, by the resource of which they want most."""
    if not info.absolute_maximum_capacity:
        return 0.0
    whole = 100 / info.absolute_maximum_capacity
    maximum, pending = info.maximum, info.pending
    shares = (
        share(pending.memory_mb, maximum.memory_mb * whole),
        share(pending.vcores_milli, maximum.vcores_milli * whole),
        share(pending.gpu_milli_total, maximum.gpu_milli_total * whole),
    )
    return 100 * max(shares)


def _within(percent: float) -> float:
    return min(100.0, max(0.0, percent))


def _text(info: PartitionInfo) -> str:
    wants = f"; {_amount(info.pending)} pending" if _is_some(info.pending) else ""
    reserved = f"; {_amount(info.reserved)} reserved" if _is_some(info.reserved) else ""
    return f"{_amount(info.used)} of {_amount(info.guaranteed)}, up to {_amount(info.maximum)}{reserved}{wants}"


def _amount(resource: Resource) -> str:
    return cluster_texts.resource(resource) if _is_some(resource) else "nothing"


def _is_some(resource: Resource) -> bool:
    return bool(resource.memory_mb or resource.vcores_milli or resource.gpus or resource.others)
