"""The errors to retry that docs/async-io.md names, against what HTTP clients raise for a server that misbehaves."""

from __future__ import annotations

import asyncio
import importlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.streaming import RetryStrategy

from ...documents import ROOT, examples_of
from ...kit import TIMEOUT_S

PAGE = ROOT / "docs/async-io.md"
ROWS: dict[str, str] = dict(re.findall(r"^\| `(aiohttp|httpx|requests)` \| `(.+)` \|$", PAGE.read_text(), re.MULTILINE))
SHORT_S = 0.3
ANSWERS = {
    "disconnected": b"",
    "cut off": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n12",
    "503": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "404": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
}


@pytest.fixture
def call_of() -> Iterator[Callable[[str], tuple[str, float]]]:
    """Listens, and returns a function from a behavior to the URL that shows it and a timeout for the call."""
    listener = socket.create_server(("127.0.0.1", 0))
    answers: list[bytes] = []
    kept: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            connection.recv(65_536)
            if not answers:
                kept.append(connection)
                continue
            connection.sendall(answers[0])
            connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listener.getsockname()[1]

    def call(behavior: str) -> tuple[str, float]:
        if behavior == "refused":
            silent = socket.socket()  # which keeps its port from others, and does not listen
            silent.bind(("127.0.0.1", 0))
            kept.append(silent)
            return f"http://127.0.0.1:{silent.getsockname()[1]}/", TIMEOUT_S
        answers[:] = [ANSWERS[behavior]] if behavior in ANSWERS else []
        return f"http://127.0.0.1:{port}/", SHORT_S if behavior == "silent" else TIMEOUT_S

    yield call
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(TIMEOUT_S)
    for connection in kept:
        connection.close()


def error_of(client: str, url: str, timeout_s: float) -> Exception:
    module: Any = pytest.importorskip(client)

    async def get() -> None:
        timeout = module.ClientTimeout(total=timeout_s)
        async with module.ClientSession(timeout=timeout) as session, session.get(url) as response:
            response.raise_for_status()
            await response.read()

    try:
        if client == "aiohttp":
            asyncio.run(get())
        else:
            module.get(url, timeout=timeout_s).raise_for_status()
    except Exception as error:
        return error
    pytest.fail(f"{client} takes that for an answer")


@pytest.mark.parametrize("client", ROWS)
def test_the_errors_of_the_page_are_those_that_can_pass(
    client: str, call_of: Callable[[str], tuple[str, float]]
) -> None:
    """The page said OSError, which lacks aiohttp's ServerDisconnectedError."""
    pytest.importorskip(client)
    listed = eval(ROWS[client], {client: importlib.import_module(client)})
    retry = RetryStrategy.fixed_delay(1, 1, retry_on_exception=listed)

    retried = {
        behavior: retry.retries_error(error_of(client, *call_of(behavior)))
        for behavior in ("refused", "disconnected", "silent", "cut off", "404", "503")
    }

    passing = dict.fromkeys(["refused", "disconnected", "silent", "cut off"], True)
    assert retried == passing | {"404": False, "503": False}


def test_the_function_of_the_page_looks_at_the_status(call_of: Callable[[str], tuple[str, float]]) -> None:
    pytest.importorskip("aiohttp")
    [example] = [each for each in examples_of(PAGE, "python notest") if "def is_passing" in each]
    names: dict[str, Any] = {}
    exec(example, names)

    errors = {behavior: error_of("aiohttp", *call_of(behavior)) for behavior in (*ANSWERS, "silent")}

    retried = [behavior for behavior, error in errors.items() if names["retry"].retries_error(error)]
    assert retried == ["disconnected", "cut off", "503", "silent"]


def test_the_page_has_a_row_for_each_client() -> None:
    assert list(ROWS) == ["aiohttp", "httpx", "requests"]
