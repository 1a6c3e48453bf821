"""Lines of each kind, in the forms of Hadoop 2 and 3."""

from __future__ import annotations

from typing import Any

import pytest

from ...kit.tables import paired
from .written import AT, parsed, records

RM = "org.apache.hadoop.yarn.server.resourcemanager"
NM = "org.apache.hadoop.yarn.server.nodemanager"
MR = "org.apache.hadoop.mapreduce.v2.app"
EVENTS = "org.apache.hadoop.yarn.event"
TEZ = "org.apache.tez.dag.app"
CONTAINER = "container_1445144423722_0020_01_000002"
EPOCH_CONTAINER = "container_e17_1445144423722_0020_02_000003"

# The machine, entity and states; the class and the type of the event, with a `?` if the line does not name it.
TRANSITIONS = f"""
# Hadoop 3, and 2 from 2.7 on
{RM}.rmapp.RMAppImpl: application_1_0001 State change from NEW to NEW_SAVING on event = START
    RMApp application_1_0001 NEW NEW_SAVING RMAppEventType START
{RM}.rmapp.RMAppImpl: application_1_0001 State change from NEW to NEW_SAVING on event=START
    RMApp application_1_0001 NEW NEW_SAVING RMAppEventType START
# Hadoop 2 before that: ATTEMPT_REGISTERED is the only event, and the other transition has several
{RM}.rmapp.RMAppImpl: application_1_0001 State change from ACCEPTED to RUNNING
    RMApp application_1_0001 ACCEPTED RUNNING RMAppEventType ATTEMPT_REGISTERED?
{RM}.rmapp.RMAppImpl: application_1_0001 State change from SUBMITTED to FINAL_SAVING
    RMApp application_1_0001 SUBMITTED FINAL_SAVING RMAppEventType ?
{RM}.rmapp.attempt.RMAppAttemptImpl: appattempt_1_1_1 State change from LAUNCHED to RUNNING on event = REGISTERED
    RMAppAttempt appattempt_1_1_1 LAUNCHED RUNNING RMAppAttemptEventType REGISTERED
# only releases before 2.3 have it
{RM}.rmapp.attempt.RMAppAttemptImpl: appattempt_1_1_1 State change from RUNNING to FINISHING
    RMAppAttempt appattempt_1_1_1 RUNNING FINISHING RMAppAttemptEventType UNREGISTERED?
RMContainerImpl: {CONTAINER} Container Transitioned from ACQUIRED to RUNNING
    RMContainer {CONTAINER} ACQUIRED RUNNING RMContainerEventType LAUNCHED?
{RM}.rmnode.RMNodeImpl: node-7.example.org:45454 Node Transitioned from RUNNING to LOST
    RMNode node-7.example.org:45454 RUNNING LOST RMNodeEventType EXPIRE?
{RM}.rmnode.RMNodeImpl: node-7.example.org:45454 Node Transitioned from NEW to RUNNING on event = STARTED
    RMNode node-7.example.org:45454 NEW RUNNING RMNodeEventType STARTED
# without a space in all versions
{MR}.job.impl.JobImpl: job_1445144423722_0020Job Transitioned from NEW to INITED
    MRJob job_1445144423722_0020 NEW INITED JobEventType JOB_INIT?
{MR}.job.impl.TaskImpl: task_1_0020_m_000000 Task Transitioned from NEW to SCHEDULED
    MRTask task_1_0020_m_000000 NEW SCHEDULED TaskEventType T_SCHEDULE?
{MR}.job.impl.TaskAttemptImpl: attempt_1_2_m_3_0 TaskAttempt Transitioned from RUNNING to SUCCESS_CONTAINER_CLEANUP
    MRTaskAttempt attempt_1_2_m_3_0 RUNNING SUCCESS_CONTAINER_CLEANUP TaskAttemptEventType TA_DONE?
# one event in Hadoop 3, another in Hadoop 2
{MR}.job.impl.TaskAttemptImpl: attempt_1_2_m_3_0 TaskAttempt Transitioned from NEW to FAILED
    MRTaskAttempt attempt_1_2_m_3_0 NEW FAILED TaskAttemptEventType ?
{NM}.containermanager.application.ApplicationImpl: Application application_1_0001 transitioned from NEW to INITING
    NMApplication application_1_0001 NEW INITING ApplicationEventType INIT_APPLICATION?
# Hadoop 2 logs it by the interface
{NM}.containermanager.container.Container: Container {EPOCH_CONTAINER} transitioned from LOCALIZING to LOCALIZED
    NMContainer {EPOCH_CONTAINER} LOCALIZING LOCALIZED ContainerEventType RESOURCE_LOCALIZED?
container.ContainerImpl: Container {CONTAINER} transitioned from LOCALIZING to SCHEDULED
    NMContainer {CONTAINER} LOCALIZING SCHEDULED ContainerEventType RESOURCE_LOCALIZED?
{NM}.a.LocalizedResource: Resource hdfs://m:9/a_b/job.jar(->/nm/11/job.jar) transitioned from DOWNLOADING to LOCALIZED
    LocalizedResource hdfs://m:9/a_b/job.jar DOWNLOADING LOCALIZED ResourceEventType LOCALIZED?
# Hadoop 3, at debug
{NM}.a.LocalizedResource: Resource hdfs://m/a.jar(->/11/a.jar) size : 47 transitioned from DOWNLOADING to LOCALIZED
    LocalizedResource hdfs://m/a.jar DOWNLOADING LOCALIZED ResourceEventType LOCALIZED?
# machines of somebody else, with the names of Hadoop's
{TEZ}.dag.impl.TaskImpl: task_1_0001_1_00_000000 Task Transitioned from NEW to SCHEDULED
    Task task_1_0001_1_00_000000 NEW SCHEDULED TaskEventType ?
{TEZ}.rm.container.Container: Container {CONTAINER} transitioned from NEW to RUNNING
    Container {CONTAINER} NEW RUNNING ContainerEventType ?
"""


def read_message(line: str) -> Any:
    """The message of a line, a logger's name before it; None if it is of no kind."""
    return next((record.message for record in records(parsed([f"{AT} INFO {line}".encode()]))), None)


@pytest.mark.parametrize(("line", "read"), paired(TRANSITIONS))
def test_transitions_are_read_into_their_machines(line: str, read: str) -> None:
    machine, entity, from_state, to_state, event_class, event = read.split()
    is_told = not event.endswith("?")

    transition = "transition", event_class, event.strip("?"), entity, machine, from_state, to_state
    assert read_message(line) == (*transition, is_told, None, None)


def test_the_name_of_a_resource_may_have_blanks() -> None:
    found = read_message("LocalizedResource: Resource hdfs://m/a b.jar(->/11/a b.jar) transitioned from INIT to FAILED")

    assert found.entity == "hdfs://m/a b.jar"


def test_the_id_of_an_allocated_container_names_its_application_and_attempt() -> None:
    found = read_message(f"RMContainerImpl: {EPOCH_CONTAINER} Container Transitioned from NEW to ALLOCATED")

    assert (found.machine, found.event_type, found.entity) == ("RMContainer", "START", EPOCH_CONTAINER)
    assert found.fields == {
        "application": "application_1445144423722_0020",
        "attempt": "appattempt_1445144423722_0020_000002",
    }


# The kind, class and type of the event, its entity, and the fields.
OTHERS = f"""
{EVENTS}.AsyncDispatcher: Registering class a.b.JobEventType for class a.b.MRAppMaster$JobEventDispatcher
    registration AsyncDispatcher REGISTERED a.b.JobEventType event_class=a.b.JobEventType \
handler_class=a.b.MRAppMaster$JobEventDispatcher
{EVENTS}.AsyncDispatcher: Size of event-queue is 1000
    queue_size AsyncDispatcher QUEUE_SIZE AsyncDispatcher queue=AsyncDispatcher size=1000
# the scheduler's queue in Hadoop 2, and in Hadoop 3
{RM}.ResourceManager: Size of scheduler event-queue is 2000
    queue_size ResourceManager QUEUE_SIZE scheduler queue=scheduler size=2000
{EVENTS}.EventDispatcher: Size of SchedulerEventDispatcher event-queue is 3000
    queue_size EventDispatcher QUEUE_SIZE SchedulerEventDispatcher queue=SchedulerEventDispatcher size=3000
{EVENTS}.AsyncDispatcher: Very low remaining capacity in the event-queue: 999
    queue_size AsyncDispatcher ROOM_LEFT AsyncDispatcher queue=AsyncDispatcher room_left=999
{RM}.ResourceManager$SchedulerEventDispatcher: Very low remaining capacity on scheduler event queue: 7
    queue_size SchedulerEventDispatcher ROOM_LEFT scheduler queue=scheduler room_left=7
# Hadoop 3 forgets a space
{EVENTS}.EventDispatcher: Very low remaining capacity on SchedulerEventDispatcherevent queue: 7
    queue_size EventDispatcher ROOM_LEFT SchedulerEventDispatcher queue=SchedulerEventDispatcher room_left=7
{EVENTS}.AsyncDispatcher: Event type: NODE_UPDATE, Event record counter: 4711
    queue_size AsyncDispatcher QUEUED_EVENTS AsyncDispatcher queue=AsyncDispatcher event_type=NODE_UPDATE size=4711
{EVENTS}.AsyncDispatcher: Latest dispatch event type: NODE_UPDATE
    dispatch AsyncDispatcher DISPATCHED - event_type=NODE_UPDATE
{MR}.commit.CommitterEventHandler: Processing the event EventType: JOB_SETUP
    handling CommitterEventHandler JOB_SETUP -
{MR}.ContainerLauncherImpl: Processing the event EventType: LAUNCH for container {CONTAINER} taskAttempt attempt_1
    handling ContainerLauncherImpl LAUNCH attempt_1 container={CONTAINER} attempt=attempt_1
"""


@pytest.mark.parametrize(("line", "read"), paired(OTHERS))
def test_what_dispatchers_log_is_read(line: str, read: str) -> None:
    kind, event_class, event_type, entity, *pairs = read.split()
    fields = {name: int(value) if value.isdigit() else value for name, value in (pair.split("=") for pair in pairs)}

    event = kind, event_class, event_type, None if entity == "-" else entity
    assert read_message(line) == (*event, "", "", "", True, None, fields or None)


AUDITED = (
    "USER=ann\tIP=10.0.0.1\tOPERATION=AM Allocated Container\tTARGET=SchedulerApp\tRESULT=SUCCESS\t"
    f"APPID=application_1445144423722_0020\tCONTAINERID={CONTAINER}\tRESOURCE=<memory:2048, vCores:1>\t"
    "CALLERCONTEXT=CLI=a\tQUEUENAME=root.a"
)
AUDITED_FIELDS = dict(pair.split("=", 1) for pair in AUDITED.split("\t"))


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (f"{AUDITED}\tNEWKEY=x", AUDITED_FIELDS | {"NEWKEY": "x"}),
        (AUDITED.replace("\t", "      ").replace("      IP", " IP"), AUDITED_FIELDS),
    ],
    ids=["tabs", "tabs that have become spaces"],
)
def test_an_audit_line_is_read_with_all_its_keys(line: str, fields: dict[str, str]) -> None:
    event = "audit", "NMAuditLogger", "AM Allocated Container", CONTAINER
    assert read_message(f"{NM}.NMAuditLogger: {line}") == (*event, "", "", "", True, None, fields)


def test_what_was_not_granted_is_an_error() -> None:
    fields = {
        "USER": "bob",
        "OPERATION": "Kill Application Request",
        "RESULT": "FAILURE",
        "DESCRIPTION": "Unauthorized",
    }
    fields |= {"PERMISSIONS": "ACL of ann", "APPID": "application_1_0001"}

    read = read_message(f"{RM}.RMAuditLogger: " + "\t".join(f"{name}={value}" for name, value in fields.items()))

    assert (read.entity, read.error, read.fields) == ("application_1_0001", "Unauthorized", fields)


OF_NO_KIND = """\
a.B:
: x State change from A to B
RMAppImpl: Storing application with id application_1_0001
RMAppImpl: State change from NEW to NEW_SAVING
RMAppImpl: application_1_0001 State change from NEW to NEW_SAVING, at last
ResourceManager: Transitioned to active state
ResourceManager: The cluster transitioned from old to new machines
RMAuditLogger: a message without keys
AsyncDispatcher: Size of event-queue is large
AsyncDispatcher: Size of event-queue is 99999999999999999999999
AsyncDispatcher: Registering class a.B for nobody
"""


@pytest.mark.parametrize("line", OF_NO_KIND.splitlines())
def test_other_messages_are_of_no_kind(line: str) -> None:
    assert read_message(line) is None
