"""Accepted events that are in no file any more: what a start and a recovery say, and what a start does about it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest

from dispatcher import AsyncDispatcher, JournalConfig, JournalLossError, JournalWriter, health
from dispatcher.journal import recover

from ...kit.commands import run_here
from ...kit.journals import JournalStage, Open, after_a_crash, contents, crash_amid, write_event
from ...kit.scenarios import play

pytestmark = pytest.mark.long


CRASHED = "open write_ahead=true | log 4 | accept 3 | crash"
"""Four closed segments with three accepted events each, and an open one. No event was handled."""
EACH = 3
DAMAGES = ["zero {0}", "cut {0}", "cut {0} 9", "unlink {0}"]
HANDLED = (
    "accept 3 | event seq=1 | segment seq=2 | frame seq=3 | accept 3 | event seq=4 | segment seq=5 | frame seq=6"
    " | accept 3 | event seq=7 | segment seq=8 | frame seq=9 | close"
)
PROMISES = {
    "several segments are named with all their events": f"{CRASHED} | unlink 2 3 | zero 4 -> losses 2_to_3,_4:4-12",
    "a damaged frame loses its own events only": f"{CRASHED} | flip 2 2 -> losses 2:5-5",
    "a missing open segment is a loss": f"{CRASHED} | unlink .5 -> losses 5:13-",
    "a torn end of the open segment is none": f"{CRASHED} | tear .5 2 | open write_ahead=true -> lost",
    "a damaged frame amid the open segment is a loss": f"{CRASHED} | flip .5 1 -> losses 5:13-13",
    # The end that recovery gave the open segment said that no earlier one is needed.
    "a loss survives the repairs of everything else": (
        f"{CRASHED} | zero 2 | zero json -> losses 2:4-6 | recover -> losses 2:4-6 ; closed 1 2 3 4 5"
    ),
    "rows that are lost are no loss of events": (
        "open write_ahead=true | log | segment seq=1 | accept 3 | close | zero 2"
        " | open write_ahead=true -> recovered 1 2 3 4 5 6 ; lost"
    ),
    "segments that retention removed are not lost": (
        "open write_ahead=true retention_bytes=1 | accept 3 | event 2 seq=1 | segment seq=3"
        " | accept 3 | event 2 seq=4 | segment seq=6 | accept 3 | close -> closed 3 | open write_ahead=true -> lost"
    ),
    # The closed segment that is left still names event 1 as the oldest. A daemon killed then refused to start.
    "what was handled out of order is not lost with its row": (
        "open write_ahead=true retention_bytes=1 | accept 3 | segment seq=2 | frame seq=3 | accept 3 | roll"
        " | frame seq=1 | retain -> closed 2 | crash | open write_ahead=true -> recovered 4 5 6 ; lost"
    ),
    "events that were handled under sync are not lost": (
        f'open write_ahead=true durability="sync" | {HANDLED} | zero 2 -> losses | open write_ahead=true -> lost'
    ),
} | {
    f"{promise}: {damage}": script.format(damage.format(2))
    for damage in DAMAGES
    for promise, script in {
        "a journal without accepted events loses none": "open | segment 2 | close | {0} -> losses",
        # Whether their segment is no longer needed, or later rows tell.
        "events that were handled are not lost": (
            f'open write_ahead=true durability="none" | {HANDLED} | {{0}} -> losses | open write_ahead=true -> lost'
        ),
    }.items()
}


@pytest.mark.parametrize("script", PROMISES.values(), ids=PROMISES)
def test_what_is_lost(stage: JournalStage, script: str) -> None:
    play(stage, script)


@pytest.fixture
def crashed(stage: JournalStage) -> JournalStage:
    play(stage, CRASHED)
    return stage


def name(number: int) -> str:
    return f"segment-{number:08d}.journal"


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_start_without_a_segment_is_refused_until_the_loss_is_accepted(
    crashed: JournalStage, open_writer: Open, caplog: pytest.LogCaptureFixture, damage: str, number: int
) -> None:
    """Nothing reported it: the start went on without the events."""
    play(crashed, damage.format(number))
    folder = crashed.folder
    first = (number - 1) * EACH + 1
    last = first + EACH - 1
    loss = (name(number), number, first, last)
    text = f"{name(number)}: accepted events {first} to {last} are lost"
    before = contents(folder)

    for _ in range(2):
        with pytest.raises(JournalLossError, match=f"{text}.*on_loss: start") as refused:
            open_writer(folder, write_ahead=True)
        assert refused.value.losses == (loss,)
        assert any(text in message for message in caplog.messages)
        assert contents(folder) == before
        caplog.clear()

    assert [recover(folder).losses, recover(folder).losses] == [(loss,), (loss,)]
    with pytest.raises(JournalLossError, match=text):
        open_writer(folder, write_ahead=True)

    writer = open_writer(folder, write_ahead=True, on_loss="start")
    assert writer.losses == (loss,)
    left = [seq for seq in range(1, 5 * EACH + 1) if not first <= seq <= last]
    assert [accepted.seq for accepted in writer.recovered] == left
    assert writer.append_accepted(b"{}") == 5 * EACH + 1
    writer.close()
    again = open_writer(folder, write_ahead=True)
    assert [accepted.seq for accepted in again.recovered] == [*left, 5 * EACH + 1]
    assert again.losses == recover(shutil.copytree(folder, folder.with_name("copy"))).losses == ()


@pytest.mark.parametrize("damage", DAMAGES)
def test_behind_the_last_segment_nothing_tells_how_many_events_are_lost(crashed: JournalStage, damage: str) -> None:
    play(crashed, "open write_ahead=true | close -> closed 1 2 3 4 5 | " + damage.format(5))

    with pytest.raises(JournalLossError, match=f"{name(5)}: accepted events from number 13 on may be lost"):
        play(crashed, "open write_ahead=true")

    play(
        crashed,
        'open write_ahead=true on_loss="start" -> recovered 1 2 3 4 5 6 7 8 9 10 11 12 ; next 13 | close'
        " | open write_ahead=true -> recovered 1 2 3 4 5 6 7 8 9 10 11 12 13 ; lost",
    )


def test_a_single_event_that_is_lost_is_named_by_its_number(crashed: JournalStage) -> None:
    play(crashed, "flip 2 2")

    assert list(map(str, recover(crashed.folder).losses)) == [f"{name(2)}: accepted event 5 is lost"]


def accept(writer: JournalWriter) -> None:
    for _ in range(EACH):
        writer.append_accepted(b"{}")


def handle_most(writer: JournalWriter, *, is_empty: bool) -> list[int]:
    """Accept events in several segments and handle events 1 to 8; returns the accepted seqs of the rest.

    `is_empty`: the open segment is empty. Otherwise it holds the rows. Retention has removed nothing yet.
    """
    for _ in range(3):
        accept(writer)
        writer.log.roll()
    if not is_empty:
        accept(writer)
    for seq in range(1, 9):
        write_event(writer, accepted_seq=seq)
    writer.flush()
    if not is_empty:
        return [9, 10, 11, 12]
    with patch.object(writer.log, "_retain"):
        writer.log.roll()
    return [9]


@pytest.mark.parametrize(
    ("operation", "is_empty"),
    [(JournalWriter.roll, False), (JournalWriter.close, False), (JournalWriter.close, True)],
)
def test_a_kill_at_any_moment_of_a_roll_or_a_close_is_no_loss(
    open_writer: Open, tmp_path: Path, operation: Callable[[JournalWriter], None], is_empty: bool
) -> None:
    for changes in count():
        writer = open_writer(tmp_path / f"journal {changes}", write_ahead=True, retention_bytes=1)
        left = handle_most(writer, is_empty=is_empty)
        crashed = tmp_path / f"crashed {changes}"
        crash_amid(lambda writer=writer: operation(writer), writer.path, crashed, changes)  # type: ignore[misc]
        writer.close()
        if not crashed.exists():
            break

        again = open_writer(crashed, write_ahead=True)

        assert ([accepted.seq for accepted in again.recovered], again.losses) == (left, ())
    assert changes > 3


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_kill_at_any_moment_of_a_start_is_no_loss(open_writer: Open, tmp_path: Path, is_empty: bool) -> None:
    writer = open_writer(write_ahead=True, retention_bytes=1)
    left = handle_most(writer, is_empty=is_empty)
    for changes in count():
        journal = after_a_crash(writer.path, tmp_path / f"journal {changes}")
        crashed = tmp_path / f"crashed {changes}"
        crash_amid(lambda folder=journal: open_writer(folder, write_ahead=True), journal, crashed, changes)  # type: ignore[misc]
        if not crashed.exists():
            break

        again = open_writer(crashed, write_ahead=True)

        assert ([accepted.seq for accepted in again.recovered], again.losses) == (left, ())
    assert changes > 3


def test_segments_of_an_earlier_release_tell_by_their_frames(
    crashed: JournalStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their starts have no `first_accepted`, and their ends no `outstanding_from`."""
    monkeypatch.setattr("dispatcher.journal.format.outstanding.START", -1)

    play(crashed, "zero 3 -> losses 3:7-9")


def test_the_command_names_what_is_lost_and_exits_with_1(crashed: JournalStage) -> None:
    play(crashed, "unlink 3")

    for _ in range(2):
        done = run_here("journal", "recover", crashed.folder)

        assert done.code == 1
        assert f"{name(3)}: accepted events 7 to 9 are lost\n" in done.err


@pytest.mark.usefixtures("alone")
def test_health_and_a_metric_tell_of_a_loss_that_was_accepted(crashed: JournalStage) -> None:
    play(crashed, "zero 2")
    config = JournalConfig(write_ahead=True, on_loss="start")
    dispatcher = AsyncDispatcher(name="shop", journal=JournalWriter(crashed.folder, config))

    [warning] = health.ready().warnings

    assert (warning.warning, warning.dispatcher) == ("journal_lost", "shop")
    assert warning.detail == f"{name(2)}: accepted events 4 to 6 are lost"
    assert health.live().is_ok
    assert '"warnings": [{"warning": "journal_lost"' in health.live().to_json()
    assert dispatcher.stats().journal_lost == {(name(2), "4", "6"): 3}
    dispatcher.stop()
