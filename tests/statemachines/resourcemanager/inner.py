"""The inner names that several tests of the resource manager need, so that a module that moves is a line here."""

# ruff: noqa: F401

from __future__ import annotations

from statemachines.resourcemanager import RMAppState
from statemachines.resourcemanager.context import FACTORIES, RMContext
from statemachines.resourcemanager.events.rmapp import RMAppEvent, RMAppFailedAttemptEvent, RMAppRecoverEvent
from statemachines.resourcemanager.events.rmappattempt import (
    RMAppAttemptEvent,
    RMAppAttemptRecoverEvent,
    RMAppAttemptRegistrationEvent,
    RMAppAttemptStatusUpdateEvent,
    RMAppAttemptUnregistrationEvent,
    RMAppStartAttemptEvent,
)
from statemachines.resourcemanager.events.rmcontainer import (
    RMContainerEvent,
    RMContainerRecoverEvent,
    RMContainerReservedEvent,
    RMContainerResourceEvent,
)
from statemachines.resourcemanager.events.rmnode import (
    RMNodeEvent,
    RMNodeReconnectEvent,
    RMNodeStartedEvent,
    RMNodeStatusEvent,
)
from statemachines.resourcemanager.events.scheduler import (
    AppAddedSchedulerEvent,
    AppAttemptAddedSchedulerEvent,
    AppAttemptRemovedSchedulerEvent,
    NodeAddedSchedulerEvent,
    NodeLabelsUpdateSchedulerEvent,
    SchedulerEvent,
    SchedulerEventType,
)
from statemachines.resourcemanager.events.services import (
    AMLauncherEvent,
    AMLauncherEventType,
    NodesListManagerEvent,
    NodesListManagerEventType,
    RMAppManagerEventType,
    RMFatalEvent,
    RMFatalEventType,
    RMStateStoreEvent,
    RMStateStoreEventType,
)
from statemachines.resourcemanager.machines.entity import Entity, EntityEventHandler, Pending
from statemachines.resourcemanager.read import (
    failures,
    fields,
    marks,
    operations,
    publisher,
    queue_fields,
    series,
    wait_groups,
    waits,
)
from statemachines.resourcemanager.read.model import CHOICES_KEPT, LONGEST_PAUSE_S, ReadModel, SpareTime, pause_s
from statemachines.resourcemanager.read.published import Publication
from statemachines.resourcemanager.records.acls import AccessControlList, QueueACL, QueueACLs
from statemachines.resourcemanager.records.errors import InvalidRequestError, NodeRefusedError, NotFoundError
from statemachines.resourcemanager.records.ids import attempt_of
from statemachines.resourcemanager.records.resource import MaximumAllocation, named
from statemachines.resourcemanager.records.stored_state import (
    ApplicationAttemptStateData,
    ApplicationStateData,
    HostDrain,
    HostLists,
    MasterContainerData,
    NodeCapacity,
    NodeLabel,
    Origin,
    QueueChange,
    RecoveredApplication,
    RMState,
    decode,
    encode,
)
from statemachines.resourcemanager.reports import (
    ApplicationReport,
    AppWait,
    FailureCause,
    WaitCause,
    WaitingAsk,
    WaitingReport,
    WaitReason,
    cluster_metrics,
)
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, resource_of
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, SchedulerNode
from statemachines.resourcemanager.scheduler.fifo import FifoScheduler
from statemachines.resourcemanager.scheduler.queue_info import NOTHING, ApplicationUse, NodeUse, PendingRequests
from statemachines.resourcemanager.scheduler.resource_scheduler import HeartbeatAnswer, ResourceScheduler
from statemachines.resourcemanager.services.admin_service import AdminService
from statemachines.resourcemanager.services.application_master_launcher import ApplicationMasterLauncher, NodeManagers
from statemachines.resourcemanager.services.application_master_service import AllocateResponse, ApplicationMasterService
from statemachines.resourcemanager.services.client_rm_service import SIGNALS, ClientRMService
from statemachines.resourcemanager.services.nodes_list_manager import NodeEventDispatcher, NodesListManager
from statemachines.resourcemanager.services.resource_tracker_service import (
    HeartbeatResponse,
    NodeAction,
    ResourceTrackerService,
)
from statemachines.resourcemanager.statestore.sqlite import SqliteRMStateStore
from statemachines.resourcemanager.statestore.store import MemoryRMStateStore, RMStateStore
from statemachines.simulation.cluster import SimulatedCluster

ModelPublisher, WaitingReports = publisher.ModelPublisher, waits.WaitingReports

FINAL_STATES = frozenset({RMAppState.FINISHED, RMAppState.FAILED, RMAppState.KILLED})
# YARN's exit statuses of containers.
EXIT_SUCCESS = 0
EXIT_ABORTED = -100
EXIT_DISKS_FAILED = -101
EXIT_PREEMPTED = -102
EXIT_KILLED_BY_RESOURCEMANAGER = -106
EXIT_KILLED_AFTER_APP_COMPLETION = -107


def node_id(host: str) -> str:
    """Of a node with the port that nodes have by default."""
    return f"{host}:45454"


def attempt_id(application: str, number: int) -> str:
    return f"{application.replace('application', 'appattempt')}_{number:06d}"


def application_of(attempt: str) -> str:
    return attempt.replace("appattempt", "application").rpartition("_")[0]
