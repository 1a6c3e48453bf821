"""The lines of a frame, without a screen."""

from __future__ import annotations

from typing import Any

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
from dispatcher.util.figures import clock_time

from . import fake_daemon as fake

HOSTILE = "\x1b[2J\x1b]0;owned\x07\n\r\x7f\x9b31m\u202e[red]\U000e0041"


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


def state_of(answers: fake.Answers, **more: Any) -> TopState:
    state = TopState()
    state.seen(look_at(answers, **more))
    return state


def frame(state: TopState, width: int = 80, height: int = 24, now_s: float = 0.0) -> list[str]:
    lines = frame_of(state, width, height, now_s)
    assert len(lines) == height
    assert {line.cell_len for line in lines} == {width}
    return [line.plain for line in lines]


def line_with(lines: list[str], text: str) -> str:
    found = [line for line in lines if text in line]
    assert found, (text, lines)
    return found[0]


@pytest.mark.parametrize("answers", [fake.calm, fake.flooded, fake.hanging, fake.failing])
@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 60), (81, 17), (10, 3)])
def test_every_line_has_the_width_of_the_screen(answers: Any, size: tuple[int, int]) -> None:
    frame(state_of(answers()), *size)


def test_a_screen_that_is_too_small_says_how_large_it_has_to_be() -> None:
    assert "enlarge to 60 x 16 (now 59 x 16)" in frame(state_of(fake.calm()), 59, 16)[0]


@pytest.mark.parametrize("size", [(60, 16), (40, 10), (20, 5)])
def test_a_narrow_terminal_too_says_how_to_quit(size: tuple[int, int]) -> None:
    """It was the last of the keys, and cut."""
    assert "^C quit" in frame(state_of(fake.calm()), *size)[-1]


def test_a_calm_daemon_is_ready_and_runs_nothing() -> None:
    lines = frame(state_of(fake.calm()))

    assert lines[0].startswith(" resourcemanager  pid 4711  up 3 d 4 h")
    assert lines[0].endswith(" ready ")
    assert line_with(lines, "> central").split()[2:4] == ["STARTED", "0"]
    assert line_with(lines, "RUNNING").strip() == "RUNNING on central: nothing"


def test_a_hanging_handler_is_shown_first_with_its_stack() -> None:
    lines = frame(state_of(fake.hanging()))

    assert lines[0].endswith(" stuck (scheduler, 61.2 s) ")
    assert "> scheduler" in lines[3]
    assert "runs 61.2 s" in lines[3]
    at = lines.index(line_with(lines, "RUNNING for 61.2 s: NodeEventType.UPDATE of node_17"))
    assert lines[at + 4].strip() == "store/sqlite.py:58 in __enter__: self._lock.acquire()"
    assert not any(text in line for line in lines for text in ("dispatching/batches.py", "_bootstrap"))


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


def test_a_problem_is_shown_with_its_type_since_when_and_what_waits() -> None:
    lines = frame(state_of(fake.hanging(), problems=PROBLEMS))

    at = lines.index(line_with(lines, "stuck: scheduler NodeEventType.UPDATE since "))
    assert lines[at].startswith(f" 1 of 3 stuck: scheduler NodeEventType.UPDATE since {clock_time(fake.NOW_MS)}")
    assert lines[at + 1].strip() == "waits: 17,000 events queued"
    assert lines[at + 2].strip() == "2 of 3 floods: central: grows by 528/s"


@pytest.mark.parametrize("size", [(80, 24), (60, 16), (200, 60), (81, 17)])
def test_a_frame_with_problems_has_the_size_of_the_screen(size: tuple[int, int]) -> None:
    hostile = [Problem(problem=HOSTILE, dispatcher=HOSTILE, detail=HOSTILE, waits=HOSTILE)] * 30

    lines = frame(state_of(fake.hanging(), problems=hostile), *size)

    assert line_with(lines, "1 of 30 ")
    assert line_with(lines, "RUNNING for 61.2 s")


def test_the_dispatcher_of_the_first_problem_is_selected_unless_another_is_stuck_or_has_failed() -> None:
    busy = [Problem(problem="fails", service="store"), Problem(problem="floods", dispatcher="b")]

    calm = look_at(fake.answers_of(fake.numbers("a"), fake.numbers("b"))).summary
    hanging = look_at(fake.hanging()).summary

    assert calm.needs_attention() == "a"
    assert calm.needs_attention(busy) == "b"
    assert hanging.needs_attention([Problem(problem="floods", dispatcher="central")]) == "scheduler"


def test_the_selected_dispatcher_shows_what_is_retrying_and_its_dead_letters() -> None:
    central = fake.numbers(retrying=1200, dead_letters={"count": 1, "lost": 0})

    lines = frame(state_of(fake.answers_of(central)))

    assert line_with(lines, "dead letter").strip().startswith("1 dead letter, 1,200 retrying, ")


def test_a_dispatcher_that_has_failed_shows_why() -> None:
    lines = frame(state_of(fake.failing()))

    assert lines[0].endswith(" failed (writer) ")
    assert line_with(lines, "writer failed: JournalError: /var/lib/rm/journal: No space left")
    assert line_with(lines, "AppEventType.KILL of app_1: InvalidStateTransitionError: RMApp app_1")


def test_the_newest_failure_has_its_message_and_frames_where_there_is_room() -> None:
    answers = fake.failing()
    lines = frame(state_of(answers))
    at = lines.index(line_with(lines, "AppEventType.KILL of app_1: InvalidStateTransitionError"))

    assert lines[at + 1].strip() == "RMApp app_1: no transition from FINISHED on KILL"
    assert lines[at + 2].strip() == 'File "/srv/rm/apps.py", line 12, in handle self.machine.do(event)'
    assert "AppEventType.KILL of app_2" in lines[at + 3]

    answers["/dispatchers/writer/failures"] = fake.page(*map(fake.failure, range(1, 30)))
    assert "AppEventType.KILL of app_2" in frame(state_of(answers))[at + 1]


def test_with_more_dispatchers_than_lines_the_chosen_one_is_among_those_shown() -> None:
    answers = fake.answers_of(*(fake.numbers(f"d{number}") for number in range(30)))

    lines = frame(state_of(answers, dispatcher="d17"))

    assert line_with(lines, "> d17")
    assert line_with(lines, "18 of 30")
    assert not any("d29" in line for line in lines)


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        (Sort.QUEUED, "NodeEventType.UPDATE"),
        (Sort.RATE, "NodeEventType.UPDATE"),
        (Sort.TIME, "NodeEventType.UPDATE"),
        (Sort.FAILED, "AppEventType.KILL"),
    ],
)
def test_types_are_sorted_the_greatest_first(sort: Sort, first: str) -> None:
    state = state_of(fake.calm())

    state.wish = Wish(sort=sort)

    lines = frame(state)
    assert lines[lines.index(line_with(lines, " TYPES")) + 1].startswith(f" {first}")


def test_types_without_a_queue_are_sorted_by_time_and_then_by_rate() -> None:
    answers = fake.calm()
    answers["/dispatchers/central/types"] = fake.page(
        fake.type_numbers("A", "IDLE", rate_10s=0.0, handling_share_10s=0.0),
        fake.type_numbers("B", "BRIEF", rate_10s=900.0, handling_share_10s=0.1),
        fake.type_numbers("C", "RARE", rate_10s=0.0, handling_share_10s=None),
        fake.type_numbers("D", "BRIEF", rate_10s=901.0, handling_share_10s=0.1),
        fake.type_numbers("E", "LONG", rate_10s=1.0, handling_share_10s=0.7),
    )

    lines = frame(state_of(answers))

    at = lines.index(line_with(lines, " TYPES")) + 1
    assert [line.split()[0] for line in lines[at : at + 3]] == ["E.LONG", "D.BRIEF", "B.BRIEF"]


def test_failures_per_second_are_beside_their_count() -> None:
    central = fake.numbers(failed=12, failure_rate={"1s": 9.0, "10s": 3.2, "60s": 0.1})
    answers = fake.answers_of(central)
    answers["/dispatchers/central/types"] = fake.page(fake.type_numbers("A", "B", failed=12, failed_rate_10s=3.2))

    lines = frame(state_of(answers), width=120)

    assert line_with(lines, "LAST FAILURES").strip() == "LAST FAILURES, newest first: 12 since start, 3.2/s"
    assert line_with(lines, "FAIL/s").split()[-2:] == ["FAILED", "FAIL/s"]
    assert line_with(lines, " A.B ").split()[-2:] == ["12", "3.2"]


@pytest.mark.parametrize(
    ("approximate", "shown"),
    [
        (False, "queued: node_17 80,011, node_3 12, "),
        (True, "queued, about: node_17 80,011, node_3 12, "),
    ],
)
def test_the_entities_that_flood_the_queue_are_named(approximate: bool, shown: str) -> None:
    items = [{"entity": "node_17", "queued": 80_011}, {"entity": "node_3", "queued": 12}]
    queued = Queued[QueuedEntity].model_validate({"items": items, "approximate": approximate})

    lines = frame(state_of(fake.flooded(), queued=queued), width=120)

    assert line_with(lines, "node_3 ").strip().startswith(shown)


def test_a_filter_takes_part_of_a_name_in_any_case() -> None:
    state = state_of(fake.calm())
    state.filter = "container"

    lines = frame(state)

    assert "TYPES 'container': 2/5" in line_with(lines, " TYPES")
    assert not any("NodeEventType.UPDATE" in line for line in lines)


def test_an_entity_takes_the_place_of_what_runs_and_failed() -> None:
    state = state_of(fake.failing(), entity=EntityDetails.model_validate(fake.ENTITY))
    state.wish = Wish(entity="app_17")

    lines = frame(state)

    assert line_with(lines, "ENTITY app_17 (rmapp): RUNNING since")
    assert line_with(lines, "#812  ACCEPTED -> RUNNING on ATTEMPT_REGISTERED")
    assert line_with(lines, "#640  SUBMITTED on KILL: no transition from SUBMITTED on KILL")
    assert not any("LAST FAILURES" in line for line in lines)


def test_an_event_that_made_no_transition_is_in_the_history_too() -> None:
    rows = fake.page({"at": 0, "seq": 7, "from_state": "", "event_type": "PING", "to_state": None, "valid": True})
    state = state_of(
        fake.calm(), entity=EntityDetails.model_validate({**fake.ENTITY, "history": rows, "complete": False})
    )
    state.wish = Wish(entity="app_17")

    lines = frame(state)

    assert line_with(lines, "#7  no transition on PING")
    assert line_with(lines, "older rows are no longer kept")


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
    state = state_of(answers)
    state.filter = HOSTILE[:3]

    lines = frame_of(state, 200, 40, 0.0)

    assert all(line.plain.isprintable() for line in lines)
    assert r"\x1b[2J\x1b]0;owned\x07\n\r\x7f\x9b31m\u202e[red]" in line_with(frame(state, 200, 40), "RUNNING")


def test_wide_letters_count_for_two_columns() -> None:
    answers = fake.answers_of(fake.numbers("中" * 40, running=fake.running(entity="文" * 60)))

    frame(state_of(answers))


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
    state = state_of(fake.calm(), at_s=1.0)

    state.seen(look_at(fake.answers_of(fake.numbers(), pid=4712, uptime_s=1.0), at_s=2.0))

    assert list(state.histories) == ["central"]
    assert list(state.histories["central"].queue) == [0]
    assert "restarted 1x" in frame(state, 120)[0]


def test_the_share_of_cpu_is_of_the_time_between_two_looks() -> None:
    state = state_of(fake.answers_of(cpu_s=10.0), at_s=1.0)

    state.seen(look_at(fake.answers_of(cpu_s=11.0), at_s=3.0))

    assert "cpu 50 %" in frame(state)[0]


def test_choosing_a_dispatcher_stays_within_the_list() -> None:
    state = state_of(fake.calm())

    state.select(1)
    state.select(1)

    assert state.wish.dispatcher == "scheduler"
    assert state.look is not None
    assert state.look.types == ()  # they were of the other one


def test_a_newly_selected_dispatcher_is_not_said_to_be_idle_before_it_was_asked() -> None:
    """In a pause, its types, run and failures were "none" until the pause ended."""
    state = state_of(fake.hanging(), dispatcher="central")
    state.is_paused = True

    state.select(1)

    lines = frame(state)
    assert line_with(lines, "RUNNING on scheduler: not asked yet")
    assert line_with(lines, " TYPES: -")
    assert [line.strip() for line in lines].count("not asked yet") == 2


def test_long_names_of_dispatchers_keep_both_ends() -> None:
    names = ("ResourceManager", "ResourceManager-scheduler", "ResourceManager-store")

    lines = frame(state_of(fake.answers_of(*map(fake.numbers, names))))

    assert [line[2:18].strip() for line in lines[2:5]] == ["ResourceManager", "Resource…heduler", "Resource…r-store"]
