"""`dispatcher yarn-log`, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from ...kit.commands import Ended, run_here

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
SOUND, MOVED, *_, OTHER, QUIET = LOG.splitlines()
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
def log(tmp_path: Path) -> Path:
    """A log; a test may write another text into it."""
    path = tmp_path / "rm.log"
    path.write_text(LOG)
    return path


@pytest.fixture
def older(log: Path) -> Path:
    log.write_text(OF_HADOOP_2)
    return log


def run(*args: object) -> Ended:
    return run_here("yarn-log", *args)


def words(done: Ended) -> list[list[str]]:
    return [line.split() for line in done.out.splitlines()]


def test_it_counts_lines_by_kind_and_transitions_by_machine(log: Path) -> None:
    done = run(log)

    counts = "in 1 file 8/parsed 7 5/transition 3 3/invalid transition 3 1/queue size 1 1/unparsed 1/RMApp 3 2"
    assert done.code in (0, None)
    assert [line for line in [*counts.split("/"), "NMContainer 1 0"] if line.split() not in words(done)] == []


def test_undeclared_transitions_are_listed_with_file_and_line_up_to_the_number_asked_for(log: Path) -> None:
    done, fewer = run(log), run(log, "--listed", 1)

    assert done.out.partition("2 transitions not in the tables:\n")[2].splitlines() == [
        f"{log}:2: application_1_0001 NEW_SAVING to RUNNING on START",
        "    RMApp: NEW_SAVING does not accept START, "
        "only APP_NEW_SAVED, APP_REJECTED, APP_SAVE_FAILED, KILL, MOVE, NODE_UPDATE",
        f"{log}:4: application_1_0001 NEW to NEW on START",
        "    RMApp: NEW takes START, which was rejected",
    ]
    assert f"{log}:2: " in fewer.out
    assert f"{log}:4: " not in fewer.out
    assert "and 1 more; list more with --listed" in fewer.out


@pytest.mark.parametrize(
    ("text", "strict", "warning"),
    [
        (LOG, 1, ""),
        (SOUND, 0, ""),
        (QUIET, 0, ""),
        ("", 1, "{log}: nothing was read: no line is the beginning of a record in a known format\n"),
        ("no log\n", 1, "{log}: nothing was read: no line is the beginning of a record in a known format\n"),
        ("{}\n" * 1000, 1, "{log}: nothing was read: no line is the beginning of a record in a known format\n"),
        (OTHER, 1, "no line is of a known kind: no transition, "),
        (f"{SOUND}\n{OTHER}\n? {MOVED}", 1, "1 line looks like "),
    ],
    ids=["undeclared", "sound", "no transitions", "empty", "text", "JSON", "no known message", "unparsed transition"],
)
def test_what_is_wrong_with_a_log_is_a_failure_only_if_asked_for(
    log: Path, text: str, strict: int, warning: str
) -> None:
    log.write_text(text)

    loose, strictly = run(log), run(log, "--strict")

    assert (loose.code or 0, strictly.code or 0) == (0, strict)
    assert loose.err == strictly.err
    assert loose.err.startswith(
        f"warning: {warning.format(log=log) if 'nothing' in warning else warning}" * bool(warning)
    )
    assert bool(loose.err) == bool(warning)
    assert text != QUIET or "No transitions." in loose.out


def test_transitions_of_older_releases_are_counted_with_the_releases_and_are_no_failure(older: Path) -> None:
    done = run(older, "--strict")

    assert done.code in (0, None)
    assert "unknown machine" not in done.out
    assert done.out.partition("\n\n")[2].partition("\n\n")[2].splitlines() == [
        "3 transitions in the tables of older releases, not in Hadoop 3's:",
        "NMContainer: 2 of Hadoop 2.4, 2.7",
        "MRTaskAttempt: 1 of Hadoop before 2.3, 2.4, 2.7",
    ]


def test_the_tables_of_its_own_release_allow_an_older_log_and_those_of_another_do_not(older: Path) -> None:
    for release in ("2.4", "2.7"):
        own = run(older, "--strict", "--release", release)
        assert (own.code or 0, "older releases" in own.out) == (0, False)

    done = run(older, "--strict", "--release", "3")

    assert done.code == 1
    assert done.out.partition("3 transitions not in Hadoop 3's tables:\n")[2].splitlines() == [
        f"{older}:2: attempt_1_1_m_1_0 RUNNING to SUCCESS_CONTAINER_CLEANUP on TA_DONE",
        "    MRTaskAttempt: TA_DONE does not lead from RUNNING to SUCCESS_CONTAINER_CLEANUP, "
        "only to SUCCESS_FINISHING_CONTAINER",
        f"{older}:3: container_1_1_01_1 LOCALIZING to LOCALIZED on RESOURCE_LOCALIZED",
        "    NMContainer has no state LOCALIZED",
        f"{older}:4: container_1_1_01_1 LOCALIZED to RUNNING on CONTAINER_LAUNCHED",
        "    NMContainer has no state LOCALIZED",
    ]


def test_lines_that_should_have_been_parsed_are_counted_and_shown(log: Path) -> None:
    audit = "2021-11-23 10:06:29,255 INFO a.RMAuditLogger: OPERATION=Kill\x1b[2J"
    log.write_text("\n".join([OTHER, f"? {MOVED}", audit, SOUND, f"?? {MOVED}", "\tat a.b(C.java:1)"]))

    done = run(log)

    assert done.err == "warning: 3 lines look like transitions or audit lines and were not parsed\n"
    assert done.out.partition("3 unparsed lines look like transitions or audit lines:\n")[2].splitlines() == [
        f"{log}:2: ? {MOVED}",
        f"{log}:3: {audit[:-4]}\\x1b[2J",
        f"{log}:4: ?? {MOVED}",
    ]


def test_only_a_sample_of_the_lines_is_shown(log: Path) -> None:
    log.write_text("\n".join([OTHER, *["? a Job Transitioned from A to B" + "." * 1000] * 120]))

    done = run(log)

    shown = [line for line in done.out.splitlines() if "? a Job" in line]
    assert (len(shown), len(shown[0])) == (5, len(f"{log}:2: ") + 303)
    assert "120 unparsed lines look like" in done.out
    assert "\nand 115 more\n" in done.out


def test_the_prefixes_of_each_file_are_told(log: Path, tmp_path: Path) -> None:
    in_docker, untimed = tmp_path / "docker.log", tmp_path / "untimed.log"
    in_docker.write_text("".join(f"rm-1  | 2021-11-23T10:06:29Z {line}\n" for line in LOG.splitlines()))
    untimed.write_text("INFO a.RMAppImpl: application_1_0001 State change from NEW to NEW_SAVING on event = START\n")

    done = run(log, in_docker, untimed)

    assert done.out.splitlines()[:2] == [
        f"{in_docker}: prefix of each line: docker compose, docker logs -t",
        f"{untimed}: a record without a time has the prefix's, or the time of the record before, or 1970",
    ]
    assert ["in", "3", "files", "17"] in words(done)
    assert ["parsed", "15", "11"] in words(done)
    assert done.err == ""


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["none.log"], "no such file or folder"),
        *((["{log}", "--time-zone", name], f"'{name}' is not a time zone") for name in ("Mars", "", "../etc/passwd")),
        (["{log}", "--release", "2.5"], "'2.4', '2.7', '3'"),
    ],
)
def test_a_mistake_in_the_arguments_is_told_with_exit_code_2(log: Path, args: list[str], why: str) -> None:
    done = run(*(arg.format(log=log) for arg in args))

    assert (done.code, done.out) == (2, "")
    assert why in " ".join(done.err.replace("│", " ").split())
