"""The fields that `docs/rest.md` lists have Hadoop's types, and monitoring of YARN finds those that it reads.

Datadog's check `yarn` and yarn-prometheus-exporter read the REST API; hadoop_exporter, Ambari's alert on node managers
and Nagios' check of applications read /jmx.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from .hadoop_fields import DOCUMENTED, KINDS, Documented, found, there

pytestmark = pytest.mark.long

LEAF = "queue without children, besides"
BOTH_OF_METRICS = (
    "appsSubmitted appsCompleted appsPending appsRunning appsFailed appsKilled reservedMB availableMB allocatedMB "
    "totalMB reservedVirtualCores availableVirtualCores allocatedVirtualCores totalVirtualCores containersAllocated "
    "containersReserved containersPending totalNodes activeNodes lostNodes unhealthyNodes decommissionedNodes "
    "rebootedNodes"
)
READ = {
    "Datadog": {
        "clusterMetrics": BOTH_OF_METRICS,
        "app": "progress startedTime finishedTime elapsedTime allocatedMB allocatedVCores runningContainers "
        "memorySeconds vcoreSeconds applicationTags applicationType name queue user",
        "node": "lastHealthUpdate usedMemoryMB availMemoryMB usedVirtualCores availableVirtualCores numContainers "
        "version id",
        "schedulerInfo": "type maxCapacity usedCapacity capacity",
        "queue": "absoluteCapacity numApplications absoluteUsedCapacity resourcesUsed capacity absoluteMaxCapacity "
        "usedCapacity maxCapacity",
        LEAF: "numContainers numPendingApplications userAMResourceLimit userLimitFactor userLimit usedAMResource "
        "AMResourceLimit numActiveApplications maxActiveApplications maxActiveApplicationsPerUser maxApplications "
        "maxApplicationsPerUser",
        "resource": "memory vCores",
    },
    # A Go program: a value of another type fails the whole scrape, where a missing one is 0.
    "yarn-prometheus-exporter": {
        "clusterMetrics": f"{BOTH_OF_METRICS} decommissioningNodes shutdownNodes totalUsedResourcesAcrossPartition "
        "totalClusterResourcesAcrossPartition",
        "resource": "memory vCores resourceInformations",
        "resourceInformation": "maximumAllocation minimumAllocation value name resourceType units",
        "schedulerInfo": "capacity maxCapacity usedCapacity queueName capacities",
        "queue": "absoluteCapacity absoluteMaxCapacity absoluteUsedCapacity allocatedContainers capacity maxCapacity "
        "numApplications pendingContainers reservedContainers usedCapacity resourcesUsed capacities resources "
        "queueName state",
        LEAF: "maxApplications maxApplicationsPerUser numActiveApplications numContainers numPendingApplications "
        "userLimit userLimitFactor AMResourceLimit usedAMResource userAMResourceLimit preemptionDisabled type users",
        "partition of a queue": "partitionName absoluteCapacity absoluteMaxCapacity absoluteUsedCapacity capacity "
        "maxAMLimitPercentage maxCapacity usedCapacity",
        "resources of a queue": "partitionName amLimit amUsed pending reserved used",
        "user": "AMResourceUsed resourcesUsed userResourceLimit numActiveApplications numPendingApplications username",
    },
    # It tells the active of two resource managers by `modelerType`.
    "Ambari": {"bean RMNMInfo": "LiveNodeManagers modelerType", "node in LiveNodeManagers": "State"},
    "Nagios": {
        "bean QueueMetrics": "AppsSubmitted AppsRunning AppsPending AppsCompleted AppsKilled AppsFailed ActiveUsers "
        "ActiveApplications AvailableMB"
    },
}


@pytest.fixture(scope="module")
def objects() -> Mapping[str, list[Any]]:
    return found()


@pytest.mark.parametrize("documented", DOCUMENTED, ids=lambda each: str(each.name))
def test_fields_have_the_types_that_they_have_in_hadoop(
    objects: Mapping[str, list[Any]], documented: Documented
) -> None:
    of_kind = objects[documented.name]
    assert of_kind, "no such object in our answers"

    wrong = {
        f"{name}: {each[name]!r:.80} is no {documented.fields[name]}"
        for name in there(documented, of_kind)
        for each in of_kind
        if name in each and type(each[name]) not in KINDS[documented.fields[name]]
    }
    assert wrong == set()


@pytest.mark.parametrize(("exporter", "kind"), [(name, kind) for name, kinds in READ.items() for kind in kinds])
def test_an_exporter_finds_the_fields_that_it_reads(objects: Mapping[str, list[Any]], exporter: str, kind: str) -> None:
    assert objects[kind]
    for each in objects[kind]:
        assert [name for name in READ[exporter][kind].split() if name not in each] == []


def test_datadog_tells_the_version_of_a_node(objects: Mapping[str, list[Any]]) -> None:
    assert all(re.fullmatch(r"\d+\.\d+\.\d+.*", node["version"]) for node in objects["node"])


OF_QUEUE = [r"^running_\d+$", r".+Containers$", r".+VCores$", r".+MB$", r"^Apps.+", r"^(?!tag|modelerType|name).*"]
HADOOP_EXPORTER = [
    ("bean QueueMetrics", r"name=QueueMetrics(,q\d=\w+){1,2}$", OF_QUEUE),
    ("bean ClusterMetrics", r"name=ClusterMetrics$", [r"^Num.+NMs$", r".+(NumOps|AvgTime)$"]),
]
"""Which beans it asks for, and by which patterns it takes their attributes: the first that fits."""


@pytest.mark.parametrize(("kind", "name", "patterns"), HADOOP_EXPORTER)
def test_hadoop_exporter_takes_numbers_only(
    objects: Mapping[str, list[Any]], kind: str, name: str, patterns: list[str]
) -> None:
    taken = [bean for bean in objects[kind] if re.search(name, bean["name"])]
    assert taken
    for bean in taken:
        values = {key: value for key, value in bean.items() if any(re.search(each, key) for each in patterns)}
        assert len(values) > 6
        assert {key: value for key, value in values.items() if type(value) not in (int, float)} == {}
