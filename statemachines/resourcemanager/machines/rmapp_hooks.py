"""What an application does on its events: the hooks of RMApp's table, named after what they do."""

from __future__ import annotations

from statemachines.resourcemanager.entity import Pending, finish_saving
from statemachines.resourcemanager.events.rmapp import (
    RMAppEvent,
    RMAppFailedAttemptEvent,
    RMAppNodeUpdateEvent,
    RMAppRecoverEvent,
)
from statemachines.resourcemanager.events.rmnode import RMNodeEvent, RMNodeEventType
from statemachines.resourcemanager.events.scheduler import AppAddedSchedulerEvent
from statemachines.resourcemanager.events.services import RMStateStoreEventType
from statemachines.resourcemanager.machines.rmapp import RMApp
from statemachines.resourcemanager.machines.states import RMAppState as S

# -- the end ----------------------------------------------------------------------------------------------------------


def _finish(app: RMApp, event: RMAppEvent) -> None:
    app.finish()


def end(app: RMApp, event: RMAppEvent) -> None:
    """At once: nothing was stored that an end could contradict, or the end is stored already."""
    app.note(event.diagnostics)
    app.finish()


def save_finished(app: RMApp, event: RMAppEvent) -> None:
    app.save_final(S.FINISHED, _finish, event)


def save_failed(app: RMApp, event: RMAppEvent) -> None:
    app.save_final(S.FAILED, _finish, event)


def save_killed(app: RMApp, event: RMAppEvent) -> None:
    app.save_final(S.KILLED, _finish, event)


def save_unregistered(app: RMApp, event: RMAppEvent) -> None:
    """Its time of end is that of this event."""
    app.save_final(S.FINISHING, None, event)


def final_state_saved(app: RMApp, event: RMAppEvent) -> S:
    app.context.app_lifetime_monitor.unregister(app.entity)
    state: S = finish_saving(app, event)
    return state


def finished_before_stored(app: RMApp, event: RMAppEvent) -> None:
    """The attempt ended before the store answered: FINISHING would wait for an end that has been."""
    pending = app.pending
    assert pending is not None  # it is FINAL_SAVING
    if pending.target is S.FINISHING:
        app.pending = Pending(S.FINISHED, end, event)


# -- from submission to launch ----------------------------------------------------------------------------------------


def store_new(app: RMApp, event: RMAppEvent) -> None:
    lifetime_s = app.context.scheduler.lifetime_s(app.submission)
    if lifetime_s != app.submission.lifetime_s:
        app.submission = app.submission._replace(lifetime_s=lifetime_s)
    app.register_lifetime()
    app.store(RMStateStoreEventType.STORE_APP)


def recover(app: RMApp, event: RMAppRecoverEvent) -> S:
    return app.recover(event.state)


def add_to_scheduler(app: RMApp, event: RMAppEvent) -> None:
    app.context.post(AppAddedSchedulerEvent(app.entity))
    app.tell_client()


def start_first_attempt(app: RMApp, event: RMAppEvent) -> None:
    app.start_attempt()


def note_launch(app: RMApp, event: RMAppEvent) -> None:
    if app.launch_ms is None:
        app.launch_ms = app.context.now_ms()
        app.store(RMStateStoreEventType.UPDATE_APP, notify=False)


def kill_attempt(app: RMApp, event: RMAppEvent) -> None:
    app.kill_attempt(event.diagnostics)


# -- an attempt failed ------------------------------------------------------------------------------------------------


def retry_or_fail(app: RMApp, event: RMAppFailedAttemptEvent) -> S:
    app.drop_old_attempts()
    if app.can_retry():
        app.start_attempt(event.keep_containers)
        return S.ACCEPTED
    return _fail(app, event)


def kill_or_fail(app: RMApp, event: RMAppFailedAttemptEvent) -> S:
    """An attempt that fails while being killed: where there would be another one, the kill wins."""
    app.drop_old_attempts()
    if not app.can_retry():
        return _fail(app, event)
    save_killed(app, event)
    return S.FINAL_SAVING


def _fail(app: RMApp, event: RMAppEvent) -> S:
    if app.submission.unmanaged_am:
        app.note(f"{app.entity} failed; its master is not the cluster's, which does not start it again")
    else:
        app.note(f"{app.entity} failed {app.failures()} times, of {app.max_attempts} allowed")
    save_failed(app, event)
    return S.FINAL_SAVING


# -- nodes ------------------------------------------------------------------------------------------------------------


def note_node_update(app: RMApp, event: RMAppNodeUpdateEvent) -> None:
    app.node_updates.append((event.node, event.update))


def note_node_used(app: RMApp, event: RMAppEvent) -> None:
    app.nodes.add(event.node)


def clean_up_node(app: RMApp, event: RMAppEvent) -> None:
    app.context.post(RMNodeEvent(RMNodeEventType.CLEANUP_APP, event.node, app.entity))
