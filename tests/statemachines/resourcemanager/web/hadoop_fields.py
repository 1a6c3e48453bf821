"""The fields that Hadoop's ResourceManager answers with, and those that ours does: `docs/rest.md` compares them.

The fields are those of Hadoop's page on its REST API, and those that are in the answers of Hadoop 3.4 without being on
that page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from statemachines.resourcemanager import ContainerRequest, Resource
from statemachines.simulation.workload import NodeSpec

from ..daemon.yarn_cluster import Master, Yarn
from .served import Served

KINDS: dict[str, tuple[type, ...]] = {
    "long": (int,),
    "int": (int,),
    "float": (float, int),
    "string": (str,),
    "boolean": (bool,),
    "object": (dict,),
    "list": (list,),
}
"""Hadoop's types, and what the values of JSON are in Python."""


class Documented(NamedTuple):
    """One kind of object in Hadoop's answers."""

    name: str
    """Unique."""
    request: str
    """`{app}` and the like stand for ids."""
    fields: dict[str, str]
    """Their types in Hadoop, by name."""
    found_in: Callable[[Any], Iterator[Any]]
    """The objects of this kind in an answer."""


def _fields(*, long: str = "", int: str = "", float: str = "", string: str = "", boolean: str = "", object: str = "",
            list: str = "") -> dict[str, str]:  # fmt: skip
    """From the names of the fields of each type."""
    given = {"long": long, "int": int, "float": float, "string": string, "boolean": boolean, "object": object}
    return {name: kind for kind, names in {**given, "list": list}.items() for name in names.split()}


def _at(*keys: str) -> Callable[[Any], Iterator[Any]]:
    """What is below these keys; each item of a list."""

    def found(answer: Any) -> Iterator[Any]:
        here = [answer]
        for key in keys:
            here = [each[key] for each in here if key in each]
            here = [item for each in here for item in (each if isinstance(each, list) else [each])]
        return iter(here)

    return found


def _queues(*below: str, only_leaves: bool = False) -> Callable[[Any], Iterator[Any]]:
    """The queues below the root, or what is below these keys in them."""

    def found(answer: Any) -> Iterator[Any]:
        waiting = list(_at("scheduler", "schedulerInfo", "queues", "queue")(answer))
        while waiting:
            queue = waiting.pop()
            waiting += _at("queues", "queue")(queue)
            if not only_leaves or "queues" not in queue:
                yield from _at(*below)(queue)

    return found


def _beans(name: str) -> Callable[[Any], Iterator[Any]]:
    return lambda answer: (each for each in answer["beans"] if f"name={name}" in each["name"])


DOCUMENTED = [
    Documented(
        "clusterInfo",
        "/info",
        _fields(
            long="id startedOn",
            string="state haState rmStateStoreName resourceManagerVersion resourceManagerBuildVersion "
            "resourceManagerVersionBuiltOn hadoopVersion hadoopBuildVersion hadoopVersionBuiltOn "
            "haZooKeeperConnectionState",
        ),
        _at("clusterInfo"),
    ),
    Documented(
        "clusterMetrics",
        "/metrics",
        _fields(
            int="appsSubmitted appsCompleted appsPending appsRunning appsFailed appsKilled containersAllocated "
            "containersReserved containersPending totalNodes activeNodes lostNodes unhealthyNodes decommissioningNodes "
            "decommissionedNodes rebootedNodes shutdownNodes totalAllocatedContainersAcrossPartition rmEventQueueSize "
            "schedulerEventQueueSize utilizedMBPercent utilizedVirtualCoresPercent rmSchedulerBusyPercent",
            long="reservedMB availableMB allocatedMB pendingMB totalMB reservedVirtualCores availableVirtualCores "
            "allocatedVirtualCores pendingVirtualCores totalVirtualCores",
            object="totalUsedResourcesAcrossPartition totalClusterResourcesAcrossPartition "
            "totalReservedResourcesAcrossPartition",
            boolean="crossPartitionMetricsAvailable",
        ),
        _at("clusterMetrics"),
    ),
    Documented(
        "resource",
        "/metrics",
        _fields(long="memory", int="vCores", object="resourceInformations"),
        _at("clusterMetrics", "totalClusterResourcesAcrossPartition"),
    ),
    Documented(
        "resourceInformation",
        "/metrics",
        _fields(
            string="name resourceType units", long="value minimumAllocation maximumAllocation", object="attributes"
        ),
        _at("clusterMetrics", "totalUsedResourcesAcrossPartition", "resourceInformations", "resourceInformation"),
    ),
    Documented(
        "schedulerInfo",
        "/scheduler",
        _fields(
            string="type queueName queuePath orderingPolicyInfo mode queueType creationMethod autoCreationEligibility",
            float="capacity usedCapacity maxCapacity weight normalizedWeight",
            int="queuePriority maxParallelApps",
            object="queues capacities health maximumAllocation queueAcls queueCapacityVectorInfo "
            "autoQueueTemplateProperties",
            boolean="isAbsoluteResource",
        ),
        _at("scheduler", "schedulerInfo"),
    ),
    Documented(
        "queue",
        "/scheduler",
        _fields(
            float="capacity usedCapacity maxCapacity absoluteCapacity absoluteMaxCapacity absoluteUsedCapacity weight "
            "normalizedWeight",
            int="numApplications maxParallelApps allocatedContainers reservedContainers pendingContainers "
            "queuePriority",
            string="queueName queuePath state usedResources orderingPolicyInfo mode queueType creationMethod "
            "autoCreationEligibility",
            object="resourcesUsed capacities resources minEffectiveCapacity maxEffectiveCapacity maximumAllocation "
            "queueAcls queues leafQueueTemplate autoQueueTemplateProperties queueCapacityVectorInfo",
            boolean="isAbsoluteResource autoCreateChildQueueEnabled hideReservationQueues",
            list="nodeLabels",
        ),
        _queues(),
    ),
    Documented(
        "queue without children, besides",
        "/scheduler",
        _fields(
            string="type defaultNodeLabelExpression",
            int="numActiveApplications numPendingApplications numContainers maxApplications maxApplicationsPerUser "
            "maxActiveApplications maxActiveApplicationsPerUser userLimit defaultPriority",
            float="userLimitFactor configuredMaxAMResourceLimit",
            object="users AMResourceLimit usedAMResource userAMResourceLimit",
            boolean="preemptionDisabled intraQueuePreemptionDisabled isAutoCreatedLeafQueue",
            long="maxApplicationLifetime defaultApplicationLifetime",
        ),
        _queues(only_leaves=True),
    ),
    Documented(
        "partition of a queue",
        "/scheduler",
        _fields(
            string="partitionName",
            float="capacity usedCapacity maxCapacity absoluteCapacity absoluteUsedCapacity absoluteMaxCapacity "
            "maxAMLimitPercentage weight normalizedWeight",
            object="configuredMinResource configuredMaxResource effectiveMinResource effectiveMaxResource "
            "queueCapacityVectorInfo",
        ),
        _queues("capacities", "queueCapacitiesByPartition", only_leaves=True),
    ),
    Documented(
        "resources of a queue",
        "/scheduler",
        _fields(string="partitionName", object="used reserved pending amUsed amLimit userAmLimit"),
        _queues("resources", "resourceUsagesByPartition", only_leaves=True),
    ),
    Documented(
        "user",
        "/scheduler",
        _fields(
            string="username",
            int="numActiveApplications numPendingApplications",
            object="resourcesUsed AMResourceUsed userResourceLimit resources",
            float="userWeight",
            boolean="isActive",
        ),
        _queues("users", "user", only_leaves=True),
    ),
    Documented(
        "queueAcl",
        "/scheduler",
        _fields(string="accessType accessControlList"),
        _at("scheduler", "schedulerInfo", "queueAcls", "queueAcl"),
    ),
    Documented(
        "health",
        "/scheduler",
        _fields(long="lastrun", list="operationsInfo lastRunDetails"),
        _at("scheduler", "schedulerInfo", "health"),
    ),
    Documented(
        "operation",
        "/scheduler",
        _fields(string="operation nodeId containerId queue"),
        _at("scheduler", "schedulerInfo", "health", "operationsInfo"),
    ),
    Documented(
        "lastRunDetail",
        "/scheduler",
        _fields(string="operation", long="count", object="resources"),
        _at("scheduler", "schedulerInfo", "health", "lastRunDetails"),
    ),
    Documented(
        "app",
        "/apps",
        _fields(
            string="id user name queue state finalStatus trackingUI trackingUrl diagnostics applicationType "
            "applicationTags amContainerLogs amHostHttpAddress amRPCAddress masterNodeId logAggregationStatus "
            "appNodeLabelExpression amNodeLabelExpression rmClusterId",
            float="progress queueUsagePercentage clusterUsagePercentage",
            long="clusterId startedTime launchTime finishedTime elapsedTime allocatedMB allocatedVCores reservedMB "
            "reservedVCores memorySeconds vcoreSeconds preemptedResourceMB preemptedResourceVCores "
            "preemptedMemorySeconds preemptedVcoreSeconds",
            int="priority runningContainers numNonAMContainerPreempted numAMContainerPreempted",
            boolean="unmanagedApplication",
            list="resourceRequests",
            object="resourceInfo timeouts resourceSecondsMap preemptedResourceSecondsMap",
        ),
        _at("apps", "app"),
    ),
    Documented(
        "resourceRequest",
        "/apps",
        _fields(
            int="priority numContainers",
            long="allocationRequestId",
            string="resourceName nodeLabelExpression placementConstraint",
            object="capability executionTypeRequest",
            boolean="relaxLocality",
            list="allocationTags",
        ),
        _at("apps", "app", "resourceRequests"),
    ),
    Documented(
        "timeout",
        "/apps/{app}/timeouts",
        _fields(string="type expiryTime", long="remainingTimeInSeconds"),
        _at("timeouts", "timeout"),
    ),
    Documented(
        "appAttempt in a list",
        "/apps/{app}/appattempts",
        _fields(
            int="id",
            string="appAttemptId containerId nodeHttpAddress nodeId logsLink blacklistedNodes nodesBlacklistedBySystem "
            "exportPorts appAttemptState",
            long="startTime finishedTime",
        ),
        _at("appAttempts", "appAttempt"),
    ),
    Documented(
        "appAttempt",
        "/apps/{app}/appattempts/{attempt}",
        _fields(
            string="appAttemptId host trackingUrl originalTrackingUrl diagnosticsInfo appAttemptState amContainerId",
            int="rpcPort",
            long="startedTime finishedTime",
        ),
        _at("appAttempt"),
    ),
    Documented(
        "container",
        "/apps/{app}/appattempts/{attempt}/containers",
        _fields(
            string="containerId assignedNodeId diagnosticsInfo logUrl containerState nodeHttpAddress nodeId "
            "executionType",
            long="allocatedMB allocatedVCores startedTime finishedTime elapsedTime",
            int="priority containerExitStatus",
            object="allocatedResources exposedPorts",
            list="allocationTags",
        ),
        _at("containers", "container"),
    ),
    Documented(
        "statItem", "/appstatistics", _fields(string="state type", long="count"), _at("appStatInfo", "statItem")
    ),
    Documented(
        "node",
        "/nodes",
        _fields(
            string="rack state id nodeHostName nodeHTTPAddress version healthReport",
            long="lastHealthUpdate usedMemoryMB availMemoryMB usedVirtualCores availableVirtualCores "
            "usedMemoryOpportGB usedVirtualCoresOpport",
            int="numContainers numRunningOpportContainers numQueuedContainers",
            float="memUtilization cpuUtilization",
            object="totalResource usedResource availableResource resourceUtilization allocationTags nodeAttributesInfo",
            list="nodeLabels",
        ),
        _at("nodes", "node"),
    ),
    Documented(
        "nodeLabelInfo",
        "/get-node-labels",
        _fields(string="name", boolean="exclusivity", object="partitionInfo", int="activeNMs"),
        _at("nodeLabelInfo"),
    ),
    Documented(
        "bean RMNMInfo",
        "/jmx",
        _fields(string="name modelerType LiveNodeManagers"),
        _beans("RMNMInfo"),
    ),
    Documented(
        "node in LiveNodeManagers",
        "/jmx",
        _fields(
            string="HostName Rack State NodeId NodeHTTPAddress HealthReport NodeManagerVersion",
            long="LastHealthUpdate UsedMemoryMB AvailableMemoryMB",
            int="NumContainers",
        ),
        lambda answer: iter(
            [node for each in _beans("RMNMInfo")(answer) for node in json.loads(each["LiveNodeManagers"])]
        ),
    ),
    Documented(
        "bean ClusterMetrics",
        "/jmx",
        _fields(
            string="name modelerType tag.ClusterMetrics tag.Context tag.Hostname",
            int="NumActiveNMs NumDecommissioningNMs NumDecommissionedNMs NumLostNMs NumUnhealthyNMs NumRebootedNMs "
            "NumShutdownNMs RmDispatcherEventQueueSize SchedulerDispatcherEventQueueSize ContainerAssignedPerSecond",
            long="CapabilityMB CapabilityVirtualCores Capability.yarn.io/gpu UtilizedMB UtilizedVirtualCores "
            "AMLaunchDelayNumOps AMRegisterDelayNumOps AMContainerAllocationDelayNumOps RmEventProcCPUAvg "
            "RmEventProcCPUMax",
            float="AMLaunchDelayAvgTime AMRegisterDelayAvgTime AMContainerAllocationDelayAvgTime",
        ),
        _beans("ClusterMetrics"),
    ),
    Documented(
        "bean QueueMetrics",
        "/jmx",
        _fields(
            string="name modelerType tag.Queue tag.Context tag.Hostname",
            int="AppsSubmitted AppsRunning AppsPending AppsCompleted AppsKilled AppsFailed AllocatedContainers "
            "PendingContainers ReservedContainers ActiveUsers ActiveApplications running_0 running_60 running_300 "
            "running_1440 AllocatedVCores AvailableVCores PendingVCores ReservedVCores",
            long="AllocatedMB AvailableMB PendingMB ReservedMB AggregateContainersAllocated "
            "AggregateContainersReleased AggregateContainersPreempted AggregateMemoryMBSecondsPreempted "
            "AggregateVcoreSecondsPreempted AggregateNodeLocalContainersAllocated "
            "AggregateRackLocalContainersAllocated AggregateOffSwitchContainersAllocated "
            "AllocatedResource.yarn.io/gpu AvailableResource.yarn.io/gpu PendingResource.yarn.io/gpu "
            "ReservedResource.yarn.io/gpu AMResourceLimitMB AMResourceLimitVCores UsedAMResourceMB "
            "UsedAMResourceVCores GuaranteedMB GuaranteedVCores MaxCapacityMB MaxCapacityVCores "
            "AppAttemptFirstContainerAllocationDelayNumOps",
            float="UsedCapacity AbsoluteUsedCapacity AppAttemptFirstContainerAllocationDelayAvgTime",
        ),
        _beans("QueueMetrics"),
    ),
]

_LABEL = {"accessible_node_labels": {"x": {"capacity": 100}}}
_QUEUES = {
    "kind": "capacity",
    "queues": [
        {"name": "a", "capacity": 60},
        {"name": "b", "capacity": 40, "queues": [{"name": "c", "default_node_label": "x", **_LABEL}], **_LABEL},
    ],
}


def found() -> dict[str, list[Any]]:
    """The objects of each kind in our answers, while an application runs and waits, and another one has ended."""
    nodes = NodeSpec("n1", Resource(1000, 10_000, gpus=4)), NodeSpec("n2", Resource(1000, 10_000), partition="x")
    with Yarn(*nodes, scheduler=_QUEUES) as yarn, Served(yarn.manager) as served:
        served.publish()
        yarn.submit_and_run("ended", am_mb=100, queue="a").finish_and_exit()
        master = yarn.submit_and_run("running", am_mb=100, queue="a", user="ann")
        master.get_running(ContainerRequest(Resource(100, 1000, gpus=1), tag=1))
        master.allocate(ContainerRequest(Resource(99_999, 1000), tag=2))
        served.publish()
        answers = {each.request: _answer(served, master, each.request) for each in DOCUMENTED}
    return {each.name: list(each.found_in(answers[each.request])) for each in DOCUMENTED}


def _answer(served: Served, master: Master, request: str) -> Any:
    path = request.format(app=master.app_id, attempt=master.attempt)
    return served.ask("//jmx" if path == "/jmx" else path).json()


def there(documented: Documented, objects: list[Any]) -> list[str]:
    """The documented fields that an object of this kind has."""
    return [name for name in documented.fields if any(name in each for each in objects)]
