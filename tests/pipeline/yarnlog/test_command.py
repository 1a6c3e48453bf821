"""`dispatcher yarn-log`, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

pytest.importorskip("pyarrow")

from pipeline.cli import yarn_log
from pipeline.yarnlog.clock import YarnLogError

LOG = """\
2021-11-23 10:06:29,255 INFO a.RMAppImpl: application_1_0001 State change from NEW to NEW_SAVING on event = START
2021-11-23 10:06:29,255 INFO a.RMAppImpl: application_1_0001 State change from NEW_SAVING to RUNNING on event = START
2021-11-23 10:06:29,255 INFO a.ContainerImpl: Container container_1_0001_01_000001 transitioned from NEW to DONE
2021-11-23 10:06:29,255 ERROR a.RMAppImpl: App: application_1_0001 can't handle this event at current state
a.InvalidStateTransitionException: Invalid event: START at NEW
\tat a.b(C.java:1)
2021-11-23 10:06:29,255 INFO a.B: something else
2021-11-23 10:06:29,255 INFO a.AsyncDispatcher: Size of event-queue is 1000
"""


def run(*args: object) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(yarn_log)
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rm.log"
    path.write_text(LOG)
    return path


def test_it_counts_lines_by_kind_and_transitions_by_machine(log: Path) -> None:
    done = run(log)

    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["in", "1", "file", "8"] in lines
    assert ["parsed", "7", "5"] in lines
    assert ["transition", "3", "3"] in lines
    assert ["invalid", "transition", "3", "1"] in lines
    assert ["queue", "size", "1", "1"] in lines
    assert ["unparsed", "1"] in lines
    assert ["RMApp", "3", "2"] in lines
    assert ["NMContainer", "1", "0"] in lines


def test_undeclared_transitions_are_listed_with_file_and_line(log: Path) -> None:
    done = run(log)

    listed = done.stdout.partition("2 transitions not in the tables:\n")[2]
    assert listed.splitlines() == [
        f"{log}:2: application_1_0001 NEW_SAVING to RUNNING on START",
        "    RMApp: NEW_SAVING does not accept START, "
        "only APP_NEW_SAVED, APP_REJECTED, APP_SAVE_FAILED, KILL, MOVE, NODE_UPDATE",
        f"{log}:4: application_1_0001 NEW to NEW on START",
        "    RMApp: NEW takes START, which was rejected",
    ]


def test_it_lists_no_more_than_asked_for(log: Path) -> None:
    done = run(log, "--listed", 1)

    assert f"{log}:2: " in done.stdout
    assert f"{log}:4: " not in done.stdout
    assert "and 1 more; list more with --listed" in done.stdout


def test_what_is_not_in_the_tables_is_a_failure_only_if_asked_for(log: Path, tmp_path: Path) -> None:
    sound = tmp_path / "sound.log"
    sound.write_text(LOG.splitlines()[0])

    assert (run(log, "--strict").exit_code, run(sound, "--strict").exit_code) == (1, 0)


OF_HADOOP_2 = """\
2015-10-18 10:06:29,255 INFO a.TaskAttemptImpl: attempt_1_1_m_1_0 TaskAttempt Transitioned from NEW to UNASSIGNED
2015-10-18 10:06:29,255 INFO a.TaskAttemptImpl: attempt_1_1_m_1_0 TaskAttempt Transitioned from RUNNING to \
SUCCESS_CONTAINER_CLEANUP
2015-10-18 10:06:29,255 INFO a.Container: Container container_1_1_01_1 transitioned from LOCALIZING to LOCALIZED
2015-10-18 10:06:29,255 INFO a.Container: Container container_1_1_01_1 transitioned from LOCALIZED to RUNNING
2015-10-18 10:06:29,255 INFO a.Application: Application application_1_0001 transitioned from NEW to INITING
2015-10-18 10:06:29,255 INFO a.LocalizedResource: Resource hdfs://m/job.jar transitioned from INIT to DOWNLOADING
"""


@pytest.fixture
def older(tmp_path: Path) -> Path:
    path = tmp_path / "older.log"
    path.write_text(OF_HADOOP_2)
    return path


def test_transitions_of_older_releases_are_counted_with_the_releases_and_are_no_failure(older: Path) -> None:
    done = run(older, "--strict")

    assert done.exit_code == 0
    assert "unknown machine" not in done.stdout
    assert done.stdout.partition("\n\n")[2].partition("\n\n")[2].splitlines() == [
        "3 transitions in the tables of older releases, not in Hadoop 3's:",
        "NMContainer: 2 of Hadoop 2.4, 2.7",
        "MRTaskAttempt: 1 of Hadoop before 2.3, 2.4, 2.7",
    ]


@pytest.mark.parametrize("release", ["2.4", "2.7"])
def test_the_tables_of_its_own_release_allow_an_older_log(older: Path, release: str) -> None:
    done = run(older, "--strict", "--release", release)

    assert done.exit_code == 0
    assert "older releases" not in done.stdout


def test_the_tables_of_another_release_do_not(older: Path) -> None:
    done = run(older, "--strict", "--release", "3")

    assert done.exit_code == 1
    assert done.stdout.partition("3 transitions not in Hadoop 3's tables:\n")[2].splitlines() == [
        f"{older}:2: attempt_1_1_m_1_0 RUNNING to SUCCESS_CONTAINER_CLEANUP on TA_DONE",
        "    MRTaskAttempt: TA_DONE does not lead from RUNNING to SUCCESS_CONTAINER_CLEANUP, "
        "only to SUCCESS_FINISHING_CONTAINER",
        f"{older}:3: container_1_1_01_1 LOCALIZING to LOCALIZED on RESOURCE_LOCALIZED",
        "    NMContainer has no state LOCALIZED",
        f"{older}:4: container_1_1_01_1 LOCALIZED to RUNNING on CONTAINER_LAUNCHED",
        "    NMContainer has no state LOCALIZED",
    ]


def test_a_release_without_tables_is_a_mistake_in_the_options(older: Path) -> None:
    done = run(older, "--release", "2.5")

    assert done.exit_code == 2
    assert "'2.4', '2.7', '3'" in " ".join(done.stderr.replace("│", " ").split())


def test_a_log_without_transitions_is_read_too(tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.log"
    quiet.write_text(LOG.splitlines()[-1])

    done = run(quiet, "--strict")

    assert (done.exit_code, done.stderr) == (0, "")
    assert "No transitions." in done.stdout


@pytest.mark.parametrize("text", ["", "no log\n", "{}\n" * 1000], ids=["empty", "text", "JSON"])
def test_a_log_of_which_nothing_was_read_is_no_success(log: Path, tmp_path: Path, text: str) -> None:
    other = tmp_path / "other.log"
    other.write_text(text)

    loose, strict = run(other), run(other, "--strict")

    assert (loose.exit_code, strict.exit_code) == (0, 1)
    expected = f"warning: {other}: nothing was read: no line is the beginning of a record in a known format\n"
    assert loose.stderr == strict.stderr == expected


def test_a_log_without_a_known_message_is_no_success(tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text("2021-11-23 10:06:29,255 INFO a.B: something else\n")

    loose, strict = run(other), run(other, "--strict")

    assert (loose.exit_code, strict.exit_code) == (0, 1)
    assert loose.stderr.startswith("warning: no line is of a known kind: no transition, ")


def test_lines_that_should_have_been_parsed_are_counted_and_shown(tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    sound, moved, quiet = (LOG.splitlines()[number] for number in (0, 1, -2))
    audit = "2021-11-23 10:06:29,255 INFO a.RMAuditLogger: OPERATION=Kill\x1b[2J"
    other.write_text("\n".join([quiet, f"? {moved}", audit, sound, f"?? {moved}", "\tat a.b(C.java:1)"]))

    loose, strict = run(other), run(other, "--strict")

    assert (loose.exit_code, strict.exit_code) == (0, 1)
    assert loose.stderr == "warning: 3 lines look like transitions or audit lines and were not parsed\n"
    listed = loose.stdout.partition("3 unparsed lines look like transitions or audit lines:\n")[2]
    assert listed.splitlines() == [
        f"{other}:2: ? {moved}",
        f"{other}:3: {audit[:-4]}\\x1b[2J",
        f"{other}:4: ?? {moved}",
    ]


def test_only_a_sample_of_the_lines_is_shown(tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text("\n".join([LOG.splitlines()[-2], *["? a Job Transitioned from A to B" + "." * 1000] * 120]))

    done = run(other)

    shown = [line for line in done.stdout.splitlines() if "? a Job" in line]
    assert (len(shown), len(shown[0])) == (5, len(f"{other}:2: ") + 303)
    assert "120 unparsed lines look like" in done.stdout
    assert "\nand 115 more\n" in done.stdout


def test_the_prefixes_of_each_file_are_told(log: Path, tmp_path: Path) -> None:
    in_docker, untimed = tmp_path / "docker.log", tmp_path / "untimed.log"
    in_docker.write_text("".join(f"rm-1  | 2021-11-23T10:06:29Z {line}\n" for line in LOG.splitlines()))
    untimed.write_text("INFO a.RMAppImpl: application_1_0001 State change from NEW to NEW_SAVING on event = START\n")

    done = run(log, in_docker, untimed)

    assert done.stdout.splitlines()[:2] == [
        f"{in_docker}: prefix of each line: docker compose, docker logs -t",
        f"{untimed}: a record without a time has the prefix's, or the time of the record before, or 1970",
    ]
    assert ["in", "3", "files", "17"] in [line.split() for line in done.stdout.splitlines()]
    assert ["parsed", "15", "11"] in [line.split() for line in done.stdout.splitlines()]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("args", "why"),
    [(["none.log"], "no such file or folder"), (["{log}", "--time-zone", "Mars"], "'Mars' is not a time zone")],
)
def test_a_mistake_is_reported_in_one_line(log: Path, args: list[str], why: str) -> None:
    done = run(*(arg.format(log=log) for arg in args))

    assert isinstance(done.exception, YarnLogError)
    assert why in str(done.exception)
