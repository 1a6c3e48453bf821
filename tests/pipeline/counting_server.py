"""An HTTP service of the tests' own, which counts its calls by key and can hold its answers back."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

TIMEOUT_S = 60.0


class CountingServer:
    """Answers `GET /KEY` with twice the key. A context manager: it ends with its test."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # leaf lock
        self._calls: Counter[str] = Counter()  # guarded by _lock
        self._held: set[str] = set()  # guarded by _lock; keys whose calls are held
        self._is_held = threading.Condition(self._lock)
        self._may_answer = threading.Event()
        self._holds_from: int | None = None  # written by the test's thread
        self._failing: set[str] = set()  # written by the test's thread
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.handle(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: object) -> None:
                """A client was killed."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def calls(self) -> dict[str, int]:
        with self._lock:
            return dict(self._calls)

    @property
    def held(self) -> set[str]:
        """The keys whose calls are in flight."""
        with self._lock:
            return set(self._held)

    def await_held(self, number: int) -> set[str]:
        """Wait until so many calls are in flight; return their keys."""
        with self._is_held:
            assert self._is_held.wait_for(lambda: len(self._held) >= number, TIMEOUT_S), self._held
            return set(self._held)

    def hold_from(self, key: int) -> None:
        """Answer no call for this key or a higher one until `release`."""
        self._may_answer.clear()
        self._holds_from = key

    def fail(self, *keys: int) -> None:
        """Answer these keys with status 500, and no others."""
        self._failing = {str(key) for key in keys}

    def release(self) -> None:
        self._may_answer.set()

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Server's threads."""
        key = request.path.removeprefix("/")
        with self._lock:
            self._calls[key] += 1
        if self._holds_from is not None and int(key) >= self._holds_from:
            with self._lock:
                self._held.add(key)
                self._is_held.notify_all()
            self._may_answer.wait(TIMEOUT_S)
            with self._lock:
                self._held.discard(key)
        body = str(2 * int(key)).encode()
        request.send_response(500 if key in self._failing else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def __enter__(self) -> CountingServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(TIMEOUT_S)


def ask(url: str, key: int) -> int:
    """One call of the service at `url`; blocks."""
    try:
        with urllib.request.urlopen(f"{url}/{key}", timeout=TIMEOUT_S) as answer:
            return int(answer.read())
    except urllib.error.HTTPError as error:
        error.close()  # it is the answer, with its socket
        raise
