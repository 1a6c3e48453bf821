"""Which files are logs, and in which order they are read."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from pipeline.yarnlog import Unparsed, YarnLogError, log_files, read_log
from pipeline.yarnlog.files import daemon_of


def touch(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_of_a_folder_its_logs_are_read_from_the_oldest_to_the_newest(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "yarn-resourcemanager.log",
        "yarn-resourcemanager.log.1",
        "yarn-resourcemanager.log.10.gz",
        "yarn-resourcemanager.log.2",
        "yarn-nodemanager.log.2015-10-18",
        "yarn-nodemanager.log.2015-10-19",
        "yarn-nodemanager.log",
        "yarn-nodemanager.out",
        ".hidden.log",
        ".trash/old.log",
        "container_1/syslog",
        "container_1/stdout",
    )

    found = [str(file.relative_to(tmp_path)) for file in log_files([tmp_path])]

    assert found == [
        "yarn-nodemanager.log.2015-10-18",
        "yarn-nodemanager.log.2015-10-19",
        "yarn-nodemanager.log",
        "yarn-resourcemanager.log.10.gz",
        "yarn-resourcemanager.log.2",
        "yarn-resourcemanager.log.1",
        "yarn-resourcemanager.log",
        "container_1/syslog",
    ]


def test_a_named_file_is_read_once_whatever_its_name(tmp_path: Path) -> None:
    touch(tmp_path, "notes", "a.log")

    found = log_files([tmp_path / "notes", tmp_path, tmp_path / "a.log"])

    assert found == [tmp_path / "notes", tmp_path / "a.log"]


@pytest.mark.parametrize(
    ("names", "why"),
    [(["none"], "none: no such file or folder"), (["empty"], "no log in this folder"), ([], "no path is given")],
)
def test_paths_without_a_log_are_an_error(tmp_path: Path, names: list[str], why: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(YarnLogError, match=why):
        log_files([tmp_path / name for name in names])


def test_a_packed_log_is_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "a.log.1.gz"
    file.write_bytes(gzip.compress(b"one\r\ntwo"))

    assert list(read_log(file)) == [Unparsed(1, "one"), Unparsed(2, "two")]


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"x" * 1000)[:-9], gzip.compress(b"x" * 1000)[:12] + b"?"],
    ids=[
        "not packed",
        "cut off",
        "damaged",
    ],  # the bytes hold a time: workers that share the suite would name them apart
)
def test_a_gz_file_that_is_not_gzip_is_an_error_with_its_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.log.gz"
    file.write_bytes(content)

    with pytest.raises(YarnLogError, match=r"a\.log\.gz: cannot be read: "):
        list(read_log(file))


def test_a_file_that_may_not_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        with pytest.raises(YarnLogError, match="cannot be read: Is a directory"):
            list(read_log(tmp_path))
        return
    file = tmp_path / "a.log"
    file.touch(mode=0)

    with pytest.raises(YarnLogError, match=r"a\.log: cannot be read: Permission denied"):
        list(read_log(file))


@pytest.mark.parametrize(
    ("name", "daemon"),
    [
        ("/logs/yarn-rm-host.log", "yarn-rm-host.log"),
        ("/logs/yarn-rm-host.log.12", "yarn-rm-host.log"),
        ("/logs/yarn-rm-host.log.2015-10-18.gz", "yarn-rm-host.log"),
        ("/logs/container_1/syslog", "syslog"),
        ("/logs/rm.txt", "rm.txt"),
    ],
)
def test_all_files_of_a_log_are_of_one_daemon(name: str, daemon: str) -> None:
    assert daemon_of(name) == daemon
