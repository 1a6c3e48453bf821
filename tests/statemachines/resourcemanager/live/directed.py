"""Courses that are timed to bring a machine what hardly ever comes by chance, and what no live cluster can bring it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from statemachines.resourcemanager import Resource

from .cluster import Settings, Step
from .daemons import Plan, Task
from .scripts import Submit, To

ENDLESS = Plan(end="stay")
SLOW = Plan(register_ms=None, end="stay")  # it registers when it is told to
UNMANAGED = Plan(end="stay", register_ms=None, unmanaged=True)
WORKING = Plan(tasks=(Task(Resource(1, 1), 5000),), end="stay")
ONCE = Plan(tasks=(Task(Resource(1, 1), 5000),), end="stay", max_attempts=1)
SILENT = Plan(register_ms=None)  # launched at 300: the first node reports then
LINGERING = Plan(end="linger", register_ms=None)
EXPIRES_MS = 3300  # if it was launched at 300
ALL_NODES = range(3)
LATE_SCHEDULER = Settings(scheduler_lag=30)
LATE_STORE = Settings(store_lag=30)
ONE_LATER = Settings(store_lag=1)
LAGS = tuple(Settings(store_lag=lag) for lag in range(1, 8))
ENDED = ("COMPLETED", "EXPIRED", "RELEASED", "KILLED")

Pair = tuple[str, str, str]
"""Machine, state and event."""


class Directed(NamedTuple):
    pairs: str
    """What it brings: `RMApp KILLED KILL, RMNode LOST RESOURCE_UPDATE`."""
    steps: list[Step]
    settings: tuple[Settings, ...] = (Settings(),)
    """It is taken with each of them."""


def pairs(text: str) -> set[Pair]:
    return {(machine, state, event) for machine, state, event in map(str.split, text.split(", "))}


def course(plan: Plan, *steps: Step) -> list[Step]:
    """With time for what follows: after its last step all is repaired."""
    return [Step(0, Submit(plan)), *steps, Step(5000, To("report"))]


def at(at_ms: int, *whats: str, on: str | None = None) -> list[Step]:
    return [Step(at_ms, To(what), on) for what in whats]


def _on_all(at_ms: int, what: str, on: str | None = None) -> list[Step]:
    return [Step(at_ms, To(what, which), on) for which in ALL_NODES]


DIRECTED: tuple[Directed, ...] = (
    # -- applications
    Directed(
        "RMApp FAILED APP_RUNNING_ON_NODE",
        course(ONCE, *_on_all(1500, "register again", "UPDATE_APP"), *at(1500, "crash")),
        (ONE_LATER,),
    ),
    Directed(
        "RMApp FINISHED APP_RUNNING_ON_NODE",
        course(WORKING, *at(1500, "finish"), *_on_all(1600, "register again", "FINISHED"), *at(1600, "exit")),
    ),
    Directed(
        "RMApp FAILED KILL, RMAppAttempt RUNNING CONTAINER_FINISHED",
        course(ONCE, *at(1500, "kill", on="UPDATE_APP written"), *at(1500, "crash")),
    ),
    Directed("RMApp KILLED KILL", course(ENDLESS, *at(1500, "kill", on="UPDATE_APP written"), *at(1500, "kill"))),
    Directed("RMApp FINISHING KILL", course(ENDLESS, *at(1500, "kill", on="UPDATE_APP written"), *at(1500, "finish"))),
    Directed(
        "RMApp FINISHED KILL, RMApp FINAL_SAVING ATTEMPT_FINISHED",
        course(
            UNMANAGED,
            *at(1500, "register"),
            *at(1600, "kill", on="UPDATE_APP written"),
            *at(1600, "finish"),
        ),
        LAGS,
    ),
    Directed(
        "RMApp SUBMITTED KILL, RMApp FINAL_SAVING APP_ACCEPTED",
        [*at(0, "kill", on="APP_NEW_SAVED"), *course(ENDLESS)],
    ),
    Directed("RMApp FINAL_SAVING APP_REJECTED", [*at(0, "kill", on="APP_NEW_SAVED"), *course(Plan(queue="nowhere"))]),
    Directed("RMApp KILLED APP_ACCEPTED", [*at(0, "kill", on="APP_NEW_SAVED"), *course(ENDLESS)], (LATE_SCHEDULER,)),
    Directed(
        "RMApp KILLED APP_REJECTED",
        [*at(0, "kill", on="APP_NEW_SAVED"), *course(Plan(queue="nowhere"))],
        (LATE_SCHEDULER,),
    ),
    Directed(
        "RMApp NEW_SAVING KILL, RMApp FINAL_SAVING APP_NEW_SAVED",
        [*at(0, "kill", on="STORE_APP"), *course(ENDLESS)],
        (LATE_STORE,),
    ),
    Directed("RMApp SUBMITTED APP_REJECTED", course(Plan(queue="nowhere"))),
    Directed(
        "RMApp FINAL_SAVING KILL, RMApp FINAL_SAVING APP_RUNNING_ON_NODE",
        course(WORKING, *at(1500, "finish"), *_on_all(1550, "register again"), *at(1550, "kill")),
        (Settings(store_ms=100),),
    ),
    *[
        Directed(
            f"RMApp {state} APP_RUNNING_ON_NODE",
            course(WORKING, *at(1500, what), *_on_all(1500, "register again", when)),
            (ONE_LATER,),
        )
        for state, what, when in (
            ("FINISHING", "finish", "APP_UPDATE_SAVED"),
            ("KILLED", "kill", "UPDATE_APP"),
        )
    ],
    Directed("RMApp NEW_SAVING APP_SAVE_FAILED", [*at(0, "the store takes no more applications"), *course(ENDLESS)]),
    Directed(
        "RMApp FINAL_SAVING APP_SAVE_FAILED",
        [*at(0, "the store takes no more applications"), *at(0, "kill", on="STORE_APP"), *course(ENDLESS)],
        (LATE_STORE,),
    ),
    Directed(
        "RMApp ACCEPTED ATTEMPT_FINISHED",
        course(ENDLESS, *at(1500, "restart", on="UPDATE_APP_ATTEMPT"), *at(1500, "finish")),
    ),
    Directed(
        "RMApp ACCEPTED ATTEMPT_KILLED",
        course(ENDLESS, *at(1500, "restart", on="UPDATE_APP_ATTEMPT"), *at(1500, "kill")),
    ),
    Directed(
        "RMApp KILLING ATTEMPT_FINISHED, RMAppAttempt FINISHED KILL",
        course(ENDLESS, *at(1500, "restart without queue a", on="UPDATE_APP_ATTEMPT"), *at(1500, "finish")),
    ),
    Directed(
        "RMApp KILLING ATTEMPT_KILLED, RMAppAttempt KILLED KILL",
        course(ENDLESS, *at(1500, "restart without queue a", on="UPDATE_APP_ATTEMPT"), *at(1500, "kill")),
    ),
    Directed(
        "RMApp KILLING ATTEMPT_LAUNCHED, RMAppAttempt LAUNCHED KILL",
        course(ENDLESS, *at(1500, "restart without queue a")),
    ),
    Directed("RMApp KILLING ATTEMPT_REGISTERED", course(SLOW, *at(1500, "register", "kill"))),
    Directed(
        "RMApp KILLING ATTEMPT_UNREGISTERED, RMAppAttempt FINAL_SAVING KILL",
        course(ENDLESS, *at(1500, "finish", "kill")),
    ),
    Directed("RMApp KILLING KILL", course(ENDLESS, *at(1500, "kill", "kill"))),
    Directed(
        "RMApp KILLING APP_RUNNING_ON_NODE",
        course(WORKING, *_on_all(1500, "register again"), *at(1500, "kill")),
    ),
    Directed(
        "RMApp KILLING ATTEMPT_FAILED, RMAppAttempt FAILED KILL",
        course(ENDLESS, *at(1500, "kill", on="UPDATE_APP_ATTEMPT written"), *at(1500, "fail the attempt")),
    ),
    # -- attempts
    Directed(
        "RMAppAttempt SUBMITTED KILL, RMAppAttempt FINAL_SAVING ATTEMPT_ADDED",
        [*at(0, "kill", on="APP_ATTEMPT_ADDED"), *course(ENDLESS)],
        tuple(Settings(scheduler_lag=lag) for lag in range(1, 8)),
    ),
    Directed(
        "RMAppAttempt KILLED ATTEMPT_ADDED",
        [*at(0, "kill", on="APP_ATTEMPT_ADDED"), *course(ENDLESS)],
        (LATE_SCHEDULER,),
    ),
    Directed(
        "RMAppAttempt SUBMITTED FAIL, RMAppAttempt FAILED ATTEMPT_ADDED",
        [*at(0, "fail the attempt", on="APP_ATTEMPT_ADDED"), *course(ENDLESS)],
        (LATE_SCHEDULER,),
    ),
    Directed(
        "RMAppAttempt SUBMITTED REGISTERED",
        [*at(0, "register", on="APP_ATTEMPT_ADDED"), *course(UNMANAGED)],
        (LATE_SCHEDULER,),
    ),
    *[
        Directed(
            f"RMAppAttempt LAUNCHED_UNMANAGED_SAVING {event}, RMAppAttempt FINAL_SAVING ATTEMPT_NEW_SAVED",
            [*at(0, what, on="STORE_APP_ATTEMPT"), *course(UNMANAGED)],
            (LATE_STORE,),
        )
        for event, what in (("KILL", "kill"), ("FAIL", "fail the attempt"), ("REGISTERED", "register"))
    ],
    Directed(
        "RMAppAttempt RUNNING REGISTERED",
        course(
            Plan(end="stay", register_ms=None, unmanaged=True, keeps=True), *at(500, "register"), *at(900, "register")
        ),
    ),
    Directed(
        "RMAppAttempt SCHEDULED CONTAINER_FINISHED",
        [
            Step(1000, To("report")),
            Step(1510, Submit(SLOW)),
            *at(1550, "leave", on="STATUS_UPDATE"),
            *at(1550, "report"),
            Step(5000, To("report")),
        ],
    ),
    Directed(
        "RMAppAttempt ALLOCATED_SAVING CONTAINER_FINISHED",
        course(SLOW, *at(250, "its node: leave", on="CONTAINER_ALLOCATED")),
        LAGS,
    ),
    *[
        Directed(f"RMAppAttempt {state} {event}", course(SLOW, *at(0, what, on=when)), (ONE_LATER, LATE_STORE))
        for state, when in (("SCHEDULED", "ATTEMPT_ADDED"), ("ALLOCATED_SAVING", "STORE_APP_ATTEMPT"))
        for event, what in (("KILL", "kill"), ("FAIL", "fail the attempt"))
    ],
    Directed(
        "RMAppAttempt FINAL_SAVING FAIL, RMAppAttempt FINAL_SAVING CONTAINER_FINISHED",
        course(ENDLESS, *at(1500, "finish", "fail the attempt", "exit"), *at(1500, "report", on="FAIL")),
        (Settings(store_ms=400),),
    ),
    Directed(
        "RMAppAttempt LAUNCHED CONTAINER_FINISHED, RMAppAttempt FAILED FAIL, RMApp ACCEPTED ATTEMPT_FAILED",
        course(SLOW, *at(1500, "exit"), *at(2500, "fail the first attempt")),
    ),
    Directed("RMAppAttempt LAUNCHED EXPIRE", course(SILENT)),
    Directed("RMAppAttempt RUNNING EXPIRE", course(Plan(end="silent"))),
    Directed(
        "RMAppAttempt FINISHED CONTAINER_ALLOCATED",
        course(
            Plan(tasks=(Task(Resource(1, 1), 500),), register_ms=None, unmanaged=True),
            *at(1550, "register", "allocate", "finish"),
            *_on_all(1550, "report", "UPDATE_APP_ATTEMPT"),
        ),
        LAGS,
    ),
    Directed(
        "RMAppAttempt ALLOCATED CONTAINER_FINISHED",
        course(SLOW, *at(0, "its node: leave", on="STORE_APP_ATTEMPT")),
        LAGS,
    ),
    Directed(
        "RMAppAttempt ALLOCATED KILL, RMAppAttempt FINAL_SAVING LAUNCHED",
        course(SLOW, *at(0, "kill", on="STORE_APP_ATTEMPT written")),
    ),
    Directed(
        "RMAppAttempt FINAL_SAVING LAUNCH_FAILED",
        course(SLOW, *_on_all(200, "refuse a launch"), *at(200, "kill", on="STORE_APP_ATTEMPT written")),
    ),
    Directed("RMAppAttempt ALLOCATED LAUNCH_FAILED", course(SLOW, *_on_all(200, "refuse a launch"))),
    Directed("RMAppAttempt ALLOCATED FAIL", course(SLOW, *at(0, "fail the attempt", on="ATTEMPT_NEW_SAVED"))),
    Directed("RMAppAttempt ALLOCATED REGISTERED, RMAppAttempt RUNNING LAUNCHED", course(Plan(register_ms=0))),
    *[
        Directed(
            f"RMAppAttempt {state} REGISTERED",
            course(SLOW, *at(1500, "register", on="UPDATE_APP_ATTEMPT written"), *at(1500, what)),
        )
        for state, what in (("FAILED", "fail the attempt"), ("KILLED", "kill"))
    ],
    *[
        Directed(
            f"RMAppAttempt {state} STATUS_UPDATE, RMAppAttempt {state} UNREGISTERED",
            course(ENDLESS, *at(1500, "allocate", "finish", on="UPDATE_APP_ATTEMPT written"), *at(1500, what)),
        )
        for state, what in (("FAILED", "fail the attempt"), ("KILLED", "kill"))
    ],
    Directed(
        "RMAppAttempt FINAL_SAVING REGISTERED",
        course(SLOW, *at(1500, "kill"), *at(1500, "register", on="UPDATE_APP_ATTEMPT")),
        (ONE_LATER,),
    ),
    Directed(
        "RMAppAttempt FINAL_SAVING STATUS_UPDATE, RMAppAttempt FINAL_SAVING UNREGISTERED",
        course(ENDLESS, *at(1500, "kill"), *at(1500, "allocate", "finish", on="UPDATE_APP_ATTEMPT")),
        (ONE_LATER,),
    ),
    Directed(
        "RMAppAttempt FINAL_SAVING EXPIRE",
        course(SILENT, *at(EXPIRES_MS, "look for what has expired", on="UPDATE_APP_ATTEMPT"), *at(EXPIRES_MS, "kill")),
        (ONE_LATER,),
    ),
    *[
        Directed(
            f"RMAppAttempt {state} EXPIRE",
            course(
                SILENT,
                *at(EXPIRES_MS, "look for what has expired", on="UPDATE_APP_ATTEMPT written"),
                *at(EXPIRES_MS, what),
            ),
        )
        for state, what in (("FAILED", "fail the attempt"), ("KILLED", "kill"))
    ],
    Directed(
        "RMAppAttempt FINISHED EXPIRE, RMAppAttempt FINISHING CONTAINER_FINISHED",
        course(
            LINGERING,
            *at(1500, "register", "finish"),
            *at(4500, "look for what has expired", on="FINISHED"),
            *at(4500, "exit"),
            *_on_all(4500, "report"),
        ),
    ),
    Directed("RMAppAttempt FINISHING EXPIRE", course(LINGERING, *at(1500, "register", "finish"))),
    Directed(
        "RMAppAttempt FINISHING FAIL",
        course(ENDLESS, *at(1500, "fail the attempt", on="ATTEMPT_UPDATE_SAVED"), *at(1500, "finish")),
        LAGS,
    ),
    Directed(
        "RMAppAttempt FINISHED FAIL",
        course(
            UNMANAGED,
            *at(500, "register"),
            *at(1500, "fail the attempt", on="ATTEMPT_UPDATE_SAVED"),
            *at(1500, "finish"),
        ),
        LAGS,
    ),
    Directed(
        "RMAppAttempt KILLED FAIL",
        course(ENDLESS, *at(1500, "fail the attempt", on="ATTEMPT_UPDATE_SAVED"), *at(1500, "kill")),
    ),
    *[
        Directed(
            f"RMAppAttempt {state} CONTAINER_ALLOCATED",
            course(
                Plan(tasks=(Task(Resource(1, 1), 500),), register_ms=None),
                *at(1550, "register", "allocate", what),
                *_on_all(1550, "report", "UPDATE_APP_ATTEMPT"),
            ),
            LAGS,
        )
        for state, what in (
            ("FINAL_SAVING", "kill"),
            ("KILLED", "kill"),
            ("FAILED", "fail the attempt"),
            ("FINISHING", "finish"),
        )
    ],
    # -- containers
    Directed(
        "RMContainer ACQUIRED EXPIRE, RMContainer ACQUIRED LAUNCHED",
        course(Plan(tasks=(Task(Resource(1, 1), 500),), forgets=True)),
    ),
    Directed(
        "RMContainer ACQUIRED RELEASED",
        course(Plan(tasks=(Task(Resource(1, 1), 500),), forgets=True), *at(950, "release a container", on="ACQUIRED")),
    ),
    Directed(
        "RMContainer ACQUIRED FINISHED",
        course(
            Plan(tasks=(Task(Resource(1, 1), 5000),), work_ms=900),
            *at(850, "a container does not start", on="ACQUIRED"),
        ),
    ),
    Directed("RMContainer NEW RECOVER", course(WORKING, *at(1500, "restart"))),
    Directed(
        "RMContainer NEW RESERVED, RMContainer RESERVED START, RMContainer RESERVED KILL",
        course(
            # It fills one node after the other. The next application reserves the last of them, which is free first.
            Plan(queue="a", tasks=tuple(Task(Resource(6, 6), ms) for ms in (3500, 1500, 3500)), end="stay"),
            Step(900, Submit(Plan(queue="d", tasks=(Task(Resource(7, 7), 1500),), end="stay"))),
            Step(2900, Submit(Plan(queue="d", tasks=(Task(Resource(7, 7), 1500),), end="stay", user="bob"))),
            Step(3900, To("kill", 2)),
        ),
    ),
    Directed(
        "RMContainer RUNNING ACQUIRE_UPDATED_CONTAINER, RMContainer RUNNING NM_DONE_CHANGE_RESOURCE, "
        "RMNode RUNNING UPDATE_CONTAINER, RMNode RUNNING SIGNAL_CONTAINER",
        course(WORKING, *at(1500, "grow a container"), *at(2500, "signal a container")),
    ),
    Directed(  # a node leaves, and queue a has more than its guarantee, of which queue d gets nothing
        "RMContainer RUNNING KILL, RMNode RUNNING CLEANUP_CONTAINER",
        course(
            Plan(queue="a", tasks=(Task(Resource(3, 3), 9000),) * 6, end="stay"),
            Step(0, Submit(Plan(queue="c", tasks=(Task(Resource(3, 3), 9000),), end="stay"))),
            Step(1500, To("decommission", 2)),
            Step(2500, Submit(Plan(queue="d", tasks=(Task(Resource(4, 4), 500),), master=Resource(2, 2)))),
        ),
        (Settings(preemption=True),),
    ),
    # -- nodes
    *[
        Directed(f"RMNode {state} RESOURCE_UPDATE", course(WORKING, *at(1550, what, "shrink")))
        for state, what in (
            ("DECOMMISSIONED", "decommission"),
            ("SHUTDOWN", "leave"),
            ("REBOOTED", "reboot"),
            ("UNHEALTHY", "report ill"),
            ("RUNNING", "report"),
        )
    ],
    Directed(
        "RMNode LOST RESOURCE_UPDATE, RMNode LOST FINISHED_CONTAINERS_PULLED_BY_AM, RMNode RUNNING EXPIRE",
        course(WORKING, *at(1550, "fall silent"), *at(3500, "look for what has expired", "shrink")),
    ),
    *[
        Directed(f"RMNode DECOMMISSIONING {event}", course(WORKING, *at(1550, "its node: drain"), *at(1600, *whats)))
        for event, whats in (
            ("DECOMMISSION", ("its node: decommission",)),
            ("SHUTDOWN", ("its node: leave",)),
            ("EXPIRE", ("its node: fall silent",)),
            ("REBOOTING", ("its node: reboot",)),
            ("RECONNECTED", ("its node: register again",)),
            ("GRACEFUL_DECOMMISSION", ("its node: drain in a second",)),
            ("RESOURCE_UPDATE", ("its node: shrink",)),
            ("RECOMMISSION", ("its node: recommission",)),
            ("SIGNAL_CONTAINER", ("signal a container",)),
            (
                "CLEANUP_CONTAINER, RMContainer RUNNING RELEASED, "
                "RMNode DECOMMISSIONING FINISHED_CONTAINERS_PULLED_BY_AM",
                ("release a container",),
            ),
            ("CLEANUP_APP", ("kill",)),
        )
    ],
    *[
        Directed(f"RMNode UNHEALTHY {event}", course(WORKING, *_on_all(1550, "report ill"), *_on_all(1600, what)))
        for event, what in (
            ("DECOMMISSION", "decommission"),
            ("SHUTDOWN", "leave"),
            ("EXPIRE", "fall silent"),
            ("REBOOTING", "reboot"),
            ("RECONNECTED", "register again"),
            ("GRACEFUL_DECOMMISSION", "drain"),
        )
    ],
    Directed(
        "RMNode DECOMMISSIONING UPDATE_CONTAINER", course(WORKING, *at(1550, "its node: drain", "grow a container"))
    ),
    Directed(
        "RMNode UNHEALTHY UPDATE_CONTAINER, RMNode UNHEALTHY CLEANUP_CONTAINER, RMNode UNHEALTHY CLEANUP_APP",
        course(WORKING, *at(1550, "its node: report ill", "grow a container")),
    ),
    Directed(
        "RMNode UNHEALTHY SIGNAL_CONTAINER", course(WORKING, *at(1550, "its node: report ill", "signal a container"))
    ),
    Directed(
        "RMNode RUNNING RECOMMISSION",
        course(WORKING, *at(1550, "its node: drain"), *at(1600, "its node: recommission", "its node: recommission")),
    ),
    Directed(
        "RMNode UNHEALTHY RECOMMISSION",
        course(
            WORKING,
            *at(1550, "its node: drain"),
            *at(1600, "its node: recommission", "its node: report ill", "its node: recommission"),
        ),
    ),
    Directed("RMNode NEW EXPIRE", course(ENDLESS, *at(500, "include the others"))),
    Directed("RMNode NEW DECOMMISSION", course(ENDLESS, *at(500, "exclude an absent host"))),
)


UNREACHABLE: Mapping[str, str] = {
    "no application is sent it: masters hear of nodes by one log of changes": ", ".join(
        f"RMApp {state} NODE_UPDATE"
        for state in (
            *("NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED", "RUNNING", "KILLING"),
            *("FINAL_SAVING", "FINISHING", "FINISHED", "FAILED", "KILLED"),
        )
    ),
    "START is queued once there is an application, before anyone can kill it": "RMApp NEW KILL, RMApp KILLED START",
    "the scheduler rejects only what it was sent, and it is sent what is stored": (
        "RMApp NEW APP_REJECTED, RMApp NEW_SAVING APP_REJECTED"
    ),
    "an attempt says that its master has unregistered before it ends": "RMApp RUNNING ATTEMPT_FINISHED",
    "the attempt has ended before, and says so once; it was launched, and unregistered, before it ended": (
        "RMApp FINISHED ATTEMPT_FINISHED, RMApp KILLED ATTEMPT_FINISHED, RMApp KILLED ATTEMPT_FAILED, "
        "RMApp FINISHED ATTEMPT_UNREGISTERED, RMApp FINAL_SAVING ATTEMPT_LAUNCHED"
    ),
    "the store answers the end of an application only, which is in FINAL_SAVING until then": (
        "RMApp KILLING APP_UPDATE_SAVED"
    ),
    "START is queued once there is an attempt, before anyone can end it; it opens the session of its master": (
        "RMAppAttempt NEW KILL, RMAppAttempt NEW FAIL, RMAppAttempt NEW REGISTERED"
    ),
    "the launcher's answer is queued before the store is asked for the attempt's end": (
        "RMAppAttempt FINISHING LAUNCHED, RMAppAttempt FINISHED LAUNCHED, RMAppAttempt FAILED LAUNCHED, "
        "RMAppAttempt KILLED LAUNCHED, RMAppAttempt FAILED LAUNCH_FAILED, RMAppAttempt KILLED LAUNCH_FAILED"
    ),
    "once its master has unregistered, its calls are refused": (
        "RMAppAttempt FINISHING UNREGISTERED, RMAppAttempt FINISHED UNREGISTERED, RMAppAttempt FINISHING STATUS_UPDATE"
    ),
    "an application that passes on a kill has not heard that its master unregistered; the store answers after that": (
        "RMAppAttempt FINISHING KILL"
    ),
    "an ended container is forgotten, and later events for it are dropped": ", ".join(
        [f"RMContainer {state} {event}" for state in ENDED for event in ("RELEASED", "KILL")]
        + [f"RMContainer {state} EXPIRE" for state in ("COMPLETED", "RELEASED", "KILLED")]
        + [f"RMContainer {state} FINISHED" for state in ("RELEASED", "KILLED")]
        + ["RMContainer KILLED ACQUIRED"]
    ),
    "START, RESERVED or RECOVER is queued once there is a container, before anything that ends it": (
        "RMContainer NEW KILL"
    ),
    "no container is opportunistic": "RMContainer NEW ACQUIRED",
    "a container is handed to its master once": "RMContainer ACQUIRED ACQUIRED, RMContainer RUNNING ACQUIRED",
    "only what was handed to its master is watched": "RMContainer ALLOCATED EXPIRE",
    "a reservation is given up by KILL, and made once; a container grows at once or not at all": (
        "RMContainer RESERVED RELEASED, RMContainer RESERVED RESERVED, RMContainer RUNNING RESERVED"
    ),
    "what comes before STARTED was meant for the node's predecessor, and is dropped": (
        "RMNode NEW RESOURCE_UPDATE, RMNode NEW FINISHED_CONTAINERS_PULLED_BY_AM"
    ),
}
"""Why, and what a live cluster cannot bring a machine therefore."""
