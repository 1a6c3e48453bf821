"""The lines of a frame, without a screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from dispatcher.cli.ops.look import DaemonSummary
from dispatcher.cli.ops.top.frame import frame_of
from dispatcher.cli.ops.top.state import Look, Sort, TopState, Wish
from dispatcher.ops.answers import Page
from dispatcher.ops.dispatchers import DispatcherNumbers, EventTypeNumbers, Failure, Queued, QueuedEntity
from dispatcher.ops.entities import EntityDetails
from dispatcher.ops.overview import Problem
from dispatcher.ops.process import Process
from dispatcher.ops.stacks import RunningHandler

from ....kit.lines import assert_lines
from . import fake_daemon as fake

HOSTILE = "\x1b[2J\x1b]0;owned\x07\n\r\x7f\x9b31m\u202e[red]\U000e0041"
CLOCK = time.strftime("%H:%M:%S", time.localtime(fake.NOW_MS / 1000))


def look_at(answers: fake.Answers, at_s: float = 1.0, **more: Any) -> Look:
    """What a watcher makes of the answers."""
    process = Process.model_validate(answers["/process"])
    dispatchers = Page[DispatcherNumbers].model_validate(answers["/dispatchers"]).items
    summary = DaemonSummary(process, dispatchers)
    name = more.pop("dispatcher", summary.needs_attention())
    base = f"/dispatchers/{name}"
    now = answers.get(f"{base}/running")
    return Look(
        at_s,
        summary,
        name,
        Page[EventTypeNumbers].model_validate(answers.get(f"{base}/types", fake.page())).items,
        RunningHandler.model_validate(now) if now else None,
        Page[Failure].model_validate(answers.get(f"{base}/failures", fake.page())).items,
        **more,
    )


def state_of(answers: fake.Answers, wish: Wish | None = None, filter: str = "", **more: Any) -> TopState:
    state = TopState()
    state.seen(look_at(answers, **more))
    state.wish, state.filter = wish or state.wish, filter
    return state


def frame(state: TopState, width: int = 80, height: int = 24, now_s: float = 0.0) -> list[str]:
    lines = frame_of(state, width, height, now_s)
    assert len(lines) == height
    assert {line.cell_len for line in lines} == {width}
    return [line.plain for line in lines]


@pytest.mark.parametrize("answers", [fake.calm, fake.flooded, fake.hanging, fake.failing])
@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 60), (81, 17), (10, 3)])
def test_every_line_has_the_width_of_the_screen(answers: Any, size: tuple[int, int]) -> None:
    frame(state_of(answers()), *size)


PROBLEMS = [
    Problem(
        problem="stuck",
        dispatcher="scheduler",
        event_class="NodeEventType",
        event_type="UPDATE",
        since=fake.NOW_MS,
        waits="17,000 events queued",
    ),
    Problem(problem="floods", dispatcher="central", detail="grows by 528/s"),
    Problem(problem="check:database"),
]


def with_types(*types: dict[str, Any], **changes: Any) -> fake.Answers:
    return fake.answers_of(fake.numbers(**changes)) | {"/dispatchers/central/types": fake.page(*types)}


def with_failures(count: int) -> fake.Answers:
    return fake.failing() | {"/dispatchers/writer/failures": fake.page(*map(fake.failure, range(1, count)))}


def with_entity(answers: fake.Answers, **changes: Any) -> TopState:
    entity = EntityDetails.model_validate({**fake.ENTITY, **changes})
    return state_of(answers, Wish(entity="app_17"), entity=entity)


def queued_by_entity(*, approximate: bool) -> TopState:
    items = [{"entity": "node_17", "queued": 80_011}, {"entity": "node_3", "queued": 12}]
    queued = Queued[QueuedEntity].model_validate({"items": items, "approximate": approximate})
    return state_of(fake.flooded(), queued=queued)


def types(name: str, rate: float, share: float | None) -> dict[str, Any]:
    event_class, _, event_type = name.partition(".")
    return fake.type_numbers(event_class, event_type, rate_10s=rate, handling_share_10s=share)


def newly_selected() -> TopState:
    state = state_of(fake.hanging(), dispatcher="central")
    state.is_paused = True
    state.select(1)
    return state


def looked_at_twice(first: fake.Answers, second: fake.Answers) -> TopState:
    """With two seconds between."""
    state = state_of(first, at_s=1.0)
    state.seen(look_at(second, at_s=3.0))
    return state


class Shown(NamedTuple):
    state: Callable[[], TopState]
    lines: str
    absent: str = ""
    size: tuple[int, int] = (80, 24)


PING = {"at": 0, "seq": 7, "from_state": "", "event_type": "PING", "to_state": None, "valid": True}
LONG_NAMES = ("ResourceManager", "ResourceManager-scheduler", "ResourceManager-store")
FRAMES = {
    "a screen that is too small says how large it has to be": Shown(
        lambda: state_of(fake.calm()), "enlarge to 60 x 16 (now 59 x 16)", size=(59, 16)
    ),
    "a narrow terminal says how to quit": Shown(lambda: state_of(fake.calm()), "|^C quit", size=(60, 16)),
    "a very narrow one too": Shown(lambda: state_of(fake.calm()), "|^C quit", size=(20, 5)),
    "a calm daemon is ready and runs nothing": Shown(
        lambda: state_of(fake.calm()),
        "|resourcemanager pid 4711 up 3 d 4 h / ready| / > central STARTED 0 / |RUNNING on central: nothing|",
    ),
    "a wide head has the memory, threads and load of the process too": Shown(
        lambda: state_of(fake.calm()), "up 3 d 4 h 121 MB 14 threads load 0.52 ready|", size=(120, 24)
    ),
    "a hanging handler is shown first, with its stack": Shown(
        lambda: state_of(fake.hanging()),
        "stuck (scheduler, 61.2 s)| / |> scheduler runs 61.2 s / +|busy 2 %, oldest waiting 61.0 s, / "
        "|RUNNING for 61.2 s: NodeEventType.UPDATE of node_17| / +rm/nodes.py:41 / +rm/nodes.py:77 / "
        "+store/sqlite.py:130 / +|store/sqlite.py:58 in __enter__: self._lock.acquire()|",
        absent="dispatching/batches.py / _bootstrap",
    ),
    "a problem has its type, since when, and what waits": Shown(
        lambda: state_of(fake.hanging(), problems=PROBLEMS),
        f"|1 of 3 stuck: scheduler NodeEventType.UPDATE since {CLOCK} / "
        "+|waits: 17,000 events queued| / +|2 of 3 floods: central: grows by 528/s|",
    ),
    "the selected dispatcher has what is retrying and its dead letters": Shown(
        lambda: state_of(fake.answers_of(fake.numbers(retrying=1200, dead_letters={"count": 1, "lost": 0}))),
        "|1 dead letter, 1,200 retrying, ",
    ),
    "a dispatcher that has failed says why, and the newest failure has its message and frames": Shown(
        lambda: state_of(fake.failing()),
        "failed (writer)| / writer failed: JournalError: /var/lib/rm/journal: No space left / "
        "AppEventType.KILL of app_1: InvalidStateTransitionError: RMApp app_1 / +|RMApp app_1: no transition "
        'from FINISHED on KILL| / +|File "/srv/rm/apps.py", line 12, in handle self.machine.do(event)| / '
        "+AppEventType.KILL of app_2",
    ),
    "the newest failure has no message where there is no room": Shown(
        lambda: state_of(with_failures(30)), "AppEventType.KILL of app_1: / +AppEventType.KILL of app_2:"
    ),
    "of many dispatchers, the chosen one is among those shown": Shown(
        lambda: state_of(fake.answers_of(*(fake.numbers(f"d{each}") for each in range(30))), dispatcher="d17"),
        "18 of 30 / > d17",
        absent="d29",
    ),
    "types are sorted by what is queued": Shown(
        lambda: state_of(fake.calm(), Wish(sort=Sort.QUEUED)), "|TYPES / +|NodeEventType.UPDATE"
    ),
    "types are sorted by rate": Shown(
        lambda: state_of(fake.calm(), Wish(sort=Sort.RATE)), "|TYPES / +|NodeEventType.UPDATE"
    ),
    "types are sorted by time": Shown(
        lambda: state_of(fake.calm(), Wish(sort=Sort.TIME)), "|TYPES / +|NodeEventType.UPDATE"
    ),
    "types are sorted by failures": Shown(
        lambda: state_of(fake.calm(), Wish(sort=Sort.FAILED)), "|TYPES / +|AppEventType.KILL"
    ),
    "types without a queue are sorted by time and then by rate": Shown(
        lambda: state_of(
            with_types(
                types("A.IDLE", 0.0, 0.0),
                types("B.BRIEF", 900.0, 0.1),
                types("C.RARE", 0.0, None),
                types("D.BRIEF", 901.0, 0.1),
                types("E.LONG", 1.0, 0.7),
            )
        ),
        "|TYPES / +|E.LONG  / +|D.BRIEF  / +|B.BRIEF ",
    ),
    "failures a second are beside their count": Shown(
        lambda: state_of(
            with_types(
                fake.type_numbers("A", "B", failed=12, failed_rate_10s=3.2),
                failed=12,
                failure_rate={"1s": 9.0, "10s": 3.2, "60s": 0.1},
            )
        ),
        "FAILED FAIL/s| / +|A.B  / 12 3.2| / |LAST FAILURES, newest first: 12 since start, 3.2/s|",
        size=(120, 24),
    ),
    "the entities that flood the queue are named": Shown(
        lambda: queued_by_entity(approximate=False), "|queued: node_17 80,011, node_3 12, ", size=(120, 24)
    ),
    "an estimate of them says so": Shown(
        lambda: queued_by_entity(approximate=True), "|queued, about: node_17 80,011, node_3 12, ", size=(120, 24)
    ),
    "a filter takes part of a name in any case": Shown(
        lambda: state_of(fake.calm(), filter="container"), "TYPES 'container': 2/5", absent="NodeEventType.UPDATE"
    ),
    "an entity takes the place of what runs and failed": Shown(
        lambda: with_entity(fake.failing()),
        "ENTITY app_17 (rmapp): RUNNING since / #812 ACCEPTED -> RUNNING on ATTEMPT_REGISTERED / #640 "
        "SUBMITTED on KILL: no transition from SUBMITTED on KILL",
        absent="LAST FAILURES",
    ),
    "an event that made no transition is in the history, and rows that are gone are told": Shown(
        lambda: with_entity(fake.calm(), history=fake.page(PING), complete=False),
        "#7 no transition on PING / older rows are no longer kept",
    ),
    "after a restart the head says so": Shown(
        lambda: looked_at_twice(fake.calm(), fake.answers_of(fake.numbers(), pid=4712, uptime_s=1.0)),
        "restarted 1x",
        size=(120, 24),
    ),
    "the share of CPU is of the time between two looks": Shown(
        lambda: looked_at_twice(fake.answers_of(cpu_s=10.0), fake.answers_of(cpu_s=11.0)), "cpu 50 %"
    ),
    "a newly selected dispatcher is not said to be idle before it was asked": Shown(
        newly_selected,
        "|TYPES: - / |not asked yet| / |RUNNING on scheduler: not asked yet| / |not asked yet|",
    ),
    "long names of dispatchers keep both ends": Shown(
        lambda: state_of(fake.answers_of(*map(fake.numbers, LONG_NAMES))),
        "|> ResourceManager STARTED / +|Resource…heduler STARTED / +|Resource…r-store STARTED",
    ),
}


@pytest.mark.parametrize("shown", FRAMES.values(), ids=FRAMES)
def test_a_frame_shows(shown: Shown) -> None:
    lines = frame(shown.state(), *shown.size)

    assert_lines(lines, shown.lines)
    assert not [text for text in shown.absent.split(" / ") if text and any(text in line for line in lines)]


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 60), (81, 17)])
def test_a_frame_with_problems_has_the_size_of_the_screen(size: tuple[int, int]) -> None:
    hostile = [Problem(problem=HOSTILE, dispatcher=HOSTILE, detail=HOSTILE, waits=HOSTILE)] * 30

    assert_lines(frame(state_of(fake.hanging(), problems=hostile), *size), "1 of 30 / RUNNING for 61.2 s")


def test_the_dispatcher_of_the_first_problem_is_selected_unless_another_is_stuck_or_has_failed() -> None:
    busy = [Problem(problem="fails", service="store"), Problem(problem="floods", dispatcher="b")]

    calm = look_at(fake.answers_of(fake.numbers("a"), fake.numbers("b"))).summary
    hanging = look_at(fake.hanging()).summary

    assert calm.needs_attention() == "a"
    assert calm.needs_attention(busy) == "b"
    assert hanging.needs_attention([Problem(problem="floods", dispatcher="central")]) == "scheduler"


def test_while_the_daemon_is_away_the_last_frame_stays_without_colours() -> None:
    state = state_of(fake.calm())
    state.missed("rm (4711): no process is listening there", 100.0)
    state.missed("rm (4711): no process is listening there", 101.0)

    lines = frame_of(state, 80, 24, 112.4)

    assert lines[0].plain.strip() == "reconnecting for 12 s: rm (4711): no process is listening there"
    assert "central" in lines[2].plain
    assert not any(line.spans for line in lines[1:])


def test_what_is_foreign_reaches_the_screen_escaped() -> None:
    answers = fake.answers_of(
        fake.numbers(HOSTILE, kind=HOSTILE, state=HOSTILE, running=fake.running(entity=HOSTILE)), name=HOSTILE
    )
    base = f"/dispatchers/{HOSTILE}"
    answers[f"{base}/types"] = fake.page(fake.type_numbers(HOSTILE, HOSTILE))
    answers[f"{base}/failures"] = fake.page(fake.failure(message=HOSTILE, entity=HOSTILE, frames=[HOSTILE]))
    answers[f"{base}/running"]["stack"] = [{"file": HOSTILE, "line": 1, "function": HOSTILE, "code": HOSTILE}]

    lines = frame(state_of(answers, filter=HOSTILE[:3]), 200, 40)

    assert all(line.isprintable() for line in lines)
    [running] = [line for line in lines if "RUNNING" in line]
    assert r"\x1b[2J\x1b]0;owned\x07\n\r\x7f\x9b31m\u202e[red]" in running


def test_wide_letters_count_for_two_columns() -> None:
    frame(state_of(fake.answers_of(fake.numbers("中" * 40, running=fake.running(entity="文" * 60)))))


# -- what is kept from look to look ------------------------------------------------------------------------------------


def test_a_second_without_an_answer_is_a_gap_in_the_history() -> None:
    state = state_of(fake.calm(), at_s=1.0)

    state.seen(look_at(fake.calm(), at_s=4.1))

    assert list(state.histories["central"].rate) == [12.0, None, None, 12.0]


def test_a_history_has_60_seconds() -> None:
    state = TopState()

    for second in range(100):
        state.seen(look_at(fake.calm(), at_s=float(second)))

    assert len(state.histories["central"].queue) == 60
    assert state.histories["central"].total == 100


def test_after_a_restart_the_history_begins_anew() -> None:
    state = looked_at_twice(fake.calm(), fake.answers_of(fake.numbers(), pid=4712, uptime_s=1.0))

    assert list(state.histories) == ["central"]
    assert list(state.histories["central"].queue) == [0]


def test_choosing_a_dispatcher_stays_within_the_list() -> None:
    state = state_of(fake.calm())

    state.select(1)
    state.select(1)

    assert state.wish.dispatcher == "scheduler"
    assert state.look is not None
    assert state.look.types == ()  # they were of the other one
