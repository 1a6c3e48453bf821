"""Courses that are timed to bring a machine what hardly ever comes by chance, and what no live cluster can bring it."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from statemachines.resourcemanager import Resource

from .cluster import Settings, Step
from .daemons import Plan, Task
from .scripts import Submit, To

Pair = tuple[str, str, str]
"""Machine, state and event."""


def tasks(*sizes: int, ms: int) -> tuple[Task, ...]:
    return tuple(Task(Resource(size, size), ms) for size in sizes)


ONE = tasks(1, ms=500)
PLANS = {
    "endless": Plan(end="stay"),
    "slow": Plan(register_ms=None, end="stay"),  # it registers when it is told to
    "early": Plan(register_ms=0),
    "silent": Plan(register_ms=None),  # launched at 300, when the first node reports, it expires at 3300
    "falls silent": Plan(end="silent"),
    "lingering": Plan(end="linger", register_ms=None),
    "nowhere": Plan(queue="nowhere"),
    "unmanaged": Plan(end="stay", register_ms=None, unmanaged=True),
    "keeping unmanaged": Plan(end="stay", register_ms=None, unmanaged=True, keeps=True),
    "unmanaged with a task": Plan(tasks=ONE, register_ms=None, unmanaged=True),
    "with a task": Plan(tasks=ONE, register_ms=None),
    "with a long task": Plan(tasks=tasks(1, ms=5000), work_ms=900),
    "forgetful": Plan(tasks=ONE, forgets=True),
    "working": Plan(tasks=tasks(1, ms=5000), end="stay"),
    "once": Plan(tasks=tasks(1, ms=5000), end="stay", max_attempts=1),
    # It fills one node after the other. The next application reserves the last of them, which is free first.
    "large": Plan(tasks=(*tasks(6, ms=3500), *tasks(6, ms=1500), *tasks(6, ms=3500)), end="stay"),
    "waiting": Plan(queue="d", tasks=tasks(7, ms=1500), end="stay"),
    "also waiting": Plan(queue="d", tasks=tasks(7, ms=1500), end="stay", user="bob"),
    # A node leaves, and queue a has more than its guarantee, of which queue d gets nothing.
    "greedy": Plan(tasks=tasks(*[3] * 6, ms=9000), end="stay"),
    "other": Plan(queue="c", tasks=tasks(3, ms=9000), end="stay"),
    "starved": Plan(queue="d", tasks=tasks(4, ms=500), master=Resource(2, 2)),
}


class Directed(NamedTuple):
    """A row: `[LATE] TIME WHAT, WHAT on EVENT | ... -> what it brings`.

    A step names a plan, which is submitted, or what happens, after the next event if one is named. LATE: by how many
    events, or ms, the store or the scheduler is late; the course is taken with each number.
    """

    pairs: str
    steps: list[Step]
    settings: tuple[Settings, ...]


def pairs(text: str) -> set[Pair]:
    """Slashes part several states or events."""
    parts = ([words.split("/") for words in each.split()] for each in text.split(", "))
    return {(machine, *both) for (machine,), *rest in parts for both in itertools.product(*rest)}  # type: ignore[misc]


def steps_of(text: str) -> list[Step]:
    time, _, rest = text.partition(" ")
    at_ms, whats = (int(time), rest) if time.isdigit() else (0, text)
    if whats in PLANS:
        return [Step(at_ms, Submit(PLANS[whats]))]
    whats, _, event = whats.partition(" on ")
    of_all = whats.startswith("all: ")
    found = []
    for what in whats.removeprefix("all: ").split(", "):
        name, _, which = what.partition(" #")
        found += [To(name, number) for number in (range(3) if of_all else [int(which or 0)])]
    return [Step(at_ms, what, event or None) for what in found]


def settings_of(late: str) -> tuple[Settings, ...]:
    match late.split():
        case []:
            return (Settings(),)
        case ["preempting"]:
            return (Settings(preemption=True),)
        case ["store", ms, "ms"]:
            return (Settings(store_ms=int(ms)),)
        case [who, "1-7"]:
            return tuple(Settings(**{f"{who}_lag": lag}) for lag in range(1, 8))  # type: ignore[arg-type]
        case [who, *lags]:
            return tuple(Settings(**{f"{who}_lag": int(lag)}) for lag in lags)  # type: ignore[arg-type]
    raise AssertionError(late)


def directed(row: str) -> Directed:
    course, _, brings = row.partition(" -> ")
    late, _, script = course.rpartition("] ")
    steps = [step for part in script.split(" | ") for step in steps_of(part)]
    steps.append(Step(5000, To("report")))  # with time for what follows: after its last step all is repaired
    return Directed(brings, steps, settings_of(late.removeprefix("[")))


def rows(text: str) -> list[str]:
    """Indented lines go on with the one before."""
    return text.strip().replace("\n    ", " ").split("\n")


ROWS = """
[store 1] once | 1500 all: register again on UPDATE_APP | 1500 crash -> RMApp FAILED APP_RUNNING_ON_NODE
working | 1500 finish | 1600 all: register again on FINISHED | 1600 exit -> RMApp FINISHED APP_RUNNING_ON_NODE
once | 1500 kill on UPDATE_APP written | 1500 crash -> RMApp FAILED KILL, RMAppAttempt RUNNING CONTAINER_FINISHED
endless | 1500 kill on UPDATE_APP written | 1500 kill -> RMApp KILLED KILL
endless | 1500 kill on UPDATE_APP written | 1500 finish -> RMApp FINISHING KILL
[store 1-7] unmanaged | 1500 register | 1600 kill on UPDATE_APP written | 1600 finish
    -> RMApp FINISHED KILL, RMApp FINAL_SAVING ATTEMPT_FINISHED
0 kill on APP_NEW_SAVED | endless -> RMApp SUBMITTED KILL, RMApp FINAL_SAVING APP_ACCEPTED
0 kill on APP_NEW_SAVED | nowhere -> RMApp FINAL_SAVING APP_REJECTED
[scheduler 30] 0 kill on APP_NEW_SAVED | endless -> RMApp KILLED APP_ACCEPTED
[scheduler 30] 0 kill on APP_NEW_SAVED | nowhere -> RMApp KILLED APP_REJECTED
[store 30] 0 kill on STORE_APP | endless -> RMApp NEW_SAVING KILL, RMApp FINAL_SAVING APP_NEW_SAVED
nowhere -> RMApp SUBMITTED APP_REJECTED
[store 100 ms] working | 1500 finish | 1550 all: register again | 1550 kill
    -> RMApp FINAL_SAVING KILL/APP_RUNNING_ON_NODE
[store 1] working | 1500 finish | 1500 all: register again on APP_UPDATE_SAVED -> RMApp FINISHING APP_RUNNING_ON_NODE
[store 1] working | 1500 kill | 1500 all: register again on UPDATE_APP -> RMApp KILLED APP_RUNNING_ON_NODE
0 the store takes no more applications | endless -> RMApp NEW_SAVING APP_SAVE_FAILED
[store 30] 0 the store takes no more applications | 0 kill on STORE_APP | endless -> RMApp FINAL_SAVING APP_SAVE_FAILED
endless | 1500 restart on UPDATE_APP_ATTEMPT | 1500 finish -> RMApp ACCEPTED ATTEMPT_FINISHED
endless | 1500 restart on UPDATE_APP_ATTEMPT | 1500 kill -> RMApp ACCEPTED ATTEMPT_KILLED
endless | 1500 restart without queue a on UPDATE_APP_ATTEMPT | 1500 finish
    -> RMApp KILLING ATTEMPT_FINISHED, RMAppAttempt FINISHED KILL
endless | 1500 restart without queue a on UPDATE_APP_ATTEMPT | 1500 kill
    -> RMApp KILLING ATTEMPT_KILLED, RMAppAttempt KILLED KILL
endless | 1500 restart without queue a -> RMApp KILLING ATTEMPT_LAUNCHED, RMAppAttempt LAUNCHED KILL
slow | 1500 register, kill -> RMApp KILLING ATTEMPT_REGISTERED
endless | 1500 finish, kill -> RMApp KILLING ATTEMPT_UNREGISTERED, RMAppAttempt FINAL_SAVING KILL
endless | 1500 kill, kill -> RMApp KILLING KILL
working | 1500 all: register again | 1500 kill -> RMApp KILLING APP_RUNNING_ON_NODE
endless | 1500 kill on UPDATE_APP_ATTEMPT written | 1500 fail the attempt
    -> RMApp KILLING ATTEMPT_FAILED, RMAppAttempt FAILED KILL
[scheduler 1-7] 0 kill on APP_ATTEMPT_ADDED | endless
    -> RMAppAttempt SUBMITTED KILL, RMAppAttempt FINAL_SAVING ATTEMPT_ADDED
[scheduler 30] 0 kill on APP_ATTEMPT_ADDED | endless -> RMAppAttempt KILLED ATTEMPT_ADDED
[scheduler 30] 0 fail the attempt on APP_ATTEMPT_ADDED | endless
    -> RMAppAttempt SUBMITTED FAIL, RMAppAttempt FAILED ATTEMPT_ADDED
[scheduler 30] 0 register on APP_ATTEMPT_ADDED | unmanaged -> RMAppAttempt SUBMITTED REGISTERED
[store 30] 0 kill on STORE_APP_ATTEMPT | unmanaged
    -> RMAppAttempt LAUNCHED_UNMANAGED_SAVING KILL, RMAppAttempt FINAL_SAVING ATTEMPT_NEW_SAVED
[store 30] 0 fail the attempt on STORE_APP_ATTEMPT | unmanaged
    -> RMAppAttempt LAUNCHED_UNMANAGED_SAVING FAIL, RMAppAttempt FINAL_SAVING ATTEMPT_NEW_SAVED
[store 30] 0 register on STORE_APP_ATTEMPT | unmanaged
    -> RMAppAttempt LAUNCHED_UNMANAGED_SAVING REGISTERED, RMAppAttempt FINAL_SAVING ATTEMPT_NEW_SAVED
keeping unmanaged | 500 register | 900 register -> RMAppAttempt RUNNING REGISTERED
1000 report | 1510 slow | 1550 leave on STATUS_UPDATE | 1550 report -> RMAppAttempt SCHEDULED CONTAINER_FINISHED
[store 1-7] slow | 250 its node: leave on CONTAINER_ALLOCATED -> RMAppAttempt ALLOCATED_SAVING CONTAINER_FINISHED
[store 1 30] slow | 0 kill on ATTEMPT_ADDED -> RMAppAttempt SCHEDULED KILL
[store 1 30] slow | 0 fail the attempt on ATTEMPT_ADDED -> RMAppAttempt SCHEDULED FAIL
[store 1 30] slow | 0 kill on STORE_APP_ATTEMPT -> RMAppAttempt ALLOCATED_SAVING KILL
[store 1 30] slow | 0 fail the attempt on STORE_APP_ATTEMPT -> RMAppAttempt ALLOCATED_SAVING FAIL
[store 400 ms] endless | 1500 finish, fail the attempt, exit | 1500 report on FAIL
    -> RMAppAttempt FINAL_SAVING FAIL/CONTAINER_FINISHED
slow | 1500 exit | 2500 fail the first attempt
    -> RMAppAttempt LAUNCHED CONTAINER_FINISHED, RMAppAttempt FAILED FAIL, RMApp ACCEPTED ATTEMPT_FAILED
silent -> RMAppAttempt LAUNCHED EXPIRE
falls silent -> RMAppAttempt RUNNING EXPIRE
[store 1-7] unmanaged with a task | 1550 register, allocate, finish | 1550 all: report on UPDATE_APP_ATTEMPT
    -> RMAppAttempt FINISHED CONTAINER_ALLOCATED
[store 1-7] slow | 0 its node: leave on STORE_APP_ATTEMPT -> RMAppAttempt ALLOCATED CONTAINER_FINISHED
slow | 0 kill on STORE_APP_ATTEMPT written -> RMAppAttempt ALLOCATED KILL, RMAppAttempt FINAL_SAVING LAUNCHED
slow | 200 all: refuse a launch | 200 kill on STORE_APP_ATTEMPT written -> RMAppAttempt FINAL_SAVING LAUNCH_FAILED
slow | 200 all: refuse a launch -> RMAppAttempt ALLOCATED LAUNCH_FAILED
slow | 0 fail the attempt on ATTEMPT_NEW_SAVED -> RMAppAttempt ALLOCATED FAIL
early -> RMAppAttempt ALLOCATED REGISTERED, RMAppAttempt RUNNING LAUNCHED
slow | 1500 register on UPDATE_APP_ATTEMPT written | 1500 fail the attempt -> RMAppAttempt FAILED REGISTERED
slow | 1500 register on UPDATE_APP_ATTEMPT written | 1500 kill -> RMAppAttempt KILLED REGISTERED
endless | 1500 allocate, finish on UPDATE_APP_ATTEMPT written | 1500 fail the attempt
    -> RMAppAttempt FAILED STATUS_UPDATE/UNREGISTERED
endless | 1500 allocate, finish on UPDATE_APP_ATTEMPT written | 1500 kill
    -> RMAppAttempt KILLED STATUS_UPDATE/UNREGISTERED
[store 1] slow | 1500 kill | 1500 register on UPDATE_APP_ATTEMPT -> RMAppAttempt FINAL_SAVING REGISTERED
[store 1] endless | 1500 kill | 1500 allocate, finish on UPDATE_APP_ATTEMPT
    -> RMAppAttempt FINAL_SAVING STATUS_UPDATE/UNREGISTERED
[store 1] silent | 3300 look for what has expired on UPDATE_APP_ATTEMPT | 3300 kill -> RMAppAttempt FINAL_SAVING EXPIRE
silent | 3300 look for what has expired on UPDATE_APP_ATTEMPT written | 3300 fail the attempt
    -> RMAppAttempt FAILED EXPIRE
silent | 3300 look for what has expired on UPDATE_APP_ATTEMPT written | 3300 kill -> RMAppAttempt KILLED EXPIRE
lingering | 1500 register, finish | 4500 look for what has expired on FINISHED | 4500 exit | 4500 all: report
    -> RMAppAttempt FINISHED EXPIRE, RMAppAttempt FINISHING CONTAINER_FINISHED
lingering | 1500 register, finish -> RMAppAttempt FINISHING EXPIRE
[store 1-7] endless | 1500 fail the attempt on ATTEMPT_UPDATE_SAVED | 1500 finish -> RMAppAttempt FINISHING FAIL
[store 1-7] unmanaged | 500 register | 1500 fail the attempt on ATTEMPT_UPDATE_SAVED | 1500 finish
    -> RMAppAttempt FINISHED FAIL
endless | 1500 fail the attempt on ATTEMPT_UPDATE_SAVED | 1500 kill -> RMAppAttempt KILLED FAIL
[store 1-7] with a task | 1550 register, allocate, kill | 1550 all: report on UPDATE_APP_ATTEMPT
    -> RMAppAttempt FINAL_SAVING CONTAINER_ALLOCATED
[store 1-7] with a task | 1550 register, allocate, kill | 1550 all: report on UPDATE_APP_ATTEMPT
    -> RMAppAttempt KILLED CONTAINER_ALLOCATED
[store 1-7] with a task | 1550 register, allocate, fail the attempt | 1550 all: report on UPDATE_APP_ATTEMPT
    -> RMAppAttempt FAILED CONTAINER_ALLOCATED
[store 1-7] with a task | 1550 register, allocate, finish | 1550 all: report on UPDATE_APP_ATTEMPT
    -> RMAppAttempt FINISHING CONTAINER_ALLOCATED
forgetful -> RMContainer ACQUIRED EXPIRE/LAUNCHED
forgetful | 950 release a container on ACQUIRED -> RMContainer ACQUIRED RELEASED
with a long task | 850 a container does not start on ACQUIRED -> RMContainer ACQUIRED FINISHED
working | 1500 restart -> RMContainer NEW RECOVER
large | 900 waiting | 2900 also waiting | 3900 kill #2 -> RMContainer NEW RESERVED, RMContainer RESERVED START/KILL
working | 1500 grow a container | 2500 signal a container
    -> RMContainer RUNNING ACQUIRE_UPDATED_CONTAINER/NM_DONE_CHANGE_RESOURCE, RMNode RUNNING
    UPDATE_CONTAINER/SIGNAL_CONTAINER
[preempting] greedy | other | 1500 decommission #2 | 2500 starved
    -> RMContainer RUNNING KILL, RMNode RUNNING CLEANUP_CONTAINER
working | 1550 decommission, shrink -> RMNode DECOMMISSIONED RESOURCE_UPDATE
working | 1550 leave, shrink -> RMNode SHUTDOWN RESOURCE_UPDATE
working | 1550 reboot, shrink -> RMNode REBOOTED RESOURCE_UPDATE
working | 1550 report ill, shrink -> RMNode UNHEALTHY RESOURCE_UPDATE
working | 1550 report, shrink -> RMNode RUNNING RESOURCE_UPDATE
working | 1550 fall silent | 3500 look for what has expired, shrink
    -> RMNode LOST RESOURCE_UPDATE/FINISHED_CONTAINERS_PULLED_BY_AM, RMNode RUNNING EXPIRE
working | 1550 its node: drain | 1600 its node: decommission -> RMNode DECOMMISSIONING DECOMMISSION
working | 1550 its node: drain | 1600 its node: leave -> RMNode DECOMMISSIONING SHUTDOWN
working | 1550 its node: drain | 1600 its node: fall silent -> RMNode DECOMMISSIONING EXPIRE
working | 1550 its node: drain | 1600 its node: reboot -> RMNode DECOMMISSIONING REBOOTING
working | 1550 its node: drain | 1600 its node: register again -> RMNode DECOMMISSIONING RECONNECTED
working | 1550 its node: drain | 1600 its node: drain in a second -> RMNode DECOMMISSIONING GRACEFUL_DECOMMISSION
working | 1550 its node: drain | 1600 its node: shrink -> RMNode DECOMMISSIONING RESOURCE_UPDATE
working | 1550 its node: drain | 1600 its node: recommission -> RMNode DECOMMISSIONING RECOMMISSION
working | 1550 its node: drain | 1600 signal a container -> RMNode DECOMMISSIONING SIGNAL_CONTAINER
working | 1550 its node: drain | 1600 release a container
    -> RMNode DECOMMISSIONING CLEANUP_CONTAINER, RMContainer RUNNING RELEASED, RMNode DECOMMISSIONING
    FINISHED_CONTAINERS_PULLED_BY_AM
working | 1550 its node: drain | 1600 kill -> RMNode DECOMMISSIONING CLEANUP_APP
working | 1550 all: report ill | 1600 all: decommission -> RMNode UNHEALTHY DECOMMISSION
working | 1550 all: report ill | 1600 all: leave -> RMNode UNHEALTHY SHUTDOWN
working | 1550 all: report ill | 1600 all: fall silent -> RMNode UNHEALTHY EXPIRE
working | 1550 all: report ill | 1600 all: reboot -> RMNode UNHEALTHY REBOOTING
working | 1550 all: report ill | 1600 all: register again -> RMNode UNHEALTHY RECONNECTED
working | 1550 all: report ill | 1600 all: drain -> RMNode UNHEALTHY GRACEFUL_DECOMMISSION
working | 1550 its node: drain, grow a container -> RMNode DECOMMISSIONING UPDATE_CONTAINER
working | 1550 its node: report ill, grow a container -> RMNode UNHEALTHY UPDATE_CONTAINER/CLEANUP_CONTAINER/CLEANUP_APP
working | 1550 its node: report ill, signal a container -> RMNode UNHEALTHY SIGNAL_CONTAINER
working | 1550 its node: drain | 1600 its node: recommission, its node: recommission -> RMNode RUNNING RECOMMISSION
working | 1550 its node: drain | 1600 its node: recommission, its node: report ill, its node: recommission
    -> RMNode UNHEALTHY RECOMMISSION
endless | 500 include the others -> RMNode NEW EXPIRE
endless | 500 exclude an absent host -> RMNode NEW DECOMMISSION
"""
DIRECTED = tuple(map(directed, rows(ROWS)))

REASONS = """
no application is sent it: masters hear of nodes by one log of changes
    -> RMApp NEW/NEW_SAVING/SUBMITTED/ACCEPTED/RUNNING/KILLING/FINAL_SAVING/FINISHING/FINISHED/FAILED/KILLED NODE_UPDATE
START is queued once there is an application, before anyone can kill it -> RMApp NEW KILL, RMApp KILLED START
the scheduler rejects only what it was sent, and it is sent what is stored -> RMApp NEW/NEW_SAVING APP_REJECTED
an attempt says that its master has unregistered before it ends -> RMApp RUNNING ATTEMPT_FINISHED
the attempt has ended before, and says so once; it was launched, and unregistered, before it ended
    -> RMApp FINISHED/KILLED ATTEMPT_FINISHED, RMApp KILLED ATTEMPT_FAILED, RMApp FINISHED ATTEMPT_UNREGISTERED,
    RMApp FINAL_SAVING ATTEMPT_LAUNCHED
the store answers the end of an application only, which is in FINAL_SAVING until then -> RMApp KILLING APP_UPDATE_SAVED
START is queued once there is an attempt, before anyone can end it; it opens the session of its master
    -> RMAppAttempt NEW KILL/FAIL/REGISTERED
the launcher's answer is queued before the store is asked for the attempt's end
    -> RMAppAttempt FINISHING/FINISHED/FAILED/KILLED LAUNCHED, RMAppAttempt FAILED/KILLED LAUNCH_FAILED
once its master has unregistered, its calls are refused
    -> RMAppAttempt FINISHING/FINISHED UNREGISTERED, RMAppAttempt FINISHING STATUS_UPDATE
an application that passes on a kill has not heard that its master unregistered; the store answers after that
    -> RMAppAttempt FINISHING KILL
an ended container is forgotten, and later events for it are dropped
    -> RMContainer COMPLETED/EXPIRED/RELEASED/KILLED RELEASED/KILL, RMContainer COMPLETED/RELEASED/KILLED EXPIRE,
    RMContainer RELEASED/KILLED FINISHED, RMContainer KILLED ACQUIRED
START, RESERVED or RECOVER is queued once there is a container, before anything that ends it -> RMContainer NEW KILL
no container is opportunistic -> RMContainer NEW ACQUIRED
a container is handed to its master once -> RMContainer ACQUIRED/RUNNING ACQUIRED
only what was handed to its master is watched -> RMContainer ALLOCATED EXPIRE
a reservation is given up by KILL, and made once; a container grows at once or not at all
    -> RMContainer RESERVED RELEASED/RESERVED, RMContainer RUNNING RESERVED
what comes before STARTED was meant for the node's predecessor, and is dropped
    -> RMNode NEW RESOURCE_UPDATE/FINISHED_CONTAINERS_PULLED_BY_AM
"""
UNREACHABLE = dict(row.split(" -> ") for row in rows(REASONS))
"""Why, and what a live cluster cannot bring a machine therefore."""
