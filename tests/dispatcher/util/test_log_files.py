"""Log files that cannot be written: what is lost, who is warned, and how logging goes on."""

from __future__ import annotations

import logging
import logging.handlers
import os
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dispatcher import MetricsServer, health
from dispatcher.util import log_files

from ..log_of_test import log_on


def lost(path: Path | str) -> float:
    return next(sample.value for sample in log_files.family().samples if sample.labels["file"] == str(path))


def warnings(path: Path | str) -> list[str]:
    return [each.detail for each in health.ready().warnings if each.warning == "log_lost" and str(path) in each.detail]


class Clock:
    ns = 0

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_full_disk_loses_lines_and_says_so_once_a_second(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    """Each line printed a traceback."""
    with log_on("/dev/full", clock) as log:
        before = lost("/dev/full")

        for clock.ns in (0, 400_000_000, 900_000_000, 1_100_000_000):
            log.warning("lost")
        during = warnings("/dev/full")

    said = capsys.readouterr().err.splitlines()
    assert said == [
        "log file /dev/full: cannot be written: No space left on device; 1 line lost",
        "log file /dev/full: cannot be written: No space left on device; 4 lines lost",
    ]
    assert lost("/dev/full") - before == 4
    assert during == ["/dev/full: cannot be written: No space left on device; 4 lost"]


@pytest.mark.parametrize("kind", [logging.FileHandler, logging.handlers.RotatingFileHandler])
def test_a_file_whose_folder_is_gone_goes_on_when_it_is_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: type[logging.FileHandler]
) -> None:
    """Python wrote on to the deleted file, which nobody could read."""
    path = tmp_path / "logs" / "daemon.log"
    path.parent.mkdir()
    with log_on(path, kind=kind) as log:
        log.warning("first")
        path.unlink()
        path.parent.rmdir()
        log.warning("second")
        log.warning("third")
        during = warnings(path)
        with MetricsServer(registry=CollectorRegistry()) as server, urllib.request.urlopen(server.url) as answer:
            page = answer.read().decode()
        path.parent.mkdir()
        log.warning("fourth")
        after = warnings(path)

    assert during == [f"{path}: cannot be written: No such file or directory; 2 lost"]
    assert f'dispatcher_log_lines_lost_total{{file="{path}"}} 2.0' in page
    assert after == []
    assert path.read_text() == "fourth\n2 lines were lost before the last one: this file could not be written\n"
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_file_that_is_deleted_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "daemon.log"
    with log_on(path) as log:
        log.warning("first")
        path.unlink()
        log.warning("second")

    assert path.read_text() == "second\n"
    assert lost(path) == 0


def test_what_was_written_before_a_lost_line_stays_whatever_the_mode(tmp_path: Path) -> None:
    """A file that was opened to be replaced would be emptied when it is opened again."""
    path = tmp_path / "daemon.log"
    with log_on(path, mode="w") as log:
        log.warning("first")
        full = Path("/dev/full").open("w")  # noqa: SIM115  # the handler closes it
        of_file = file_handler(log).setStream(full)
        of_file.close()
        log.warning("second")
        log.warning("third")

    assert path.read_text().splitlines()[:2] == ["first", "third"]


class Unreadable:
    def __str__(self) -> str:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize(("text", "argument"), [("%d", "no number"), ("%s", Unreadable())])
def test_a_wrong_line_is_not_the_files_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, argument: object
) -> None:
    path = tmp_path / "daemon.log"
    with log_on(path) as log:
        stream = file_handler(log).stream
        file_handler(log).handle(logging.LogRecord("of.this.test", logging.WARNING, "", 0, text, (argument,), None))
        assert file_handler(log).stream is stream

    assert "--- Logging error ---" in capsys.readouterr().err
    assert (lost(path), warnings(path)) == (0, [])


def test_a_named_pipe_without_a_reader_loses_lines_and_waits_for_none(tmp_path: Path) -> None:
    """It was opened again, which waits for a reader, and held up each thread that logs."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with log_on(path) as log:
        log.warning("first")
        assert os.read(reader, 4096) == b"first\n"
        os.close(reader)
        log.warning("second")
        log.warning("third")
        during = warnings(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        log.warning("fourth")
        said = os.read(reader, 4096).decode()
        os.close(reader)

    assert during == [f"{path}: cannot be written: Broken pipe; 2 lost"]
    assert said == "fourth\n2 lines were lost before the last one: this file could not be written\n"


def file_handler(log: logging.Logger) -> logging.FileHandler:
    """Pytest may have added one of its own."""
    return next(handler for handler in log.handlers if isinstance(handler, logging.FileHandler))
