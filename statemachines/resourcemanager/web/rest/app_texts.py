"""Applications as JSON. The text of each is made once for each of its reports and kept; what grows with time is put in
at the answer.

The loop's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from dispatcher.web.plain_answers import to_json
from statemachines.resourcemanager.reports import ApplicationAttemptReport, ApplicationReport
from statemachines.resourcemanager.web.rest.resources import GPUS, MEMORY, VCORES, cores, json_of
from statemachines.resourcemanager.web.rest.rest_endpoints import finite, percent, with_texts

ENDED: Final = frozenset({"FINISHED", "FAILED", "KILLED"})
UNTRACKED: Final = frozenset({"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"})
_LAST_S: Final = 253_402_300_799
"""The end of the year 9999: no later one can be written."""
SPARE: Final = 256
"""Texts of forgotten applications that may be kept, besides a quarter of all."""

Attempts = tuple[ApplicationAttemptReport, ...]


class View(NamedTuple):
    """How the applications of one answer are shown."""

    now_ms: int
    address: str
    """Of this server, such as `http://rm:8088`: an application without a page of its own has one here."""
    deselected: frozenset[str] = frozenset()
    """Groups of fields to leave out, in lower case."""


class _Text(NamedTuple):
    report: ApplicationReport
    attempts: Attempts
    public: bytes
    """For everyone, without the brace at the end."""
    details: bytes
    """Begins with a comma."""
    app_label: bytes
    am_label: bytes
    resources: bytes
    """What it has and waits for; empty once it has ended, like the next one."""
    requests: bytes


class ApplicationTexts:
    """The texts of one cluster's applications."""

    def __init__(self) -> None:
        self._kept: dict[str, _Text] = {}
        self._cluster_timestamp = 0

    def text(
        self, report: ApplicationReport, attempts: Attempts, cluster_timestamp: int, view: View, is_whole: bool
    ) -> bytes:
        """The application as a JSON object; unless `is_whole`, without what only those see that may view it."""
        if cluster_timestamp != self._cluster_timestamp:
            self._kept.clear()
            self._cluster_timestamp = cluster_timestamp
        kept = self._kept.get(report.application_id)
        if kept is None or kept.report is not report or kept.attempts is not attempts:
            kept = self._kept[report.application_id] = _text(report, attempts, cluster_timestamp)
        parts = [kept.public]
        if report.state not in UNTRACKED and not report.tracking_url:
            page = f"{view.address}/cluster/app/{report.application_id}"
            parts.append(b',"trackingUrl":' + to_json(page))
        if is_whole:
            parts += kept.details, _growing(report, view.now_ms)
            deselected = view.deselected
            if "appnodelabelexpression" not in deselected:
                parts.append(kept.app_label)
            if "amnodelabelexpression" not in deselected:
                parts.append(kept.am_label)
            if "resourceinfo" not in deselected:
                parts.append(kept.resources)
            if "resourcerequests" not in deselected:
                parts.append(kept.requests)
            if "timeouts" not in deselected:
                parts.append(_timeouts_text(report, view.now_ms))
        parts.append(b"}")
        return b"".join(parts)

    def forget(self, apps: Collection[str]) -> None:
        """Drop the texts of applications that have left `apps`, once there are many."""
        if len(self._kept) > len(apps) * 1.25 + SPARE:
            self._kept = {id: text for id, text in self._kept.items() if id in apps}


def timeout_info(deadline_ms: int | None, now_ms: int) -> dict[str, Any]:
    """The limit on how long an application may live: until this time, Unix ms, or for ever."""
    if deadline_ms is None:
        return {"type": "LIFETIME", "expiryTime": "UNLIMITED", "remainingTimeInSeconds": -1}
    expiry = datetime.fromtimestamp(min(deadline_ms // 1000, _LAST_S), UTC)
    return {
        "type": "LIFETIME",
        "expiryTime": f"{expiry:%Y-%m-%dT%H:%M:%S}.{deadline_ms % 1000:03d}+0000",
        "remainingTimeInSeconds": max(0, deadline_ms - now_ms) // 1000,
    }


_UNLIMITED: Final = (
    b',"timeouts":{"timeout":[{"type":"LIFETIME","expiryTime":"UNLIMITED","remainingTimeInSeconds":-1}]}'
)


def _timeouts_text(report: ApplicationReport, now_ms: int) -> bytes:
    if report.deadline_ms is None:
        return _UNLIMITED
    return b',"timeouts":' + to_json({"timeout": [timeout_info(report.deadline_ms, now_ms)]})


_GROWING: Final = (
    b',"elapsedTime":%d,"memorySeconds":%d,"vcoreSeconds":%d,"resourceSecondsMap":{"entry":['
    + b",".join(b'{"key":"%s","value":%%d}' % name.encode() for name in (MEMORY, VCORES, GPUS))
    + b"]}"
)


def _growing(report: ApplicationReport, now_ms: int) -> bytes:
    """What grows with time. Both times are of the resource manager's clock, which may have been set back."""
    until_ms = now_ms if report.finish_ms is None else report.finish_ms
    since_s = 0.0 if report.finish_ms is not None else max(0, now_ms - report.as_of_ms) / 1000
    usage, allocated = report.usage, report.allocated
    memory_mb_s = usage.memory_mb_seconds + since_s * allocated.memory_mb
    vcore_s = usage.vcore_seconds + since_s * allocated.vcores_milli / 1000
    gpu_s = usage.gpu_seconds + since_s * allocated.gpu_milli_total / 1000
    elapsed_ms = max(0, until_ms - report.start_ms)
    return _GROWING % (elapsed_ms, memory_mb_s, vcore_s, memory_mb_s, vcore_s, gpu_s)


def _text(report: ApplicationReport, attempts: Attempts, cluster_timestamp: int) -> _Text:
    own, masters = report.node_label or "", report.am_node_label
    return _Text(
        report,
        attempts,
        to_json(_public(report, cluster_timestamp))[:-1],
        b"," + to_json(_details(report, attempts))[1:-1],
        b',"appNodeLabelExpression":' + to_json(own),
        b',"amNodeLabelExpression":' + to_json(own if masters is None else masters),
        b"" if report.state in ENDED else b',"resourceInfo":{"resourceUsagesByPartition":[%s]}' % _resources(report),
        b"" if report.state in ENDED else b',"resourceRequests":[%s]' % b",".join(_requests(report)),
    )


def _resources(report: ApplicationReport) -> bytes:
    """What it has and waits for in all partitions, under the partition that it asks for by default."""
    parts = {"used": report.allocated, "reserved": report.reserved, "pending": report.pending}
    return with_texts(
        {"partitionName": report.node_label or ""}, {part: json_of(resource) for part, resource in parts.items()}
    )


def _requests(report: ApplicationReport) -> Iterator[bytes]:
    """Its pending requests. As from Hadoop, those for any node are for `*`, and so are those for one host or rack."""
    for each in report.requests:
        only = each.host or each.rack
        for name in ("*",) if only is None else (only, "*"):
            fields = {
                "priority": each.priority,
                "allocationRequestId": -1,
                "resourceName": name,
                "numContainers": each.containers,
                "relaxLocality": only is None,
                "nodeLabelExpression": each.partition,
                "executionTypeRequest": {"executionType": "GUARANTEED", "enforceExecutionType": False},
            }
            yield with_texts(fields, {"capability": json_of(each.resource)})


def _public(report: ApplicationReport, cluster_timestamp: int) -> dict[str, Any]:
    """What everyone may see. A URL that the master has not given is added at the answer."""
    is_tracked = report.state not in UNTRACKED
    shown = {
        "id": report.application_id,
        "user": report.user,
        "name": report.name,
        "queue": report.queue,
        "state": report.state,
        "finalStatus": report.final_status,
        "progress": percent(report.progress),
        "trackingUI": tracking_ui(report),
        "diagnostics": report.diagnostics,
        "clusterId": cluster_timestamp,
        "applicationType": report.application_type,
        "applicationTags": ",".join(report.tags),
        "priority": report.priority,
    }
    if is_tracked and report.tracking_url:
        shown["trackingUrl"] = report.tracking_url
    return shown


def tracking_ui(report: ApplicationReport) -> str:
    if report.state in UNTRACKED:
        return "UNASSIGNED"
    return "ApplicationMaster" if report.finish_ms is None else "History"


def _details(report: ApplicationReport, attempts: Attempts) -> dict[str, Any]:
    """What only those see that may view the application."""
    shown: dict[str, Any] = {
        "startedTime": report.start_ms,
        "launchTime": report.launch_ms or 0,
        "finishedTime": report.finish_ms or 0,
    }
    shown |= _master(report, attempts)
    if report.state in ENDED:
        shown |= dict.fromkeys(
            ("allocatedMB", "allocatedVCores", "reservedMB", "reservedVCores", "runningContainers"), -1
        )
    else:
        allocated, reserved = report.allocated, report.reserved
        shown |= {
            "allocatedMB": allocated.memory_mb,
            "allocatedVCores": cores(allocated.vcores_milli),
            "reservedMB": reserved.memory_mb,
            "reservedVCores": cores(reserved.vcores_milli),
            "runningContainers": report.containers,
        }
    usage = report.usage
    return shown | {
        "preemptedResourceMB": usage.preempted.memory_mb,
        "preemptedResourceVCores": cores(usage.preempted.vcores_milli),
        "numNonAMContainerPreempted": usage.preempted_containers - usage.preempted_masters,
        "numAMContainerPreempted": usage.preempted_masters,
        "preemptedMemorySeconds": int(finite(usage.preempted_memory_mb_seconds)),
        "preemptedVcoreSeconds": int(finite(usage.preempted_vcore_seconds)),
        "queueUsagePercentage": percent(report.queue_share),
        "clusterUsagePercentage": percent(report.cluster_share),
        "logAggregationStatus": "DISABLED",
        "unmanagedApplication": report.unmanaged_am,
    }


def _master(report: ApplicationReport, attempts: Attempts) -> dict[str, Any]:
    """Where the master is, or was. A forgotten node has no address."""
    shown: dict[str, Any] = {}
    if report.master_container is not None:
        address = attempts[-1].node_http_address if attempts else ""
        if address:
            shown["amContainerLogs"] = logs_url(address, report.master_container, report.user)
            shown["amHostHttpAddress"] = address
        if report.master_node is not None:
            shown["masterNodeId"] = report.master_node
    if report.host:
        shown["amRPCAddress"] = f"{report.host}:{report.rpc_port}"
    return shown


def logs_url(address: str, container: str, user: str) -> str:
    """The page of a container's logs on its node, as Hadoop's node managers serve it."""
    return f"http://{address}/node/containerlogs/{container}/{quote(user, safe='', errors='replace')}"
