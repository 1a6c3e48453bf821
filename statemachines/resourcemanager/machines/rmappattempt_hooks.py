"""What an attempt does on its events: the hooks of RMAppAttempt's table, named after what they do.

CONTAINER_ALLOCATED, CONTAINER_FINISHED and STATUS_UPDATE come millions of times: their hooks are a few attribute
operations each, unless they are about the master's own container.
"""

from __future__ import annotations

from statemachines.resourcemanager.entity import Pending
from statemachines.resourcemanager.events.exit_status import (
    EXIT_ABORTED,
    EXIT_KILLED_AFTER_APP_COMPLETION,
    EXIT_KILLED_BY_RESOURCEMANAGER,
    EXIT_PREEMPTED,
    EXIT_SUCCESS,
)
from statemachines.resourcemanager.events.rmapp import RMAppEventType
from statemachines.resourcemanager.events.rmappattempt import (
    RMAppAttemptEvent,
    RMAppAttemptEventType,
    RMAppAttemptRecoverEvent,
    RMAppAttemptRegistrationEvent,
    RMAppAttemptStatusUpdateEvent,
    RMAppAttemptUnregistrationEvent,
    RMAppStartAttemptEvent,
)
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import AppAttemptAddedSchedulerEvent
from statemachines.resourcemanager.events.services import AMLauncherEventType, RMStateStoreEventType
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt
from statemachines.resourcemanager.machines.rmnode import RMNode
from statemachines.resourcemanager.machines.states import RMAppAttemptState as S
from statemachines.resourcemanager.machines.states import RMAppState
from statemachines.resourcemanager.services.master_session import MasterSession
from statemachines.resourcemanager.submission import ApplicationSubmission

_ALLOCATION_RETRY_MS = 500
_BLACKLIST_SHARE = 0.8  # of the nodes that could take the master; with more on it, the blacklist does not count
_NOT_THE_NODES_FAULT = frozenset(
    {
        EXIT_SUCCESS,
        EXIT_ABORTED,
        EXIT_PREEMPTED,
        EXIT_KILLED_BY_RESOURCEMANAGER,
        EXIT_KILLED_AFTER_APP_COMPLETION,
    }
)
_RUNNING = S.RUNNING  # looking up a member of an Enum is a call
_ENDING = frozenset({RMAppState.KILLING, RMAppState.FINAL_SAVING})


# -- put off until the final state is stored --------------------------------------------------------------------------


def finish(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.leave_live(S.FINISHED)


def _leave_failed(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.leave(S.FAILED)


def _leave_killed(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.leave(S.KILLED)


def _leave_killed_allocated(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.leave(S.KILLED)
    attempt.tell_launcher(AMLauncherEventType.CLEANUP)


def _leave_failed_live(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.leave_live(S.FAILED)


def _leave_killed_live(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.leave_live(S.KILLED)


def _crash_early(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.context.am_liveliness_monitor.unregister(attempt.entity)
    attempt.leave(S.FAILED)


def _await_masters_end(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.context.am_liveliness_monitor.unregister(attempt.entity)
    attempt.context.am_finishing_monitor.register(attempt.entity)


# -- the end ----------------------------------------------------------------------------------------------------------


def save_killed(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.save_final(S.KILLED, _leave_killed, event)


def save_killed_allocated(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """The launcher may be at it."""
    attempt.save_final(S.KILLED, _leave_killed_allocated, event)


def save_killed_live(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.save_final(S.KILLED, _leave_killed_live, event)


def save_failed(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.save_final(S.FAILED, _leave_failed, event)


def save_failed_live(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """EXPIRE; and FAIL, which in YARN leaves the monitors and the master's container as they are.

    There the scheduler ends that container, unless containers are kept: then a master would go on that has no attempt.
    """
    attempt.save_final(S.FAILED, _leave_failed_live, event)


def save_registered_too_early(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.diagnostics.append("the master registered before it was launched")
    save_failed(attempt, event)


def save_crash_early(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    _take_status(attempt, event)
    attempt.save_final(S.FAILED, _crash_early, event)


def _take_status(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    status = event.status
    assert status is not None  # every CONTAINER_FINISHED has one
    attempt.exit_status = status.exit_status
    reason = f": {status.diagnostics}" if status.diagnostics else ""
    attempt.diagnostics.append(f"the master's container {status.container} exited with {status.exit_status}{reason}")


def save_unregistered(attempt: RMAppAttempt, event: RMAppAttemptUnregistrationEvent) -> None:
    """A managed master waits in FINISHING for the end of its container; that of another has none."""
    attempt.final_status = event.final_status
    target, then = (S.FINISHED, finish) if attempt.app.submission.unmanaged_am else (S.FINISHING, _await_masters_end)
    attempt.save_final(target, then, event, tracking_url=event.tracking_url)
    attempt.tell_app(RMAppEventType.ATTEMPT_UNREGISTERED, event.diagnostics)


def finish_instead_of_finishing(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """It unregistered, and ended before the store answered: FINISHING would wait for an end that has been."""
    pending = attempt.pending
    assert pending is not None  # it is FINAL_SAVING
    if pending.target is S.FINISHING:
        attempt.pending = Pending(S.FINISHED, finish, event)


# -- from start to launch ---------------------------------------------------------------------------------------------


def start(attempt: RMAppAttempt, event: RMAppStartAttemptEvent) -> None:
    attempt.context.master_sessions[attempt.entity] = MasterSession()
    attempt.context.post(AppAttemptAddedSchedulerEvent(attempt.entity, event.transfer_state))


def recover(attempt: RMAppAttempt, event: RMAppAttemptRecoverEvent) -> S:
    attempt.restore(event.state)
    context, app = attempt.context, attempt.app
    added = AppAttemptAddedSchedulerEvent(attempt.entity, is_recovering=True)
    if event.state.state is not None:
        ended = S[event.state.state]
        if attempt is app.current_attempt and app.recovered_state is None:
            # The application has not heard of this end, and the scheduler has containers to end, or to keep.
            context.scheduler.handle(added)
            attempt.leave(ended)
        return ended
    if app.recovered_state is not None:
        return S[app.recovered_state.name]
    if context.config.work_preserving_recovery:
        context.master_sessions[attempt.entity] = MasterSession()
        context.scheduler.handle(added)
    launched(attempt, event)
    return S.LAUNCHED


def ask_for_master(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> S:
    context, submission = attempt.context, attempt.app.submission
    if submission.unmanaged_am:
        attempt.store(RMStateStoreEventType.STORE_APP_ATTEMPT)
        return S.LAUNCHED_UNMANAGED_SAVING
    if context.scheduler.queue_of(attempt.app.entity) is None:
        # YARN returns FAILED, which its table does not declare, and rejects an application that was accepted, which
        # that one's table does not take. Failing by an event leads to the same end within both tables.
        lost = f"the queue {submission.queue} of {attempt.app.entity} is gone"
        context.post(RMAppAttemptEvent(RMAppAttemptEventType.FAIL, attempt.entity, lost))
        return S.SCHEDULED
    hosts = sorted(attempt.blacklist)
    additions, removals = (hosts, ()) if _blacklist_counts(attempt) else ((), hosts)
    context.scheduler.allocate(attempt.entity, (attempt.master_request(),), (), additions, removals)
    return S.SCHEDULED


def _blacklist_counts(attempt: RMAppAttempt) -> bool:
    """Whether enough nodes are left: a master that fails everywhere fails by itself, and has to run somewhere."""
    blacklist, submission = attempt.blacklist, attempt.app.submission
    if not blacklist:
        return True
    able = [node.spec.host for node in attempt.context.nodes.values() if _could_hold(node, submission)]
    return sum(host in blacklist for host in able) < _BLACKLIST_SHARE * len(able)


def _could_hold(node: RMNode, submission: ApplicationSubmission) -> bool:
    capacity, resource = node.capacity, submission.am_resource
    return (
        resource.memory_mb <= capacity.memory_mb
        and resource.vcores_milli <= capacity.vcores_milli
        and resource.gpus <= capacity.gpus
        and (not submission.gpu_models or node.spec.gpu_model in submission.gpu_models)
    )


def fetch_master(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> S:
    context = attempt.context
    allocated = context.scheduler.pull_newly_allocated(attempt.entity)
    if not allocated:
        context.timers.register_timer(context.now_ms() + _ALLOCATION_RETRY_MS, lambda _: _fetch_again(attempt))
        return S.SCHEDULED
    container = allocated[0]
    if container.node not in context.nodes:
        return S.SCHEDULED  # the node is lost, and the container's end is on its way
    attempt.set_master(container)
    if attempt.blacklist:  # it was for the master alone: what the master asks for is its own affair
        context.scheduler.allocate(attempt.entity, blacklist_removals=sorted(attempt.blacklist))
    attempt.store(RMStateStoreEventType.STORE_APP_ATTEMPT)
    return S.ALLOCATED_SAVING


def _fetch_again(attempt: RMAppAttempt) -> None:
    if attempt.state is S.SCHEDULED:
        attempt.context.post(RMAppAttemptEvent(RMAppAttemptEventType.CONTAINER_ALLOCATED, attempt.entity))


def launch(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    attempt.tell_launcher(AMLauncherEventType.LAUNCH)


def launched(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    if attempt.app.state not in _ENDING:  # its table has no row for this there, and the time is of no use any more
        attempt.tell_app(RMAppEventType.ATTEMPT_LAUNCHED)
    attempt.context.am_liveliness_monitor.register(attempt.entity)


def registered(attempt: RMAppAttempt, event: RMAppAttemptRegistrationEvent) -> None:
    attempt.host, attempt.rpc_port, attempt.tracking_url = event.host, event.rpc_port, event.tracking_url
    attempt.tell_app(RMAppEventType.ATTEMPT_REGISTERED)


def launched_and_registered(attempt: RMAppAttempt, event: RMAppAttemptRegistrationEvent) -> None:
    """The master was faster than the launcher."""
    launched(attempt, event)
    registered(attempt, event)


# -- while the master lives -------------------------------------------------------------------------------------------


def update_status(attempt: RMAppAttempt, event: RMAppAttemptStatusUpdateEvent) -> None:
    attempt.progress = event.progress
    attempt.context.am_liveliness_monitor.received_ping(attempt.entity)
    url = event.tracking_url
    if url is not None and url != attempt.tracking_url:
        attempt.tracking_url = url
        # YARN's is answered, by an event for which RUNNING has no row.
        attempt.store(RMStateStoreEventType.UPDATE_APP_ATTEMPT, notify=False)


def container_finished_launched(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> S:
    if not attempt.is_masters(event):
        _note_finished_container(attempt, event)
        return S.LAUNCHED
    _masters_container_done(attempt, event)
    save_crash_early(attempt, event)
    return S.FINAL_SAVING


def container_finished_running(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> S:
    """The hook that runs most often: for each container of a task, so without calls for it."""
    status = event.status
    assert status is not None  # every CONTAINER_FINISHED has one
    if status.container != attempt.master_container:
        attempt.finished_containers.append((event.node, status))
        return _RUNNING
    _masters_container_done(attempt, event)
    _take_status(attempt, event)
    attempt.save_final(S.FAILED, _leave_failed_live, event)
    return S.FINAL_SAVING


def container_finished_saving(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    if not attempt.is_masters(event):
        _note_finished_container(attempt, event)
        return
    _masters_container_done(attempt, event)
    finish_instead_of_finishing(attempt, event)


def container_finished_finishing(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> S:
    if not attempt.is_masters(event):
        _note_finished_container(attempt, event)
        return S.FINISHING
    attempt.leave_live(S.FINISHED)
    _masters_container_done(attempt, event)
    return S.FINISHED


def _note_finished_container(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    assert event.status is not None
    attempt.finished_containers.append((event.node, event.status))


def note_finished_container_late(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """For the master of the next attempt, if there is one by now."""
    _note_finished_container(attempt.app.attempts[-1], event)


def _masters_container_done(attempt: RMAppAttempt, event: RMAppAttemptEvent) -> None:
    """Nodes may forget it, and those containers that nobody will fetch any more."""
    status = event.status
    assert status is not None
    if status.exit_status not in _NOT_THE_NODES_FAULT:
        attempt.blacklist.add(event.node.rpartition(":")[0])
    forgotten = {event.node: [status.container]}
    if not attempt.app.submission.keep_containers_across_attempts:
        for node, other in attempt.finished_containers:
            forgotten.setdefault(node, []).append(other.container)
        attempt.finished_containers = []
    for node, containers in forgotten.items():
        attempt.context.post(RMNodeEvent(RMNodeEventType.FINISHED_CONTAINERS_PULLED_BY_AM, node, tuple(containers)))
