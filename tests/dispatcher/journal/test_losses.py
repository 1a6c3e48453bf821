"""Accepted events that are in no file any more: what a start and a recovery say, and what a start does about it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest

from dispatcher import AsyncDispatcher, JournalConfig, JournalLossError, JournalWriter
from dispatcher.journal import recover, verify
from dispatcher.journal.format.outstanding import Loss
from dispatcher.journal.format.segments import MANIFEST, open_segment_path, segment_path, segments
from dispatcher.supervision.health import Health

from ...kit.commands import run_command
from .conftest import after_a_crash, crash_amid, files, frames_of, write_event

pytestmark = pytest.mark.long

Open = Callable[..., JournalWriter]

EACH = 3
"""Accepted events in a segment of `crashed`."""


def name(number: int) -> str:
    return f"segment-{number:08d}.journal"


def accept(writer: JournalWriter, count: int = EACH) -> None:
    for _ in range(count):
        writer.append_accepted(b'{"n":1}')


def contents(folder: Path) -> dict[str, bytes]:
    return {file: (folder / file).read_bytes() for file in files(folder)}


@pytest.fixture
def crashed(open_writer: Open, journal: Path, tmp_path: Path) -> Path:
    """Four closed segments with three accepted events each, and an open one. No event was handled."""
    writer = open_writer(write_ahead=True)
    for _ in range(4):
        accept(writer)
        writer.roll()
    accept(writer)
    return after_a_crash(journal, tmp_path / "crashed")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut_at_a_frame(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: frames_of(path)[1].offset])


def cut_amid_a_frame(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: frames_of(path)[1].offset + 9])


DAMAGES = [zero, cut_at_a_frame, cut_amid_a_frame, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_start_without_a_segment_is_refused_until_the_loss_is_accepted(
    crashed: Path, open_writer: Open, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], number: int
) -> None:
    """Nothing reported it: the start went on without the events."""
    damage(segment_path(crashed, number))
    first = (number - 1) * EACH + 1
    loss = Loss(name(number), number, first, first + EACH - 1)
    text = f"{name(number)}: accepted events {first} to {first + EACH - 1} are lost"
    before = contents(crashed)

    for _ in range(2):
        with pytest.raises(JournalLossError, match=f"{text}.*on_loss: start") as refused:
            open_writer(crashed, write_ahead=True)
        assert refused.value.losses == (loss,)
        assert any(text in message for message in caplog.messages)
        assert contents(crashed) == before
        caplog.clear()

    assert [recover(crashed).losses, recover(crashed).losses] == [(loss,), (loss,)]
    with pytest.raises(JournalLossError, match=text):
        open_writer(crashed, write_ahead=True)

    writer = open_writer(crashed, write_ahead=True, on_loss="start")
    assert writer.losses == (loss,)
    left = [seq for seq in range(1, 5 * EACH + 1) if seq not in loss.seqs]
    assert [accepted.seq for accepted in writer.recovered] == left
    assert writer.append_accepted(b"{}") == 5 * EACH + 1
    writer.close()
    again = open_writer(crashed, write_ahead=True)
    assert [accepted.seq for accepted in again.recovered] == [*left, 5 * EACH + 1]
    assert again.losses == recover_copy(crashed) == ()


def recover_copy(journal: Path) -> tuple[Loss, ...]:
    return recover(shutil.copytree(journal, journal.with_name("copy"), dirs_exist_ok=True)).losses


def test_several_segments_are_named_with_all_their_events(crashed: Path) -> None:
    segment_path(crashed, 2).unlink()
    segment_path(crashed, 3).unlink()
    zero(segment_path(crashed, 4))

    assert recover(crashed).losses == (Loss(f"{name(2)} to {name(3)}, {name(4)}", 2, 4, 12),)


def test_a_damaged_frame_loses_its_own_events_only(crashed: Path) -> None:
    frame = frames_of(segment_path(crashed, 2))[2]
    data = bytearray(segment_path(crashed, 2).read_bytes())
    data[frame.end - 1] ^= 1
    segment_path(crashed, 2).write_bytes(data)

    assert recover(crashed).losses == (Loss(name(2), 2, 5, 5),)
    assert str(recover(crashed).losses[0]) == f"{name(2)}: accepted event 5 is lost"


@pytest.mark.parametrize("damage", DAMAGES)
def test_behind_the_last_segment_nothing_tells_how_many_events_are_lost(
    crashed: Path, open_writer: Open, damage: Callable[[Path], None]
) -> None:
    open_writer(crashed, write_ahead=True).close()
    last = segments(crashed)[-1]
    assert last == segment_path(crashed, 5)
    damage(last)

    with pytest.raises(JournalLossError, match=f"{name(5)}: accepted events from number 13 on may be lost"):
        open_writer(crashed, write_ahead=True)
    writer = open_writer(crashed, write_ahead=True, on_loss="start")
    assert [accepted.seq for accepted in writer.recovered] == list(range(1, 13))
    assert writer.append_accepted(b"{}") == 13
    writer.close()

    again = open_writer(crashed, write_ahead=True)
    assert (len(again.recovered), again.losses) == (13, ())


def test_a_missing_open_segment_is_a_loss(crashed: Path) -> None:
    open_segment_path(crashed, 5).unlink()

    assert recover(crashed).losses == (Loss(name(5), 5, 13, None),)


def test_a_torn_end_of_the_open_segment_is_none(crashed: Path, open_writer: Open) -> None:
    path = open_segment_path(crashed, 5)
    path.write_bytes(path.read_bytes()[:-2])

    assert open_writer(crashed, write_ahead=True).losses == ()


def test_a_damaged_frame_amid_the_open_segment_is_a_loss(crashed: Path) -> None:
    path = open_segment_path(crashed, 5)
    frame = frames_of(path)[1]
    data = bytearray(path.read_bytes())
    data[frame.end - 1] ^= 1
    path.write_bytes(data)

    assert recover(crashed).losses == (Loss(name(5), 5, 13, 13),)


@pytest.mark.parametrize(("damage", "durability"), [*((damage, "none") for damage in DAMAGES), (zero, "sync")])
def test_events_that_were_handled_are_not_lost(
    journal: Path, open_writer: Open, damage: Callable[[Path], None], durability: str
) -> None:
    """Whether their segment is no longer needed, or later rows tell."""
    writer = open_writer(write_ahead=True, durability=durability)
    for first in (1, 4, 7):
        accept(writer)
        write_event(writer, accepted_seq=first)
        write_event(writer, accepted_seq=first + 1)
        writer.flush()
        writer.roll()
        write_event(writer, accepted_seq=first + 2)
        writer.flush()
    writer.close()
    damage(segment_path(journal, 2))

    assert recover(journal).losses == ()
    assert open_writer(write_ahead=True).losses == ()


def test_rows_that_are_lost_are_no_loss_of_events(journal: Path, open_writer: Open) -> None:
    writer = open_writer(write_ahead=True)
    accept(writer)
    writer.roll()
    write_event(writer, accepted_seq=1)
    writer.flush()
    writer.roll()
    accept(writer)
    writer.close()
    zero(segment_path(journal, 2))

    again = open_writer(write_ahead=True)

    assert ([accepted.seq for accepted in again.recovered], again.losses) == ([1, 2, 3, 4, 5, 6], ())


def test_segments_that_retention_removed_are_not_lost(journal: Path, open_writer: Open) -> None:
    writer = open_writer(write_ahead=True, retention_bytes=1)
    for first in (1, 4):
        accept(writer)
        for seq in range(first, first + EACH):
            write_event(writer, accepted_seq=seq)
        writer.flush()
        writer.roll()
    accept(writer)
    writer.close()
    assert not segment_path(journal, 1).exists()

    assert open_writer(write_ahead=True).losses == ()


def test_what_was_handled_out_of_order_is_not_lost_with_its_row(
    journal: Path, open_writer: Open, tmp_path: Path
) -> None:
    """A daemon that was killed while retention removed segments refused to start."""
    writer = open_writer(write_ahead=True, retention_bytes=1)
    accept(writer)
    write_event(writer, accepted_seq=2)
    writer.flush()
    writer.roll()
    write_event(writer, accepted_seq=3)
    writer.flush()
    accept(writer)
    writer.roll()
    write_event(writer, accepted_seq=1)
    writer.flush()
    writer.log.retain()  # the closed segment that is left still names event 1 as the oldest
    assert [path.name for path in segments(journal)] == [name(2)]
    crashed = after_a_crash(journal, tmp_path / "crashed")

    again = open_writer(crashed, write_ahead=True)

    assert ([accepted.seq for accepted in again.recovered], again.losses) == ([4, 5, 6], ())


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


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_journal_without_accepted_events_loses_none(
    journal: Path, open_writer: Open, damage: Callable[[Path], None]
) -> None:
    writer = open_writer()
    for _ in range(2):
        write_event(writer)
        writer.flush()
        writer.roll()
    writer.close()
    damage(segment_path(journal, 2))

    assert recover(journal).losses == ()


def test_segments_of_an_earlier_release_tell_by_their_frames(crashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their starts have no `first_accepted`, and their ends no `outstanding_from`."""
    monkeypatch.setattr("dispatcher.journal.format.outstanding.START", -1)
    zero(segment_path(crashed, 3))

    assert recover(crashed).losses == (Loss(name(3), 3, 7, 9),)


def test_a_loss_survives_the_repairs_of_everything_else(crashed: Path) -> None:
    """The end that recovery gave the open segment said that no earlier one is needed."""
    zero(segment_path(crashed, 2))
    (crashed / MANIFEST).write_bytes(b"damaged")
    losses = recover(crashed).losses

    assert losses == (Loss(name(2), 2, 4, 6),)
    assert recover(crashed).losses == losses
    assert verify(crashed).open_segments == ()


def test_the_command_names_what_is_lost_and_exits_with_1(crashed: Path) -> None:
    segment_path(crashed, 3).unlink()

    for _ in range(2):
        done = run_command("journal", "recover", crashed)

        assert done.returncode == 1
        assert f"{name(3)}: accepted events 7 to 9 are lost\n" in done.stderr


def test_health_and_a_metric_tell_of_a_loss_that_was_accepted(crashed: Path) -> None:
    zero(segment_path(crashed, 2))
    config = JournalConfig(write_ahead=True, on_loss="start")
    dispatcher = AsyncDispatcher(name="shop", journal=JournalWriter(crashed, config))
    asked = Health(lambda: [dispatcher.view])

    [warning] = asked.ready().warnings

    assert (warning.warning, warning.dispatcher) == ("journal_lost", "shop")
    assert warning.detail == f"{name(2)}: accepted events 4 to 6 are lost"
    assert asked.live().is_ok
    assert '"warnings": [{"warning": "journal_lost"' in asked.live().to_json()
    assert dispatcher.stats().journal_lost == {(name(2), "4", "6"): 3}
    dispatcher.stop()
