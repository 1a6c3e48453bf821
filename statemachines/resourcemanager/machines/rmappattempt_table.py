"""The states of an attempt and what leads from one to another, row for row those of YARN's RMAppAttemptImpl."""

from __future__ import annotations

from statemachines.factory import StateMachineFactory
from statemachines.resourcemanager.entity import finish_saving
from statemachines.resourcemanager.events.rmappattempt import RMAppAttemptEventType as E
from statemachines.resourcemanager.machines import rmappattempt_hooks as hooks
from statemachines.resourcemanager.machines.rmappattempt import RMAppAttempt
from statemachines.resourcemanager.machines.states import RMAppAttemptState
from statemachines.resourcemanager.machines.states import RMAppAttemptState as S


def _build() -> StateMachineFactory[RMAppAttemptState, RMAppAttempt]:
    factory: StateMachineFactory[RMAppAttemptState, RMAppAttempt] = StateMachineFactory(S.NEW, "RMAppAttempt")
    return (
        factory.add_transition(S.NEW, S.SUBMITTED, E.START, hooks.start)
        .add_transition(S.NEW, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.NEW, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.NEW, S.FINAL_SAVING, E.REGISTERED, hooks.save_registered_too_early)
        .add_transition(S.NEW, {S.FINISHED, S.KILLED, S.FAILED, S.LAUNCHED}, E.RECOVER, hooks.recover)
        .add_transition(S.SUBMITTED, {S.LAUNCHED_UNMANAGED_SAVING, S.SCHEDULED}, E.ATTEMPT_ADDED, hooks.ask_for_master)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.SUBMITTED, S.FINAL_SAVING, E.REGISTERED, hooks.save_registered_too_early)
        .add_transition(S.SCHEDULED, {S.ALLOCATED_SAVING, S.SCHEDULED}, E.CONTAINER_ALLOCATED, hooks.fetch_master)
        .add_transition(S.SCHEDULED, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.SCHEDULED, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.SCHEDULED, S.FINAL_SAVING, E.CONTAINER_FINISHED, hooks.save_crash_early)
        .add_transition(S.ALLOCATED_SAVING, S.ALLOCATED, E.ATTEMPT_NEW_SAVED, hooks.launch)
        .add_transition(S.ALLOCATED_SAVING, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.ALLOCATED_SAVING, S.FINAL_SAVING, E.CONTAINER_FINISHED, hooks.save_crash_early)
        .add_transition(S.ALLOCATED_SAVING, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.LAUNCHED_UNMANAGED_SAVING, S.LAUNCHED, E.ATTEMPT_NEW_SAVED, hooks.launched)
        .add_transition(S.LAUNCHED_UNMANAGED_SAVING, S.FINAL_SAVING, E.REGISTERED, hooks.save_registered_too_early)
        .add_transition(S.LAUNCHED_UNMANAGED_SAVING, S.FINAL_SAVING, E.KILL, hooks.save_killed)
        .add_transition(S.LAUNCHED_UNMANAGED_SAVING, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.ALLOCATED, S.LAUNCHED, E.LAUNCHED, hooks.launched)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.LAUNCH_FAILED, hooks.save_failed)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.KILL, hooks.save_killed_allocated)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.FAIL, hooks.save_failed)
        .add_transition(S.ALLOCATED, S.RUNNING, E.REGISTERED, hooks.launched_and_registered)
        .add_transition(S.ALLOCATED, S.FINAL_SAVING, E.CONTAINER_FINISHED, hooks.save_crash_early)
        .add_transition(S.LAUNCHED, S.RUNNING, E.REGISTERED, hooks.registered)
        .add_transition(
            S.LAUNCHED, {S.LAUNCHED, S.FINAL_SAVING}, E.CONTAINER_FINISHED, hooks.container_finished_launched
        )
        .add_transition(S.LAUNCHED, S.FINAL_SAVING, E.EXPIRE, hooks.save_failed_live)
        .add_transition(S.LAUNCHED, S.FINAL_SAVING, E.KILL, hooks.save_killed_live)
        .add_transition(S.LAUNCHED, S.FINAL_SAVING, E.FAIL, hooks.save_failed_live)
        .add_transition(S.RUNNING, S.RUNNING, (E.LAUNCHED, E.REGISTERED))
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.UNREGISTERED, hooks.save_unregistered)
        .add_transition(S.RUNNING, S.RUNNING, E.STATUS_UPDATE, hooks.update_status)
        .add_transition(S.RUNNING, S.RUNNING, E.CONTAINER_ALLOCATED)
        .add_transition(S.RUNNING, {S.RUNNING, S.FINAL_SAVING}, E.CONTAINER_FINISHED, hooks.container_finished_running)
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.EXPIRE, hooks.save_failed_live)
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.KILL, hooks.save_killed_live)
        .add_transition(S.RUNNING, S.FINAL_SAVING, E.FAIL, hooks.save_failed_live)
        .add_transition(
            S.FINAL_SAVING, {S.FINISHING, S.FAILED, S.KILLED, S.FINISHED}, E.ATTEMPT_UPDATE_SAVED, finish_saving
        )
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.CONTAINER_FINISHED, hooks.container_finished_saving)
        .add_transition(S.FINAL_SAVING, S.FINAL_SAVING, E.EXPIRE, hooks.finish_instead_of_finishing)
        .add_transition(
            S.FINAL_SAVING,
            S.FINAL_SAVING,
            (
                E.UNREGISTERED,
                E.STATUS_UPDATE,
                E.LAUNCHED,
                E.LAUNCH_FAILED,
                E.CONTAINER_ALLOCATED,
                E.ATTEMPT_NEW_SAVED,
                E.KILL,
                E.FAIL,
                E.ATTEMPT_ADDED,
            ),
        )
        .add_transition(S.FAILED, S.FAILED, E.CONTAINER_FINISHED, hooks.note_finished_container_late)
        .add_transition(
            S.FAILED,
            S.FAILED,
            (
                E.LAUNCHED,
                E.LAUNCH_FAILED,
                E.EXPIRE,
                E.KILL,
                E.FAIL,
                E.REGISTERED,
                E.UNREGISTERED,
                E.STATUS_UPDATE,
                E.CONTAINER_ALLOCATED,
            ),
        )
        .add_transition(
            S.FINISHING, {S.FINISHING, S.FINISHED}, E.CONTAINER_FINISHED, hooks.container_finished_finishing
        )
        .add_transition(S.FINISHING, S.FINISHED, E.EXPIRE, hooks.finish)
        .add_transition(
            S.FINISHING,
            S.FINISHING,
            (E.LAUNCHED, E.UNREGISTERED, E.STATUS_UPDATE, E.CONTAINER_ALLOCATED, E.KILL, E.FAIL),
        )
        .add_transition(
            S.FINISHED,
            S.FINISHED,
            (E.LAUNCHED, E.EXPIRE, E.UNREGISTERED, E.CONTAINER_ALLOCATED, E.KILL, E.FAIL),
        )
        .add_transition(S.FINISHED, S.FINISHED, E.CONTAINER_FINISHED, hooks.note_finished_container_late)
        .add_transition(
            S.KILLED,
            S.KILLED,
            (
                E.ATTEMPT_ADDED,
                E.LAUNCHED,
                E.LAUNCH_FAILED,
                E.EXPIRE,
                E.REGISTERED,
                E.CONTAINER_ALLOCATED,
                E.UNREGISTERED,
                E.KILL,
                E.FAIL,
                E.STATUS_UPDATE,
            ),
        )
        .add_transition(S.KILLED, S.KILLED, E.CONTAINER_FINISHED, hooks.note_finished_container_late)
        .install_topology()
    )


FACTORY: StateMachineFactory[RMAppAttemptState, RMAppAttempt] = _build()
