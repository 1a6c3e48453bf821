"""Lines of each kind, in the forms of Hadoop 2 and 3."""

from __future__ import annotations

import pytest

from pipeline.yarnlog.messages import Message, read_message

RM = "org.apache.hadoop.yarn.server.resourcemanager"
NM = "org.apache.hadoop.yarn.server.nodemanager"
MR = "org.apache.hadoop.mapreduce.v2.app.job.impl"
DISPATCHER = "org.apache.hadoop.yarn.event.AsyncDispatcher"
CONTAINER = "container_1445144423722_0020_01_000002"
EPOCH_CONTAINER = "container_e17_1445144423722_0020_02_000003"


def moved(event_class: str, event: str, entity: str, machine: str, states: str, *, is_told: bool = False) -> Message:
    from_state, to_state = states.split()
    return Message("transition", event_class, event, entity, machine, from_state, to_state, is_told=is_told)


@pytest.mark.parametrize(
    ("logger", "message", "read"),
    [
        (  # Hadoop 3, and 2 from 2.7 on
            f"{RM}.rmapp.RMAppImpl",
            "application_1_0001 State change from NEW to NEW_SAVING on event = START",
            moved("RMAppEventType", "START", "application_1_0001", "RMApp", "NEW NEW_SAVING", is_told=True),
        ),
        (
            f"{RM}.rmapp.RMAppImpl",
            "application_1_0001 State change from NEW to NEW_SAVING on event=START",
            moved("RMAppEventType", "START", "application_1_0001", "RMApp", "NEW NEW_SAVING", is_told=True),
        ),
        (  # Hadoop 2 before that tells no event: ATTEMPT_REGISTERED is the only one
            f"{RM}.rmapp.RMAppImpl",
            "application_1_0001 State change from ACCEPTED to RUNNING",
            moved("RMAppEventType", "ATTEMPT_REGISTERED", "application_1_0001", "RMApp", "ACCEPTED RUNNING"),
        ),
        (  # here it is one of several
            f"{RM}.rmapp.RMAppImpl",
            "application_1_0001 State change from SUBMITTED to FINAL_SAVING",
            moved("RMAppEventType", "", "application_1_0001", "RMApp", "SUBMITTED FINAL_SAVING"),
        ),
        (
            f"{RM}.rmapp.attempt.RMAppAttemptImpl",
            "appattempt_1_0001_000001 State change from LAUNCHED to RUNNING on event = REGISTERED",
            moved(
                "RMAppAttemptEventType",
                "REGISTERED",
                "appattempt_1_0001_000001",
                "RMAppAttempt",
                "LAUNCHED RUNNING",
                is_told=True,
            ),
        ),
        (
            "RMContainerImpl",
            f"{CONTAINER} Container Transitioned from ACQUIRED to RUNNING",
            moved("RMContainerEventType", "LAUNCHED", CONTAINER, "RMContainer", "ACQUIRED RUNNING"),
        ),
        (
            f"{RM}.rmnode.RMNodeImpl",
            "node-7.example.org:45454 Node Transitioned from RUNNING to LOST",
            moved("RMNodeEventType", "EXPIRE", "node-7.example.org:45454", "RMNode", "RUNNING LOST"),
        ),
        (
            f"{RM}.rmnode.RMNodeImpl",
            "node-7.example.org:45454 Node Transitioned from NEW to RUNNING on event = STARTED",
            moved("RMNodeEventType", "STARTED", "node-7.example.org:45454", "RMNode", "NEW RUNNING", is_told=True),
        ),
        (  # without a space in all versions
            f"{MR}.JobImpl",
            "job_1445144423722_0020Job Transitioned from NEW to INITED",
            moved("JobEventType", "JOB_INIT", "job_1445144423722_0020", "MRJob", "NEW INITED"),
        ),
        (
            f"{MR}.TaskImpl",
            "task_1_0020_m_000000 Task Transitioned from NEW to SCHEDULED",
            moved("TaskEventType", "T_SCHEDULE", "task_1_0020_m_000000", "MRTask", "NEW SCHEDULED"),
        ),
        (
            f"{MR}.TaskAttemptImpl",
            "attempt_1_0020_m_000000_0 TaskAttempt Transitioned from RUNNING to SUCCESS_CONTAINER_CLEANUP",
            moved(
                "TaskAttemptEventType",
                "TA_DONE",
                "attempt_1_0020_m_000000_0",
                "MRTaskAttempt",
                "RUNNING SUCCESS_CONTAINER_CLEANUP",
            ),
        ),
        (
            f"{NM}.containermanager.application.ApplicationImpl",
            "Application application_1_0001 transitioned from NEW to INITING",
            moved("ApplicationEventType", "INIT_APPLICATION", "application_1_0001", "NMApplication", "NEW INITING"),
        ),
        (  # Hadoop 2 logs it by the interface
            f"{NM}.containermanager.container.Container",
            f"Container {EPOCH_CONTAINER} transitioned from LOCALIZING to LOCALIZED",
            moved("ContainerEventType", "RESOURCE_LOCALIZED", EPOCH_CONTAINER, "NMContainer", "LOCALIZING LOCALIZED"),
        ),
        (
            "container.ContainerImpl",
            f"Container {CONTAINER} transitioned from LOCALIZING to SCHEDULED",
            moved("ContainerEventType", "RESOURCE_LOCALIZED", CONTAINER, "NMContainer", "LOCALIZING SCHEDULED"),
        ),
        (
            f"{NM}.containermanager.localizer.LocalizedResource",
            "Resource hdfs://m:9000/a b/job.jar(->/tmp/nm/filecache/11/job.jar) transitioned from DOWNLOADING to "
            "LOCALIZED",
            moved(
                "ResourceEventType",
                "LOCALIZED",
                "hdfs://m:9000/a b/job.jar",
                "LocalizedResource",
                "DOWNLOADING LOCALIZED",
            ),
        ),
        (  # Hadoop 3, at debug
            f"{NM}.containermanager.localizer.LocalizedResource",
            "Resource hdfs://m:9000/job.jar(->/tmp/11/job.jar) size : 4711 transitioned from DOWNLOADING to LOCALIZED",
            moved(
                "ResourceEventType", "LOCALIZED", "hdfs://m:9000/job.jar", "LocalizedResource", "DOWNLOADING LOCALIZED"
            ),
        ),
        (  # a machine of somebody else, with the name of one of Hadoop's
            "org.apache.tez.dag.app.dag.impl.TaskImpl",
            "task_1_0001_1_00_000000 Task Transitioned from NEW to SCHEDULED",
            moved("TaskEventType", "", "task_1_0001_1_00_000000", "Task", "NEW SCHEDULED"),
        ),
        (
            "org.apache.tez.dag.app.rm.container.Container",
            f"Container {CONTAINER} transitioned from NEW to RUNNING",
            moved("ContainerEventType", "", CONTAINER, "Container", "NEW RUNNING"),
        ),
        (  # one event in Hadoop 3, another in Hadoop 2
            f"{MR}.TaskAttemptImpl",
            "attempt_1_0020_m_000000_0 TaskAttempt Transitioned from NEW to FAILED",
            moved("TaskAttemptEventType", "", "attempt_1_0020_m_000000_0", "MRTaskAttempt", "NEW FAILED"),
        ),
        (  # only releases before 2.3 have it
            f"{RM}.rmapp.attempt.RMAppAttemptImpl",
            "appattempt_1_0001_000001 State change from RUNNING to FINISHING",
            moved(
                "RMAppAttemptEventType", "UNREGISTERED", "appattempt_1_0001_000001", "RMAppAttempt", "RUNNING FINISHING"
            ),
        ),
    ],
)
def test_transitions_are_read_into_their_machines(logger: str, message: str, read: Message) -> None:
    assert read_message(logger, message) == read


def test_the_id_of_an_allocated_container_names_its_application_and_attempt() -> None:
    message = f"{EPOCH_CONTAINER} Container Transitioned from NEW to ALLOCATED"

    assert read_message(f"{RM}.rmcontainer.RMContainerImpl", message) == Message(
        "transition",
        "RMContainerEventType",
        "START",
        EPOCH_CONTAINER,
        "RMContainer",
        "NEW",
        "ALLOCATED",
        is_told=False,
        fields={"application": "application_1445144423722_0020", "attempt": "appattempt_1445144423722_0020_000002"},
    )


@pytest.mark.parametrize(
    ("logger", "message", "read"),
    [
        (
            DISPATCHER,
            "Registering class a.b.JobEventType for class a.b.MRAppMaster$JobEventDispatcher",
            Message(
                "registration",
                "AsyncDispatcher",
                "REGISTERED",
                "a.b.JobEventType",
                fields={"event_class": "a.b.JobEventType", "handler_class": "a.b.MRAppMaster$JobEventDispatcher"},
            ),
        ),
        (
            DISPATCHER,
            "Size of event-queue is 1000",
            Message(
                "queue_size",
                "AsyncDispatcher",
                "QUEUE_SIZE",
                "AsyncDispatcher",
                fields={"queue": "AsyncDispatcher", "size": 1000},
            ),
        ),
        (  # the scheduler's queue in Hadoop 2
            f"{RM}.ResourceManager",
            "Size of scheduler event-queue is 2000",
            Message(
                "queue_size", "ResourceManager", "QUEUE_SIZE", "scheduler", fields={"queue": "scheduler", "size": 2000}
            ),
        ),
        (  # and in Hadoop 3
            "org.apache.hadoop.yarn.event.EventDispatcher",
            "Size of SchedulerEventDispatcher event-queue is 3000",
            Message(
                "queue_size",
                "EventDispatcher",
                "QUEUE_SIZE",
                "SchedulerEventDispatcher",
                fields={"queue": "SchedulerEventDispatcher", "size": 3000},
            ),
        ),
        (
            DISPATCHER,
            "Very low remaining capacity in the event-queue: 999",
            Message(
                "queue_size",
                "AsyncDispatcher",
                "ROOM_LEFT",
                "AsyncDispatcher",
                fields={"queue": "AsyncDispatcher", "room_left": 999},
            ),
        ),
        (
            f"{RM}.ResourceManager$SchedulerEventDispatcher",
            "Very low remaining capacity on scheduler event queue: 7",
            Message(
                "queue_size",
                "SchedulerEventDispatcher",
                "ROOM_LEFT",
                "scheduler",
                fields={"queue": "scheduler", "room_left": 7},
            ),
        ),
        (  # Hadoop 3 forgets a space
            "org.apache.hadoop.yarn.event.EventDispatcher",
            "Very low remaining capacity on SchedulerEventDispatcherevent queue: 7",
            Message(
                "queue_size",
                "EventDispatcher",
                "ROOM_LEFT",
                "SchedulerEventDispatcher",
                fields={"queue": "SchedulerEventDispatcher", "room_left": 7},
            ),
        ),
        (
            DISPATCHER,
            "Event type: NODE_UPDATE, Event record counter: 4711",
            Message(
                "queue_size",
                "AsyncDispatcher",
                "QUEUED_EVENTS",
                "AsyncDispatcher",
                fields={"queue": "AsyncDispatcher", "event_type": "NODE_UPDATE", "size": 4711},
            ),
        ),
        (
            DISPATCHER,
            "Latest dispatch event type: NODE_UPDATE",
            Message("dispatch", "AsyncDispatcher", "DISPATCHED", fields={"event_type": "NODE_UPDATE"}),
        ),
        (
            "org.apache.hadoop.mapreduce.v2.app.commit.CommitterEventHandler",
            "Processing the event EventType: JOB_SETUP",
            Message("handling", "CommitterEventHandler", "JOB_SETUP"),
        ),
        (
            "org.apache.hadoop.mapreduce.v2.app.launcher.ContainerLauncherImpl",
            f"Processing the event EventType: CONTAINER_REMOTE_LAUNCH for container {CONTAINER} taskAttempt "
            "attempt_1_0020_m_000000_0",
            Message(
                "handling",
                "ContainerLauncherImpl",
                "CONTAINER_REMOTE_LAUNCH",
                "attempt_1_0020_m_000000_0",
                fields={"container": CONTAINER, "attempt": "attempt_1_0020_m_000000_0"},
            ),
        ),
    ],
)
def test_what_dispatchers_log_is_read(logger: str, message: str, read: Message) -> None:
    assert read_message(logger, message) == read


def test_an_audit_line_is_read_with_all_its_keys() -> None:
    message = (
        "USER=ann\tIP=10.0.0.1\tOPERATION=AM Allocated Container\tTARGET=SchedulerApp\tRESULT=SUCCESS\t"
        f"APPID=application_1445144423722_0020\tCONTAINERID={CONTAINER}\tRESOURCE=<memory:2048, vCores:1>\t"
        "CALLERCONTEXT=CLI=a\tQUEUENAME=root.a\tNEWKEY=x"
    )

    assert read_message(f"{RM}.RMAuditLogger", message) == Message(
        "audit",
        "RMAuditLogger",
        "AM Allocated Container",
        CONTAINER,
        fields={
            "USER": "ann",
            "IP": "10.0.0.1",
            "OPERATION": "AM Allocated Container",
            "TARGET": "SchedulerApp",
            "RESULT": "SUCCESS",
            "APPID": "application_1445144423722_0020",
            "CONTAINERID": CONTAINER,
            "RESOURCE": "<memory:2048, vCores:1>",
            "CALLERCONTEXT": "CLI=a",
            "QUEUENAME": "root.a",
            "NEWKEY": "x",
        },
    )


def test_what_was_not_granted_is_an_error() -> None:
    message = (
        "USER=bob\tIP=10.0.0.2\tOPERATION=Kill Application Request\tTARGET=ClientRMService\tRESULT=FAILURE\t"
        "DESCRIPTION=Unauthorized user\tPERMISSIONS=ACL of ann\tAPPID=application_1_0001"
    )

    read = read_message(f"{RM}.RMAuditLogger", message)

    assert read is not None
    assert (read.entity, read.error) == ("application_1_0001", "Unauthorized user")
    assert read.fields is not None
    assert read.fields["PERMISSIONS"] == "ACL of ann"


def test_an_audit_line_whose_tabs_have_become_spaces_is_read_too() -> None:
    message = (
        "USER=root IP=10.0.0.1      OPERATION=Start Container Request       TARGET=ContainerManageImpl      "
        f"RESULT=SUCCESS  APPID=application_1_0001    CONTAINERID={CONTAINER}"
    )

    read = read_message(f"{NM}.NMAuditLogger", message)

    assert read is not None
    assert (read.kind, read.event_class, read.event_type) == ("audit", "NMAuditLogger", "Start Container Request")
    assert read.fields == {
        "USER": "root",
        "IP": "10.0.0.1",
        "OPERATION": "Start Container Request",
        "TARGET": "ContainerManageImpl",
        "RESULT": "SUCCESS",
        "APPID": "application_1_0001",
        "CONTAINERID": CONTAINER,
    }


@pytest.mark.parametrize(
    ("logger", "message"),
    [
        ("a.B", ""),
        ("", "x State change from A to B"),
        (f"{RM}.rmapp.RMAppImpl", "Storing application with id application_1_0001"),
        (f"{RM}.rmapp.RMAppImpl", "State change from NEW to NEW_SAVING"),
        (f"{RM}.rmapp.RMAppImpl", "application_1_0001 State change from NEW to NEW_SAVING, at last"),
        (f"{RM}.ResourceManager", "Transitioned to active state"),
        (f"{RM}.ResourceManager", "The cluster transitioned from old to new machines"),
        (f"{RM}.RMAuditLogger", "a message without keys"),
        (DISPATCHER, "Size of event-queue is large"),
        (DISPATCHER, "Size of event-queue is 99999999999999999999999"),
        (DISPATCHER, "Registering class a.B for nobody"),
    ],
)
def test_other_messages_are_of_no_kind(logger: str, message: str) -> None:
    assert read_message(logger, message) is None
