"""The lines of a frame, without a screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from ....kit.lines import assert_lines
from . import fake_daemon as fake
from .screen import Top

HOSTILE = "\x1b[2J\x1b]0;owned\x07\n\r\x7f\x9b31m\u202e[red]\U000e0041"
CLOCK = time.strftime("%H:%M:%S", time.localtime(fake.NOW_MS / 1000))


def many_types() -> fake.Answers:
    names = [f"Workload{number}EventType.STEP_{number}_OF_A_LONG_CHAIN" for number in range(12)]
    return with_types(*(types(name, 2000.0, 0.02) for name in names))


@pytest.mark.parametrize("answers", [fake.calm, fake.flooded, fake.hanging, fake.failing, many_types])
@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 60), (81, 17), (10, 3)])
def test_every_line_has_the_width_of_the_screen(answers: Any, size: tuple[int, int]) -> None:
    Top(answers()).frame(*size)


def with_problems(answers: fake.Answers, *problems: dict[str, Any]) -> fake.Answers:
    overview = {"at": fake.NOW_MS, "name": "rm", "health": answers["/process"]["health"], "problems": problems}
    return answers | {"/overview": overview}


STUCK = {
    "problem": "stuck",
    "dispatcher": "scheduler",
    "event_class": "NodeEventType",
    "event_type": "UPDATE",
    "since": fake.NOW_MS,
    "waits": "17,000 events queued",
}
FLOODS = {"problem": "floods", "dispatcher": "central", "detail": "grows by 528/s"}


def with_types(*types: dict[str, Any], **changes: Any) -> fake.Answers:
    return fake.answers_of(fake.numbers(**changes)) | {"/dispatchers/central/types": fake.page(*types)}


def with_failures(count: int) -> fake.Answers:
    return fake.failing() | {"/dispatchers/writer/failures": fake.page(*map(fake.failure, range(1, count)))}


def with_entity(answers: fake.Answers, **changes: Any) -> Top:
    return Top(answers | {"/entities/app_17": {**fake.ENTITY, **changes}}, entity="app_17")


def queued_by_entity(*, approximate: bool) -> Top:
    items = [{"entity": "node_17", "queued": 80_011}, {"entity": "node_3", "queued": 12}]
    return Top(fake.flooded() | {"/dispatchers/ResourceManager/queue": {"items": items, "approximate": approximate}})


def types(name: str, rate: float, share: float | None) -> dict[str, Any]:
    event_class, _, event_type = name.partition(".")
    return fake.type_numbers(event_class, event_type, rate_10s=rate, handling_share_10s=share)


def newly_selected() -> Top:
    top = Top(fake.hanging(), dispatcher="central")
    top.state.is_paused = True
    top.state.select(1)
    return top


def restarted() -> Top:
    return Top(fake.calm()).look(fake.answers_of(fake.numbers(), pid=4712, uptime_s=1.0))


class Shown(NamedTuple):
    top: Callable[[], Top]
    lines: str
    absent: str = ""
    size: tuple[int, int] = (80, 24)


PING = {"at": 0, "seq": 7, "from_state": "", "event_type": "PING", "to_state": None, "valid": True}
NEARLY_FULL = {"size": 96_412, "capacity": 100_000, "policy": "reject", "oldest_wait_s": 4.21}
LONG_NAMES = ("ResourceManager", "ResourceManager-scheduler", "ResourceManager-store")
FRAMES = {
    "a screen that is too small says how large it has to be": Shown(
        lambda: Top(fake.calm()), "enlarge to 60 x 16 (now 59 x 16)", size=(59, 16)
    ),
    "a narrow terminal says how to quit": Shown(lambda: Top(fake.calm()), "|^C quit", size=(60, 16)),
    "a very narrow one too": Shown(lambda: Top(fake.calm()), "|^C quit", size=(20, 5)),
    "a calm daemon is ready and runs nothing": Shown(
        lambda: Top(fake.calm()),
        "|resourcemanager pid 4711 up 3 d 4 h / ready| / > central STARTED 0 / |RUNNING on central: nothing|",
    ),
    "a wide head has the memory, threads and load of the process too": Shown(
        lambda: Top(fake.calm()), "up 3 d 4 h 121 MB 14 threads load 0.52 ready|", size=(120, 24)
    ),
    "a hanging handler is shown first, with its stack": Shown(
        lambda: Top(fake.hanging()),
        "stuck (scheduler, 61.2 s)| / |> scheduler runs 61.2 s / +|queued: node_17 1,204, busy 2 %, oldest "
        "waiting 61.0 s, / |RUNNING for 61.2 s: NodeEventType.UPDATE of node_17| / +rm/nodes.py:41 / +rm/nodes.py:77 / "
        "+store/sqlite.py:130 / +|store/sqlite.py:58 in __enter__: self._lock.acquire()|",
        absent="dispatching/batches.py / _bootstrap",
    ),
    "a problem has its type, since when, and what waits": Shown(
        lambda: Top(with_problems(fake.hanging(), STUCK, FLOODS, {"problem": "check:database"})),
        f"|1 of 3 stuck: scheduler NodeEventType.UPDATE since {CLOCK} / "
        "+|waits: 17,000 events queued| / +|2 of 3 floods: central: grows by 528/s|",
    ),
    "the selected dispatcher has what is retrying and its dead letters": Shown(
        lambda: Top(fake.answers_of(fake.numbers(retrying=1200, dead_letters={"count": 1, "lost": 0}))),
        "|1 dead letter, 1,200 retrying, ",
    ),
    "a dispatcher that has failed says why, and the newest failure has its message and frames": Shown(
        lambda: Top(fake.failing()),
        "failed (writer)| / writer failed: JournalError: /var/lib/rm/journal: No space left / "
        "AppEventType.KILL of app_1: InvalidStateTransitionError: RMApp app_1 / +|RMApp app_1: no transition "
        'from FINISHED on KILL| / +|File "/srv/rm/apps.py", line 12, in handle self.machine.do(event)| / '
        "+AppEventType.KILL of app_2",
    ),
    "the newest failure has no message where there is no room": Shown(
        lambda: Top(with_failures(30)), "AppEventType.KILL of app_1: / +AppEventType.KILL of app_2:"
    ),
    "of many dispatchers, the chosen one is among those shown": Shown(
        lambda: Top(fake.answers_of(*(fake.numbers(f"d{each}") for each in range(30))), dispatcher="d17"),
        "18 of 30 / > d17",
        absent="d29",
    ),
    "types without a queue are sorted by time and then by rate": Shown(
        lambda: Top(
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
        lambda: Top(
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
    "a queue with a bound has its capacity": Shown(
        lambda: Top(fake.answers_of(fake.numbers(queue=NEARLY_FULL))), "capacity 100k (reject)", size=(120, 24)
    ),
    "an estimate of them says so": Shown(
        lambda: queued_by_entity(approximate=True), "|queued, about: node_17 80,011, node_3 12, ", size=(120, 24)
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
        restarted,
        "restarted 1x",
        size=(120, 24),
    ),
    "the share of CPU is of the time between two looks": Shown(
        lambda: Top(fake.answers_of(cpu_s=10.0)).look(fake.answers_of(cpu_s=11.0)), "cpu 50 %"
    ),
    "a newly selected dispatcher is not said to be idle before it was asked": Shown(
        newly_selected,
        "|TYPES: - / |not asked yet| / |RUNNING on scheduler: not asked yet| / |not asked yet|",
    ),
    "long names of dispatchers keep both ends": Shown(
        lambda: Top(fake.answers_of(*map(fake.numbers, LONG_NAMES))),
        "|> ResourceManager STARTED / +|Resource…heduler STARTED / +|Resource…r-store STARTED",
    ),
}


@pytest.mark.parametrize("shown", FRAMES.values(), ids=FRAMES)
def test_a_frame_shows(shown: Shown) -> None:
    lines = [line.plain for line in shown.top().frame(*shown.size)]

    assert_lines(lines, shown.lines)
    assert not [text for text in shown.absent.split(" / ") if text and any(text in line for line in lines)]


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 60), (81, 17)])
def test_a_frame_with_problems_has_the_size_of_the_screen(size: tuple[int, int]) -> None:
    hostile = {"problem": HOSTILE, "dispatcher": HOSTILE, "detail": HOSTILE, "waits": HOSTILE}

    lines = Top(with_problems(fake.hanging(), *[hostile] * 30)).frame(*size)

    assert_lines([line.plain for line in lines], "1 of 30 / RUNNING for 61.2 s")


@pytest.mark.parametrize(
    ("answers", "problems", "selected"),
    [
        (fake.answers_of(fake.numbers("a"), fake.numbers("b")), [], "a"),
        (
            fake.answers_of(fake.numbers("a"), fake.numbers("b")),
            [{"problem": "fails", "service": "store"}, {"problem": "floods", "dispatcher": "b"}],
            "b",
        ),
        (fake.hanging(), [FLOODS], "scheduler"),
    ],
)
def test_the_dispatcher_of_the_first_problem_is_selected_unless_another_is_stuck_or_has_failed(
    answers: fake.Answers, problems: list[dict[str, Any]], selected: str
) -> None:
    assert Top(with_problems(answers, *problems)).dispatcher == selected


def test_while_the_daemon_is_away_the_last_frame_stays_without_colours() -> None:
    top = Top(fake.calm())
    top.state.missed("rm (4711): no process is listening there", 100.0)
    top.state.missed("rm (4711): no process is listening there", 101.0)

    lines = top.frame(now_s=112.4)

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

    lines = [line.plain for line in Top(answers, filter=HOSTILE[:3]).frame(200, 40)]

    assert all(line.isprintable() for line in lines)
    [running] = [line for line in lines if "RUNNING" in line]
    assert r"\x1b[2J\x1b]0;owned\x07\n\r\x7f\x9b31m\u202e[red]" in running


def test_wide_letters_count_for_two_columns() -> None:
    Top(fake.answers_of(fake.numbers("中" * 40, running=fake.running(entity="文" * 60)))).frame()


# -- what is kept from look to look ------------------------------------------------------------------------------------


def test_a_second_without_an_answer_is_a_gap_in_the_history() -> None:
    top = Top(fake.calm()).look(fake.calm(), at_s=4.1)

    assert list(top.history().rate) == [12.0, None, None, 12.0]


def test_a_history_has_60_seconds() -> None:
    top = Top(fake.calm(), at_s=0.0).look(fake.calm(), at_s=59.0).look(fake.calm(), at_s=99.0)

    assert len(top.history().queue) == 60
    assert top.history().total == 100


def test_after_a_restart_the_history_begins_anew() -> None:
    top = restarted()

    assert list(top.state.histories) == ["central"]
    assert list(top.history().queue) == [0]


def test_choosing_a_dispatcher_stays_within_the_list() -> None:
    top = Top(fake.calm())

    top.state.select(1)
    top.state.select(1)

    assert top.state.wish.dispatcher == "scheduler"
    assert top.state.types() == []  # they were of the other one
