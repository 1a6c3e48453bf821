"""The reports for clients, and for the web: each is made on the handler thread, at the cost of its own size.

    entities   applications, attempts, containers, nodes
    cluster    the cluster's totals
    app_waits  why an application waits

They are immutable: any thread may read them. Those on queues are the scheduler's (scheduler/queue_info.py).
"""

from statemachines.resourcemanager.events.records import EXIT_STATUS
from statemachines.resourcemanager.reports.app_waits import WaitingReport, waiting_report, waiting_reports
from statemachines.resourcemanager.reports.cluster import ClusterMetrics, cluster_metrics
from statemachines.resourcemanager.reports.entities import (
    APPLICATION_STATES,
    ApplicationAttemptReport,
    ApplicationReport,
    ContainerReport,
    NodeReport,
    ResourceUsageReport,
    application_report,
    attempt_report,
    client_state,
    container_report,
    node_report,
    node_reports,
)
from statemachines.resourcemanager.scheduler.wait_reasons import WaitCause, WaitingAsk, WaitReason

__all__ = [
    "APPLICATION_STATES",
    "EXIT_STATUS",
    "ApplicationAttemptReport",
    "ApplicationReport",
    "ClusterMetrics",
    "ContainerReport",
    "NodeReport",
    "ResourceUsageReport",
    "WaitCause",
    "WaitReason",
    "WaitingAsk",
    "WaitingReport",
    "application_report",
    "attempt_report",
    "client_state",
    "cluster_metrics",
    "container_report",
    "node_report",
    "node_reports",
    "waiting_report",
    "waiting_reports",
]
