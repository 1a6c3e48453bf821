"""A user's mistake in any flag, path or file of any command is one printable line and exit code 2, never a traceback.

The commands run in this process: thousands of mistakes would take minutes in processes of their own.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher import JournalConfig, JournalWriter

from .journal_rows import begin, end
from .kit import tries
from .kit.commands import Ended, run_here

pytestmark = pytest.mark.long

TRACEBACK = "Traceback"
USER_ERROR = 2

NAMES = (
    "",
    ".",
    "nowhere",
    "a\0b",
    "\udcff",
    "\ud800",
    "x" * 5000,
    "x/" * 3000,
    "\x1b[2J\x1b]0;owned\x07",
    "two\nlines",
    "\u202eevil",
    "journal",
    "journal/journal.json",
    "rm.yaml",
    "jobs.json",
    "--",
    "-",
    "[red]",
)
NUMBERS = ("0", "-1", "1", "1e3", "nan", "9" * 30, "9" * 5000, "", "٣")
HOSTILE = "\x1b[2J\x1b]0;owned\x07\n\r\x7f\x9b31m\u202e[red]\U000e0041"
COMMANDS: tuple[tuple[tuple[str, ...], dict[str, Sequence[str]]], ...] = (
    (("config", "show", "NAME"), {}),
    (("graph", "NAME"), {"--format": ("csv", "svg", "\x1b")}),
    (("journal", "verify", "NAME"), {}),
    (("journal", "tail", "NAME"), {"--lines": NUMBERS}),
    (
        ("journal", "recover", "NAME"),
        {"--with": ("../x:y", "x", "x:", ":y", ".:y", "a b:c", "os:nothing", "\x1b:y", "m\0:y")},
    ),
    (
        ("journal", "history", "NAME", "NAME"),
        {"--machine": NAMES, "--limit": NUMBERS, "--before-seq": NUMBERS, "--format": ("json", "yaml")},
    ),
    (
        ("journal", "state", "NAME"),
        {
            "--at": (*NUMBERS, "@1", "@9999999999", "2026-99-99", "0001-01-01T00:00+23:59", "\x1b", "9999-12-31"),
            "--machine": NAMES,
            "--entity": NAMES,
            "--format": ("json", "yaml"),
        },
    ),
    (("run", "NAME"), {"--logging": NAMES}),
    (("status", "NAME"), {"--token-file": NAMES, "--ca": NAMES, "--quiet": ("--json",)}),
    (("stack", "NAME"), {"--samples": NUMBERS, "--dispatcher": NAMES}),
    (("top", "NAME", "--once"), {"--token-file": NAMES}),
    (("replay", "NAME", "--no-report"), {"--config": NAMES, "--output": NAMES}),
    (("report", "NAME", "--master", "nonsense"), {"--compare": NAMES, "--output": NAMES}),
    (
        ("sweep", "NAME", "--master", "nonsense"),
        {
            "--set": (
                "",
                "=",
                "load=0",
                "nodes=1e308",
                f"load={'9' * 400}",
                "scheduler=\x1b",
                "scheduler=&a [*a]",
                "name=a",
            )
        },
    ),
    (
        ("yarn-log", "NAME"),
        {"--time-zone": ("Mars/Here", "../x", "/etc/passwd", "a\0b", "\udcff", ""), "--listed": NUMBERS},
    ),
)
"""Each command with its flags, and what is given for them. NAME is one of NAMES."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working folder: with a journal and a workload that are sound, and a configuration that is not."""
    folder = tmp_path_factory.mktemp("mistakes")
    make_journal(folder / "journal", HOSTILE)
    (folder / "rm.yaml").write_text("name: !!bool 'maybe'")
    (folder / "jobs.json").write_text("{]")
    before = Path.cwd()
    handlers = logging.getLogger().handlers[:]
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        logging.getLogger().handlers[:] = handlers


def make_journal(path: Path, name: str) -> None:
    """Everything in it that has a name has this one."""
    kind = Enum("Kind", {name: 1})
    [member] = kind
    writer = JournalWriter(path, JournalConfig())
    begin(writer, 1)
    writer.transition(name, name, member, member, member, valid=True)
    end(writer, name, name, name, "failed", queue_ns=5, handling_ns=5, entity=name, error=name)
    writer.close()


def check(ended: Ended, args: Sequence[str]) -> None:
    assert ended.code in (0, 1, USER_ERROR), (args, ended)
    assert TRACEBACK not in ended.err, (args, ended)
    for line in (ended.out + ended.err).splitlines():
        assert line.isprintable(), (args, line)
    if ended.code == USER_ERROR and ended.err.startswith("dispatcher: "):
        assert ended.err.count("\n") == 1, (args, ended.err)
        assert len(ended.err) < 25_000, args


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    words, flags = draw(st.sampled_from(COMMANDS))
    args = [draw(st.sampled_from(NAMES)) if word == "NAME" else word for word in words]
    for flag in draw(st.lists(st.sampled_from(sorted(flags)), unique=True)) if flags else ():
        args += [flag, draw(st.sampled_from(flags[flag]))]
    return args


@pytest.mark.slow
@settings(max_examples=tries(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(args=command_lines())
def test_any_mistake_in_a_command_line_is_one_printable_line(folder: Path, args: list[str]) -> None:
    check(run_here(*args), args)
    assert (folder / "journal").is_dir()


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS], ids=lambda words: " ".join(words))
def test_any_name_in_the_place_of_a_path_is_taken_or_refused(folder: Path, words: tuple[str, ...]) -> None:
    for name in NAMES:
        args = [name if word == "NAME" else word for word in words]

        check(run_here(*args), args)


def test_a_command_prints_names_of_a_journal_escaped(folder: Path) -> None:
    """Raw escape sequences and line ends of entities reached the terminal from `journal state`."""
    table, listed = run_here("journal", "state", "journal"), run_here("journal", "state", "journal", "--format", "json")
    events = run_here("journal", "tail", "journal")
    history, rows = (run_here("journal", "history", "journal", HOSTILE, "--format", each) for each in ("table", "json"))

    for ended in (table, listed, events, history, rows):
        check(ended, ())
        assert ended.out
    for shown in (table, history):
        assert r"\x1b[2J\x1b]0;owned\x07\n\r\x7f\x9b31m\u202e[red]\U000e0041" in shown.out
    assert json.loads(rows.out)["machine"] == HOSTILE
    assert json.loads(listed.out)["entities"][0]["entity"] == HOSTILE
    assert json.loads(events.out)["entity"] == HOSTILE


LOG = (
    "2026-11-22 10:00:00,000 INFO org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppImpl: "
    "application_1\x1b[2J State change from NEW to NOWHERE on event = START\n"
)
JOBS = {
    "job.start.ms": 0,
    "job.queue.name": "[red]q",
    "job.id": "[bold]job",
    "job.tasks": [{"container.host": "/[red]/n1", "container.start.ms": 0, "container.end.ms": 9}],
}


def test_a_command_prints_names_of_logs_and_workloads_escaped(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "evil\x1b[2J.log").write_text(LOG)
    (tmp_path / "evil\x1b[2J.json").write_text(json.dumps(JOBS))
    (tmp_path / "two\nlines.log").write_text(LOG)

    logs = run_here("yarn-log", str(tmp_path))
    replayed = run_here(
        "replay", str(tmp_path / "evil\x1b[2J.json"), "--no-report", "--output", str(tmp_path / "\x1b[2J")
    )

    for ended in (logs, replayed):
        check(ended, ())
        assert ended.code == 0, ended
        assert r"\x1b[2J" in ended.out


@pytest.mark.parametrize("command", ["report", "replay", "sweep", "yarn-log"])
def test_a_master_that_spark_cannot_know_is_refused_before_anything_is_read(command: str, folder: Path) -> None:
    """Spark answered with a Java stack, after seconds or, with a replay, after minutes."""
    ended = run_here(command, "nowhere", "--master", "nonsense")

    check(ended, ())
    assert ended.err.startswith("dispatcher: --master 'nonsense': not a place where Spark runs; give local[*], ")
