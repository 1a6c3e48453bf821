from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType

import pytest

from dispatcher import AsyncDispatcher, JournalConfig, JournalWriter, Retry

from ..journal_rows import begin, end
from ..kit import Work
from ..kit.commands import COMMAND, ROOT, Ended, run_here
from ..kit.journals import Job, Posted, after_a_crash, flip, frames_of

pytestmark = pytest.mark.long


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    writer = JournalWriter(tmp_path / "journal")
    for _ in range(3):
        begin(writer, 1)
        end(writer, "central", "Work", "DO", "handled", queue_ns=5, handling_ns=5)
        writer.flush()
    writer.close()
    return writer.path


@pytest.mark.parametrize(("code", "args"), [("", ["--help"]), ("raise ValueError", ["replay", "workload.json"])])
def test_another_package_of_the_same_name_takes_only_its_commands_with_it(
    tmp_path: Path, code: str, args: list[str]
) -> None:
    """A program with a package `pipeline` of its own ended even `dispatcher --help` with a traceback."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    done = subprocess.run([*COMMAND, *args], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    if args == ["--help"]:
        assert (done.returncode, "sweep cannot be loaded" in done.stdout) == (0, True)
        assert all(command in done.stdout for command in ("run", "replay", "report", "journal", "graph"))
    else:
        assert done.returncode == 2
        assert done.stderr == (
            f"dispatcher: replay cannot be loaded: it is in the package pipeline at {ROOT / 'pipeline'}, but Python "
            f"finds another pipeline at {tmp_path / 'pipeline'}; rename that one, or take it off PYTHONPATH\n"
        )


def test_verify_names_what_is_damaged_and_exits_with_1(journal: Path) -> None:
    (segment,) = journal.glob("segment-*")
    second = frames_of(segment)[2]
    flip(segment, second.end - 1)

    done = run_here("journal", "verify", journal)

    length = second.end - second.offset
    assert done.code == 1
    first_line = done.err.splitlines()[0]
    assert first_line == f"{segment.name}: {length} bytes from byte {second.offset} on hold no intact frame"
    assert f"{segment.name}, frame 3: seq 3 follows 1" in done.err
    assert done.out.startswith("2 events, 0 transitions, ")


def test_tail_prints_the_last_events(journal: Path) -> None:
    done = run_here("journal", "tail", "-n", 2, journal)

    assert [line[:9] for line in done.out.splitlines()] == ['{"seq": 2', '{"seq": 3']


def test_history_prints_what_happened_to_an_entity(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with contextlib.closing(JournalWriter(path)) as writer:
        for number in range(6):
            begin(writer, 1_700_000_000_000_000_000 + number * 1_500_000)
            error = "ValueError: no" if number == 4 else None
            outcome = "handled" if error is None else "failed"
            entity = f"job_{number % 2}"
            if number != 4:
                writer.transition("Job", entity, Work.DO, Work.DO, Work.DO, valid=number != 2)
            end(writer, "central", "Work", "DO", outcome, entity=entity, queue_ns=5000, handling_ns=7, error=error)

    table = run_here("journal", "history", path, "job_0")
    pages = run_here("journal", "history", path, "job_0", "--limit", 1, "--before-seq", 5, "--format", "json")

    assert (table.code, table.err) == (0, "")
    assert [line.split() for line in table.out.splitlines()] == [
        ["AT", "SEQ", "MACHINE", "FROM", "EVENT", "TO", "WAITED", "HANDLED", "IN", "REMARKS"],
        ["2023-11-14T22:13:20.006000Z", "5", "-", "-", "Work.DO", "-", "0.005", "ms", "0.000", "ms", "failed,",
         "ValueError:", "no"],
        ["2023-11-14T22:13:20.003000Z", "3", "Job", "DO", "Work.DO", "DO", "0.005", "ms", "0.000", "ms", "rejected"],
        ["2023-11-14T22:13:20.000000Z", "1", "Job", "DO", "Work.DO", "DO", "0.005", "ms", "0.000", "ms"],
    ]  # fmt: skip
    [row] = map(json.loads, pages.out.splitlines())
    assert (row["seq"], row["machine"], row["valid"], row["event_entity"]) == (3, "Job", False, "job_0")
    assert pages.err == "older rows may exist: --before-seq 3\n"


def test_history_names_an_entity_that_it_does_not_find_and_a_missing_journal(journal: Path, tmp_path: Path) -> None:
    unknown = run_here("journal", "history", journal, "job_1")
    missing = run_here("journal", "history", tmp_path / "none", "job_1")

    assert (unknown.code, unknown.out) == (1, "")
    assert unknown.err == f"{journal}: no rows about job_1\n"
    assert missing.code != 0
    assert missing.err == f"dispatcher: {tmp_path / 'none'}: no such journal folder\n"


def test_history_reads_a_damaged_journal_and_says_so(journal: Path) -> None:
    (segment,) = journal.glob("segment-*")
    segment.write_bytes(segment.read_bytes()[:-40])

    done = run_here("journal", "history", journal, "job_1")

    assert done.code == 1
    assert done.err.startswith(f"{segment.name}: ")


def test_recover_closes_what_a_crash_left_open(journal: Path) -> None:
    (segment,) = journal.glob("segment-*")
    third = frames_of(segment)[3]
    segment.with_name(f".{segment.name}.open").write_bytes(segment.read_bytes()[: third.end - 5])
    segment.unlink()

    done = run_here("journal", "recover", journal)

    cut = third.end - 5 - third.offset
    assert done.out == f"{segment.name}: closed: kept 2 events, cut {cut} bytes\n"
    assert run_here("journal", "verify", journal).out == "2 events, 0 transitions, 0 problems\n"
    assert run_here("journal", "recover", journal).out == "nothing to repair: no segment is open\n"


DAEMON = """
from dataclasses import dataclass
from enum import Enum

from dispatcher import AsyncDispatcher


class Job(Enum):
    START = 1


@dataclass
class JobEvent:
    type: Job
    name: str


def make(journal):
    dispatcher = AsyncDispatcher(journal=journal)
    dispatcher.register(Job, lambda event: print(event.name, dispatcher.is_redelivering()), events=JobEvent)
    return dispatcher


def make_another(journal):
    return AsyncDispatcher()


def fail(journal):
    raise KeyError("missing")
"""

LEAVE_UNHANDLED = """
import os
from dispatcher import JournalConfig, JournalWriter
import daemon

dispatcher = daemon.make(JournalWriter("journal", JournalConfig(write_ahead=True)))
for name in ("first", "second"):
    assert dispatcher.post(daemon.JobEvent(daemon.Job.START, name))
os._exit(0)
"""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a daemon's module, and the journal that it left with two events accepted and not handled."""
    folder = tmp_path_factory.mktemp("crashed")
    (folder / "daemon.py").write_text(DAEMON)
    subprocess.run([sys.executable, "-c", LEAVE_UNHANDLED], cwd=folder, check=True, timeout=60)
    return folder


Recover = Callable[..., Ended]


@pytest.fixture
def recover(crashed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recover]:
    """The command in a copy of that folder."""
    folder = shutil.copytree(crashed, tmp_path / "crashed")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield lambda *args: run_here("journal", "recover", "journal", *args)
    sys.modules.pop("daemon", None)


def test_recover_prints_the_events_that_were_accepted_and_not_handled(recover: Recover) -> None:
    done = recover()

    assert [json.loads(line)["event"]["name"] for line in done.out.splitlines()[1:]] == ["first", "second"]
    assert done.err == "2 events were accepted and not handled\n"


def test_recover_does_not_count_the_time_that_a_key_is_due_next(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True))
    with AsyncDispatcher(journal=writer) as dispatcher:
        dispatcher.register(Job, print, events=Posted)
        dispatcher.post_every(3600, Posted(Job.STARTED, 1), key="nightly")
        crashed = after_a_crash(writer.path, tmp_path / "crashed")

    done = run_here("journal", "recover", crashed)

    assert (done.code, done.out.splitlines()[1:], done.err) == (0, [], "")


def test_recover_hands_them_to_the_handlers_of_the_dispatcher_that_it_is_given(recover: Recover) -> None:
    done = recover("--with", "daemon:make")

    assert done.out.splitlines()[1:] == ["first True", "second True", "2 events handled, 0 failed, 0 left"]
    again = recover("--with", "daemon:make")
    assert again.out.splitlines()[-1] == "0 events handled, 0 failed, 0 left"


def test_recover_leaves_what_is_scheduled_to_the_daemon(
    crashed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event of the future, and the rhythm of a key for which the function does not call post_every."""
    monkeypatch.syspath_prepend(crashed)
    daemon = importlib.import_module("daemon")
    writer = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True))
    with daemon.make(writer) as dispatcher:
        dispatcher.post_after(3600, daemon.JobEvent(daemon.Job.START, "later"))
        nightly = dispatcher.post_every(7200, daemon.JobEvent(daemon.Job.START, "nightly"), key="nightly")
        due = nightly.due
        left = after_a_crash(writer.path, tmp_path / "crashed")

    for _ in range(2):
        done = run_here("journal", "recover", left, "--with", "daemon:make")

        assert (done.code, done.err) == (0, "")
        assert done.out.splitlines()[-1] == "0 events handled, 0 failed, 0 left, 1 scheduled for later"
    with daemon.make(JournalWriter(left, JournalConfig(write_ahead=True))) as dispatcher:
        again = dispatcher.post_every(7200, daemon.JobEvent(daemon.Job.START, "nightly"), key="nightly", first=60)
        assert again.due == due
        assert dispatcher.stats().scheduled == 2
    sys.modules.pop("daemon", None)


def test_recover_leaves_an_attempt_that_is_due_much_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the attempt, here for an hour, in silence."""

    def make_failing(journal: JournalWriter) -> AsyncDispatcher:
        dispatcher = AsyncDispatcher(journal=journal)

        def fail(event: Posted) -> None:
            if event.number == 1:
                raise OSError

        dispatcher.register(Job, fail, events=Posted, on_error=Retry(delay_s=3600, max_delay_s=3600))
        return dispatcher

    module = ModuleType("failing_daemon")
    module.make = make_failing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "failing_daemon", module)
    writer = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True))
    dispatcher = make_failing(writer)
    for number in (1, 2):
        dispatcher.post(Posted(Job.STARTED, number))
    left = after_a_crash(writer.path, tmp_path / "crashed")

    # The attempt fails in the first run, and the next one is not due in the second.
    for events in ("1 event", "0 events"):
        done = run_here("journal", "recover", left, "--with", "failing_daemon:make")

        assert done.code == 0
        assert done.out.splitlines()[-1] == f"{events} handled, 0 failed, 0 left, 1 scheduled for later"
    writer.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("daemon:make_another", "daemon:make_another: should return an AsyncDispatcher(journal=journal)"),
        ("daemon:fail", "--with daemon:fail: the function raised KeyError: 'missing' ("),
    ],
)
def test_a_dispatcher_that_cannot_be_had_leaves_the_events_for_later(
    given: str, message: str, recover: Recover
) -> None:
    """The other reasons are in cli/test_redelivery.py."""
    done = recover("--with", given)

    assert done.code == 2
    assert done.err.startswith(f"dispatcher: {message}")
    assert done.err.count("\n") == 1
    later = recover("--with", "daemon:make")
    assert later.out.splitlines()[-1] == "2 events handled, 0 failed, 0 left"


def test_the_package_is_the_command(tmp_path: Path) -> None:
    as_module = subprocess.run(
        [sys.executable, "-m", "dispatcher", "config", "list"], capture_output=True, text=True, timeout=60, check=False
    )

    assert as_module.returncode == 0, as_module.stderr
    assert as_module.stdout == run_here("config", "list").out


def test_letters_that_the_terminals_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    """A terminal without UTF-8 got a UnicodeEncodeError instead of the table."""
    kind = Enum("Kind", {"ON": 1})
    writer = JournalWriter(tmp_path / "journal")
    begin(writer, 1)
    writer.transition("lamp", "größe 世界", kind.ON, kind.ON, kind.ON, valid=True)
    end(writer, "central", "Work", "DO", "handled", queue_ns=5, handling_ns=5)
    writer.close()

    done = subprocess.run(
        [sys.executable, "-m", "dispatcher", "journal", "state", "journal"],
        capture_output=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )

    assert done.returncode == 0, done.stderr
    assert r"größe \u4e16\u754c" in done.stdout.decode("latin-1")
