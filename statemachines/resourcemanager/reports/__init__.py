"""The reports for clients, and for the web: each is made on the handler thread, at the cost of its own size.

    entities       applications, attempts, containers, nodes
    cluster        the cluster's totals
    app_waits      why an application waits
    app_failures   why an application has failed
    admin_changes  what administrators have changed

They are immutable: any thread may read them. Those on queues are the scheduler's (scheduler/queue_info.py).
"""

from statemachines.resourcemanager.events.records import EXIT_STATUS
from statemachines.resourcemanager.reports.admin_changes import ChangeReports, NodeChangeReport, QueueChangeReport
from statemachines.resourcemanager.reports.app_failures import FailureCause
from statemachines.resourcemanager.reports.app_waits import (
    AppWait,
    WaitingReport,
    app_waits,
    waiting_reports,
)
from statemachines.resourcemanager.reports.cluster import ClusterMetrics, cluster_metrics
from statemachines.resourcemanager.reports.entities import (
    APPLICATION_STATES,
    ENDED_STATES,
    NODE_STATES,
    WAITING_STATES,
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
    view_key,
    waiting_apps,
)
from statemachines.resourcemanager.scheduler.wait_reasons import WaitCause, WaitingAsk, WaitReason

__all__ = [
    "APPLICATION_STATES",
    "ENDED_STATES",
    "EXIT_STATUS",
    "NODE_STATES",
    "WAITING_STATES",
    "AppWait",
    "ApplicationAttemptReport",
    "ApplicationReport",
    "ChangeReports",
    "ClusterMetrics",
    "ContainerReport",
    "FailureCause",
    "NodeChangeReport",
    "NodeReport",
    "QueueChangeReport",
    "ResourceUsageReport",
    "WaitCause",
    "WaitReason",
    "WaitingAsk",
    "WaitingReport",
    "app_waits",
    "application_report",
    "attempt_report",
    "client_state",
    "cluster_metrics",
    "container_report",
    "node_report",
    "node_reports",
    "view_key",
    "waiting_apps",
    "waiting_reports",
]
