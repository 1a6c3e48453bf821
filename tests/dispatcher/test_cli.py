from __future__ import annotations

from pathlib import Path

import pytest

from dispatcher import Event, JournalWriter

from ..commands import run_command
from .conftest import Work


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    writer = JournalWriter(tmp_path / "journal")
    for _ in range(3):
        writer.begin(1)
        writer.event("central", Event(Work.DO), 1, 1, 5, 5, "handled")
    writer.close()
    return writer.path


def test_help_lists_the_commands_of_all_packages() -> None:
    shown = run_command("--help")

    assert shown.returncode == 0
    for command in ("run", "replay", "report", "journal", "graph"):
        assert command in shown.stdout


def test_verify_passes_a_sound_journal(journal: Path) -> None:
    done = run_command("journal", "verify", journal)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "3 events, 0 transitions, 0 problems\n"


def test_verify_names_the_line_that_is_wrong_and_exits_with_1(journal: Path) -> None:
    (segment,) = (journal / "events").glob("*.jsonl")
    lines = segment.read_text().splitlines(keepends=True)
    segment.write_text(lines[0] + lines[2])

    done = run_command("journal", "verify", journal)

    assert done.returncode == 1
    assert done.stderr == f"{segment}, line 2: seq 3 follows 1\n"


def test_tail_prints_the_last_events(journal: Path) -> None:
    done = run_command("journal", "tail", "-n", 2, journal)

    assert [line[:9] for line in done.stdout.splitlines()] == ['{"seq": 2', '{"seq": 3']


def test_recover_closes_what_a_crash_left_open(journal: Path) -> None:
    (segment,) = (journal / "events").glob("*.jsonl")
    torn = segment.with_name(f".{segment.name}.open")
    torn.write_bytes(segment.read_bytes()[:-5])
    segment.unlink()

    done = run_command("journal", "recover", journal)

    assert done.stdout.startswith(f"{segment.name}: kept 2 rows, cut ")
    assert run_command("journal", "verify", journal).returncode == 0


@pytest.mark.parametrize(
    "args",
    [
        ("journal", "verify", "nowhere"),
        ("report", "nowhere"),
        ("replay", "nowhere"),
        ("run", "nowhere.yaml"),
        ("replay", "nowhere", "--config", "nowhere.yaml"),
    ],
    ids=" ".join,
)
def test_a_users_mistake_is_one_line_and_exit_code_2(args: tuple[str, ...], tmp_path: Path) -> None:
    done = run_command(*args, cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr.startswith("dispatcher: nowhere")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
