"""The inner names that several tests of the resource manager need, so that a module that moves is a line here."""

# ruff: noqa: F401

from __future__ import annotations

from statemachines.resourcemanager.context import FACTORIES, RMContext
from statemachines.resourcemanager.events.records import (
    EXIT_ABORTED,
    EXIT_DISKS_FAILED,
    EXIT_KILLED_AFTER_APP_COMPLETION,
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_PREEMPTED,
    EXIT_SUCCESS,
)
from statemachines.resourcemanager.events.rmapp import RMAppEvent
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEvent
from statemachines.resourcemanager.events.rmcontainer import RMContainerEvent
from statemachines.resourcemanager.events.rmnode import (
    RMNodeEvent,
    RMNodeReconnectEvent,
    RMNodeStartedEvent,
    RMNodeStatusEvent,
)
from statemachines.resourcemanager.events.scheduler import (
    AppAddedSchedulerEvent,
    AppAttemptAddedSchedulerEvent,
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
from statemachines.resourcemanager.machines.entity import EntityEventHandler
from statemachines.resourcemanager.machines.rmapp import FINAL_STATES
from statemachines.resourcemanager.machines.rmnode import node_id
from statemachines.resourcemanager.read.model import ReadModel
from statemachines.resourcemanager.read.published import Publication
from statemachines.resourcemanager.read.publisher import ModelPublisher
from statemachines.resourcemanager.read.waits import WaitingReports
from statemachines.resourcemanager.records.acls import QueueACLs
from statemachines.resourcemanager.records.errors import (
    InvalidRequestError,
    NodeRefusedError,
)
from statemachines.resourcemanager.records.ids import application_of, attempt_id, attempt_of
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
    WaitCause,
    WaitingAsk,
    WaitingReport,
    WaitReason,
    application_report,
    cluster_metrics,
)
from statemachines.resourcemanager.scheduler.core.amounts import add, amounts_of, resource_of
from statemachines.resourcemanager.scheduler.core.node import NodeRequirements, SchedulerNode
from statemachines.resourcemanager.scheduler.fifo import FifoScheduler
from statemachines.resourcemanager.scheduler.queue_info import NOTHING, ApplicationUse, NodeUse, PendingRequests
from statemachines.resourcemanager.scheduler.resource_scheduler import HeartbeatAnswer, ResourceScheduler
from statemachines.resourcemanager.services.admin_service import AdminService
from statemachines.resourcemanager.services.application_master_launcher import NodeManagers
from statemachines.resourcemanager.services.application_master_service import AllocateResponse, ApplicationMasterService
from statemachines.resourcemanager.services.client_rm_service import SIGNALS, ClientRMService
from statemachines.resourcemanager.services.nodes_list_manager import NodesListManager
from statemachines.resourcemanager.services.resource_tracker_service import (
    HeartbeatResponse,
    NodeAction,
    ResourceTrackerService,
)
from statemachines.resourcemanager.statestore.sqlite import SqliteRMStateStore
from statemachines.resourcemanager.statestore.store import MemoryRMStateStore, RMStateStore
from statemachines.simulation.cluster import SimulatedCluster
