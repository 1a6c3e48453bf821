"""What a task knows of the reader of its output, over the sockets that PySpark uses."""

from __future__ import annotations

import io
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pipeline.spark.worker.output import ReaderGoneError, WorkerOutput, worker_output

from ....kit import until

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much is unread")


def tcp_pair(address: str, reader_address: str, family: int) -> tuple[socket.socket, socket.socket]:
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"{address} is not an address of this machine")
        listener.listen()
        reader = socket.socket(socket.AF_INET6 if ":" in reader_address else socket.AF_INET)
        reader.connect((reader_address, listener.getsockname()[1]))
        return listener.accept()[0], reader


PAIRS: dict[str, Callable[[], tuple[socket.socket, socket.socket]]] = {
    "TCP": lambda: tcp_pair("127.0.0.1", "127.0.0.1", socket.AF_INET),
    # The JVM's socket, unless it prefers IPv4.
    "TCP, read through IPv6": lambda: tcp_pair("127.0.0.1", "::ffff:127.0.0.1", socket.AF_INET),
    "TCP over IPv6": lambda: tcp_pair("::1", "::1", socket.AF_INET6),
    "Unix": socket.socketpair,
}


class Connection:
    def __init__(self, sender: socket.socket, reader: socket.socket) -> None:
        self.file = sender.makefile("wb")
        self.reader = reader
        self.output = WorkerOutput(self.file)
        sender.close()


@pytest.fixture(params=list(PAIRS))
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    made = Connection(*PAIRS[request.param]())
    yield made
    made.output.close()
    made.reader.close()
    with suppress(OSError):  # what it still holds has no reader
        made.file.close()


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@on_linux
def test_neither_end_waits_for_an_acknowledgement_of_a_small_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nagle's algorithm and delayed acknowledgements together take 40 ms, twice for each task."""
    asked: list[int] = []

    def note(self: socket.socket, level: int, option: int, value: int) -> None:
        assert (level, value) == (socket.IPPROTO_TCP, 1)
        asked.append(option)

    sender, reader = PAIRS["TCP"]()
    monkeypatch.setattr(socket.socket, "setsockopt", note)
    connection = Connection(sender, reader)

    assert asked == [socket.TCP_NODELAY, socket.TCP_QUICKACK]
    connection.output.flush()
    assert asked[2:] == [socket.TCP_QUICKACK]  # what is sent ends it
    connection.output.close()
    reader.close()


@on_linux
def test_output_is_unread_until_the_reader_reads_it(connection: Connection) -> None:
    assert connection.output.has_read_all()
    connection.file.write(b"rows" * 1000)
    connection.output.flush()

    until(lambda: not connection.output.has_read_all())  # a busy kernel delivers later
    connection.reader.recv(2000)
    assert not connection.output.has_read_all()
    connection.reader.recv(2000)
    assert connection.output.has_read_all()


@on_linux
def test_reader_has_gone_when_it_has_closed_its_end(connection: Connection) -> None:
    assert not connection.output.is_gone()

    connection.reader.close()

    assert connection.output.is_gone()


def test_sending_to_a_reader_that_has_gone_says_so(connection: Connection) -> None:
    def send() -> None:
        for _ in range(3):  # the first may only find out
            connection.file.write(b"rows")
            connection.output.flush()

    connection.reader.close()

    with pytest.raises(ReaderGoneError):
        send()


def test_a_file_that_is_no_socket_counts_as_read_after_a_moment() -> None:
    clock = Clock()
    output = WorkerOutput(io.BytesIO(), clock)
    output.flush()

    assert not output.has_read_all()
    clock.now_s = 1.0
    assert output.has_read_all()
    assert not output.is_gone()


def test_output_is_found_by_the_name_that_pyspark_gives_it() -> None:
    def main(outfile: Any) -> list[WorkerOutput | None]:
        def process() -> Iterator[WorkerOutput | None]:
            with worker_output() as output:
                yield output

        return list(process())

    file = io.BytesIO()

    (output,) = main(file)

    assert output is not None


def test_there_is_no_output_outside_a_worker() -> None:
    with worker_output() as output:
        assert output is None


def test_a_worker_whose_output_is_not_found_logs_it_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pipeline.spark.worker.output._has_told", False)
    monkeypatch.setattr("pipeline.spark.worker.output.TaskContext.get", lambda: object())

    for _ in range(2):
        with worker_output() as output:
            assert output is None

    (record,) = caplog.records
    assert "by another name than outfile" in record.getMessage()
