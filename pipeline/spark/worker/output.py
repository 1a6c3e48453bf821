"""The way of a task's output from the Python worker to Spark: when it is sent, and how far it has been read.

PySpark's worker writes through a buffer of `spark.buffer.size`, 64 KiB, which narrow rows fill only after thousands of
them. PySpark gives a function no access to the buffer, so it is found by the name that PySpark's worker gives it. Where
it is not found, rows wait in the buffer, and tasks work as any other of PySpark's.

On the other end of the worker's socket one thread of the JVM reads, writes the input, and computes what follows. It
reads again only when it needs a row that it does not have. So once it has read one batch it has taken all rows of the
batches before, and once it closes the socket it wants no more rows. Linux tells how much of what was sent is unread: of
a Unix socket to its sender, of a TCP socket by sock_diag(7), since both ends are on this machine. Elsewhere it counts
as read after a few milliseconds.

TCP sends no second small packet before the first is acknowledged, and Linux may take 40 ms to acknowledge one. Spark's
protocol has small packets at the start and at the end of each task: a task of few rows would wait twice. So the worker
sends at once, and acknowledges at once what it waits for.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from types import FrameType
from typing import Any, Final

import pyspark
from pyspark import TaskContext

from pipeline.streaming.pace import ReaderGoneError

log: logging.Logger = logging.getLogger(__name__)

_NAME: Final = "outfile"
"""What PySpark's worker calls the file that it writes to, from 3.0 to 4.3."""
_UNKNOWN_S: Final = 0.005
"""Where nothing tells what is unread: how long after it was sent output counts as read."""
_NO_DELAY: Final = getattr(socket, "TCP_NODELAY", None)
_ACKNOWLEDGE: Final = getattr(socket, "TCP_QUICKACK", None)
_GONE: Final = getattr(select, "POLLRDHUP", 0) | getattr(select, "POLLHUP", 0) | getattr(select, "POLLERR", 0)

# The names that Linux gives them; Python has none for them.
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_ALL_STATES: Final = 0xFFFFFFFF
_ANY_COOKIE: Final = b"\xff" * 8
_SIOCOUTQ: Final = 0x5411
_SIOCOUTQNSD: Final = 0x894B

_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_QUERY: Final = struct.Struct("=BBBxI2s2s16s16sI8s")  # inet_diag_req_v2
_ANSWER: Final = struct.Struct("=BBBB48sII")  # the head of inet_diag_msg: up to idiag_rqueue
_ANSWER_TIMEOUT_S: Final = 0.05

_has_told = False  # of this process; the worker's main thread


@contextmanager
def worker_output() -> Iterator[WorkerOutput | None]:
    """The output of the task that this thread runs; None outside a worker of PySpark."""
    file = _file_of_worker()
    if file is None:
        _tell_of_no_file()
        yield None
    else:
        with closing(WorkerOutput(file)) as output:
            yield output


def _tell_of_no_file() -> None:
    """Log once that a worker's file was not found."""
    global _has_told
    if TaskContext.get() is not None and not _has_told:
        _has_told = True
        log.warning(
            "pyspark %s calls the file that its worker writes to by another name than %s: more calls are made than the "
            "reader of the results asks for",
            pyspark.__version__,
            _NAME,
        )


def _file_of_worker() -> Any:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if _NAME in code.co_varnames or _NAME in code.co_cellvars or _NAME in code.co_freevars:
            file = frame.f_locals.get(_NAME)
            if callable(getattr(file, "flush", None)):
                return file
        frame = frame.f_back
    return None


class WorkerOutput:
    """A task's output, which `file` buffers. The task's main thread only. Close it; `file` stays open."""

    def __init__(self, file: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._sent_s = -_UNKNOWN_S
        self._sockets = ExitStack()
        self._poll: Any = None  # tells whether the reader has gone; None where nothing can
        self._unread: Callable[[], int] | None = None  # bytes; None where nothing can tell
        self._tcp: socket.socket | None = None
        with suppress(OSError, AttributeError, ValueError):  # a file that is no socket, or a system without poll
            self._poll = select.poll()
            self._poll.register(file.fileno(), _GONE)
        with suppress(OSError, AttributeError, ValueError, ImportError):
            # A copy of the descriptor, because a socket object closes its own.
            sender = self._sockets.enter_context(socket.socket(fileno=os.dup(file.fileno())))
            if sender.family in (socket.AF_INET, socket.AF_INET6):
                self._tcp = sender
                self._send_at_once(sender)
            self._unread = self._unread_bytes(sender)

    def close(self) -> None:
        self._unread = self._poll = self._tcp = None
        self._sockets.close()

    def flush(self) -> None:
        """Send what was written. Blocks while the socket is full.

        Raises:
            ReaderGoneError: nothing reads it any more.
        """
        try:
            self._file.flush()
        except OSError as error:
            raise ReaderGoneError from error
        self._sent_s = self._clock()
        self._acknowledge()

    def has_read_all(self) -> bool:
        """Whether the reader has read all that was sent."""
        if self._unread is not None:
            try:
                return self._unread() == 0
            except OSError:
                self._unread = None
        return self._clock() - self._sent_s >= _UNKNOWN_S

    def is_gone(self) -> bool:
        """Whether the reader has closed its end: the rows it has are enough, or its task has ended otherwise."""
        return self._poll is not None and bool(self._poll.poll(0))

    def _send_at_once(self, sender: socket.socket) -> None:
        if _NO_DELAY is not None:
            sender.setsockopt(socket.IPPROTO_TCP, _NO_DELAY, 1)
        self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledge what the other end sends without a delay. Each send of ours ends this: repeat it then."""
        if self._tcp is not None and _ACKNOWLEDGE is not None:
            with suppress(OSError):
                self._tcp.setsockopt(socket.IPPROTO_TCP, _ACKNOWLEDGE, 1)

    def _unread_bytes(self, sender: socket.socket) -> Callable[[], int]:
        """Returns how many of the bytes sent the other end of the socket, on this machine, has not read.

        Raises:
            OSError, ImportError, AttributeError: the system does not tell.
        """
        from fcntl import ioctl

        def queued(request: int) -> int:
            return int.from_bytes(ioctl(sender, request, bytes(4)), sys.byteorder)

        if sender.family == socket.AF_UNIX:
            queued(_SIOCOUTQ)
            return lambda: queued(_SIOCOUTQ)
        query = _query_of_peer(sender)
        diagnosis = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG)
        self._sockets.enter_context(diagnosis).settimeout(_ANSWER_TIMEOUT_S)

        def unread() -> int:
            diagnosis.send(query)
            answer = diagnosis.recv(8192)
            if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
                raise OSError("the socket of the reader was not found")
            return queued(_SIOCOUTQNSD) + int(_ANSWER.unpack_from(answer, _HEADER.size)[-1])

        unread()
        return unread


def _query_of_peer(sender: socket.socket) -> bytes:
    """The question for the socket at the other end of `sender`, a TCP socket."""
    (host, port), (peer_host, peer_port) = sender.getsockname()[:2], sender.getpeername()[:2]
    family = sender.family
    query = _QUERY.pack(
        family,
        socket.IPPROTO_TCP,
        0,
        _ALL_STATES,
        peer_port.to_bytes(2, "big"),
        port.to_bytes(2, "big"),
        socket.inet_pton(family, peer_host),
        socket.inet_pton(family, host),
        0,
        _ANY_COOKIE,
    )
    return _HEADER.pack(_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + query
