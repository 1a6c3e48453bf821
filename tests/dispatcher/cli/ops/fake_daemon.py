"""A daemon's door as the commands see it: the ops API's shapes over a Unix socket or TCP, without a dispatcher."""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

NOW_MS = 1_795_384_800_000

Answers = dict[str, Any]
"""By path below /ops/v1: what the JSON means, or a function of the request's handler that answers itself."""


class FakeDaemon:
    """Answers as `answers` says, which a test may change at any time. Ends with the `with` block."""

    def __init__(
        self,
        path: Path | None = None,
        answers: Answers | None = None,
        base: str = "/ops/v1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.path = path
        self._tls = tls
        self.answers = answers if answers is not None else calm()
        self.base = base
        self.asked: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self._server: socketserver.BaseServer

    def __enter__(self) -> Self:
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Over TCP: a body would wait 40 ms for the client's acknowledgement of the headers.
            disable_nagle_algorithm = daemon.path is None

            def do_GET(self) -> None:
                daemon.answer(self)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        if self.path is None:
            self._server = server = _TcpServer(("127.0.0.1", 0), Handler)
            if self._tls is not None:
                server.socket = self._tls.wrap_socket(server.socket, server_side=True)
        else:
            self._server = _UnixServer(str(self.path), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Listen no more; the socket stays, as after a kill. Connections that are open end with their next request."""
        self.answers = {"": raw(b"")}
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    @property
    def url(self) -> str:
        address: Any = self._server.server_address
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{address[1]}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        self.headers.append(dict(handler.headers))
        target = urlsplit(handler.path)
        path = unquote(target.path).removeprefix(self.base) + ("?" if "samples=" in target.query else "")
        answers = self.answers
        found = answers[""] if "" in answers else answers.get(path, KeyError)
        if callable(found) and found is not KeyError:
            found(handler)
        elif found is KeyError:
            reply(handler, 404, {"error": f"{path}: nothing has this path"})
        else:
            reply(handler, 200, found)


class _Server(socketserver.ThreadingMixIn):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """The client has left: nothing to print."""


class _UnixServer(_Server, socketserver.UnixStreamServer):
    pass


class _TcpServer(_Server, HTTPServer):
    pass


def reply(handler: BaseHTTPRequestHandler, status: int, answer: Any) -> None:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    try:
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
    except OSError:
        handler.close_connection = True


def raw(answer: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    """Send these bytes instead of an answer, and end the connection."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(answer)
        handler.close_connection = True

    return send


def dripping(head: bytes, release: threading.Event) -> Callable[[BaseHTTPRequestHandler], None]:
    """Send `head` and then a byte now and then, until `release` is set."""

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(head)
        try:
            while not release.wait(0.01):
                handler.wfile.write(b" " if head.endswith(b"\r\n\r\n") else b"X")
        except OSError:
            handler.close_connection = True

    return drip


def refusing(status: int, message: str) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda handler: reply(handler, status, {"error": message})


# -- answers -----------------------------------------------------------------------------------------------------------


def page(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "next": None, "total": len(items)}


def process(**changes: Any) -> dict[str, Any]:
    return {
        "pid": 4711,
        "name": "resourcemanager",
        "started_at": NOW_MS,
        "uptime_s": 273_600.0,
        "python": "3.13.1",
        "version": "0.1.0",
        "cpu_s": 812.5,
        "rss_bytes": 121_000_000,
        "threads": 14,
        "open_files": 31,
        "gc": {"counts": [1, 2, 3], "collections": [9, 1, 0], "collected": [40, 2, 0]},
        "loadavg": [0.52, 0.4, 0.3],
        "health": {"status": "ok", "reasons": []},
        "services": [
            {"name": "daemon", "class": "CompositeService", "state": "STARTED", "failure": None, "services": []}
        ],
    } | changes


def numbers(name: str = "central", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "AsyncDispatcher",
        "state": "STARTED",
        "queue": {"size": 0, "capacity": None, "policy": "block", "oldest_wait_s": None},
        "accepted": 41_201,
        "handled": 41_201,
        "failed": 0,
        "discarded": {"stop": 0},
        "rejected": {},
        "rate": {"1s": 12.0, "10s": 11.4, "60s": 10.9},
        "idle_share_10s": 0.98,
        "running": None,
        "mails": 0,
        "mailbox_latency_s": 0.0001,
        "journal": None,
        "is_drained": True,
        "failure": None,
    } | changes


def type_numbers(event_class: str, event_type: str, **changes: Any) -> dict[str, Any]:
    return {
        "event_class": event_class,
        "event_type": event_type,
        "queued": 0,
        "handled": 1000,
        "failed": 0,
        "rate_10s": 4.2,
        "handling_mean_s": 0.00012,
        "handling_share_10s": 0.01,
        "queue_mean_s": 0.0004,
        "slow": 0,
        "last_failure": None,
    } | changes


def running(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "event",
        "event_class": "NodeEventType",
        "event_type": "UPDATE",
        "entity": "node_17",
        "description": "",
        "since": NOW_MS - 61_200,
        "running_s": 61.2,
    } | changes


def stack() -> list[dict[str, Any]]:
    def frame(file: str, line: int, function: str, code: str, internal: bool = False) -> dict[str, Any]:
        item = {"file": file, "line": line, "function": function, "code": code}
        return {**item, "internal": True} if internal else item

    return [
        frame("/usr/lib/python3.13/threading.py", 1012, "_bootstrap", "self._bootstrap_inner()"),
        frame("/srv/venv/dispatcher/mailbox/processor.py", 210, "run", "self._default_action()", True),
        frame("/srv/venv/dispatcher/dispatching/batches.py", 87, "dispatch", "handle(event)", True),
        frame("/srv/rm/nodes.py", 41, "handle", "self._heartbeat(event.node)"),
        frame("/srv/rm/nodes.py", 77, "_heartbeat", "self._store.save(node)"),
        frame("/srv/rm/store/sqlite.py", 130, "save", "with self._connection:"),
        frame("/srv/rm/store/sqlite.py", 58, "__enter__", "self._lock.acquire()"),
    ]


def failure(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "number": number,
        "at": NOW_MS - 1000 * number,
        "event_class": "AppEventType",
        "event_type": "KILL",
        "entity": f"app_{number}",
        "error_class": "InvalidStateTransitionError",
        "message": f"RMApp app_{number}: no transition from FINISHED on KILL",
        "frames": ['  File "/srv/rm/apps.py", line 12, in handle\n    self.machine.do(event)\n'],
    } | changes


def answers_of(*dispatchers: dict[str, Any], **process_changes: Any) -> Answers:
    answers: Answers = {"/process": process(**process_changes), "/dispatchers": page(*dispatchers)}
    for each in dispatchers:
        base = f"/dispatchers/{each['name']}"
        answers[base] = each
        answers[f"{base}/types"] = page(*TYPES)
        now = each["running"]
        answers[f"{base}/running"] = {**now, "stack": stack()} if now is not None else None
        answers[f"{base}/failures"] = page()
        answers[f"{base}/running?"] = samples_of(now)
        answers[f"{base}/queue"] = {
            **page({"entity": "node_17", "queued": each["queue"]["size"]}),
            "approximate": False,
        }
    return answers


def samples_of(now: dict[str, Any] | None, samples: int = 20) -> dict[str, Any]:
    """Most samples in one stack, the others one frame above."""
    folded = [{"count": samples - 3, "stack": stack()}, {"count": 3, "stack": stack()[:-1]}] if now else []
    idle = 0 if now else samples
    return {"stacks": folded, "samples": samples, "interval_ms": 50, "idle": idle}


TYPES = [
    type_numbers("NodeEventType", "UPDATE", handled=30_000, rate_10s=9.0, handling_share_10s=0.4, queued=3),
    type_numbers("AppEventType", "START"),
    type_numbers("AppEventType", "KILL", failed=7),
    type_numbers("RMAppAttemptEventType", "CONTAINER_ALLOCATED"),
    type_numbers("RMContainerEventType", "LAUNCHED"),
]


def calm() -> Answers:
    """Ready, with two dispatchers that have little to do."""
    return answers_of(numbers(), numbers("scheduler", rate={"1s": 3.0, "10s": 2.9, "60s": 3.1}))


def flooded() -> Answers:
    """The queue of a dispatcher with a long name grows, and events fail."""
    queue = {"size": 12_000, "capacity": None, "policy": "block", "oldest_wait_s": 3.0}
    rates = {"1s": 3.0, "10s": 2.5, "60s": 1.0}
    return answers_of(
        numbers("ResourceManager", queue=queue, failure_rate=rates, rejected={"queue_full": 8123}, idle_share_10s=0.0),
        numbers("ResourceManager-scheduler"),
    )


def hanging() -> Answers:
    """One handler has not returned for a minute."""
    queue = {"size": 1204, "capacity": None, "policy": "block", "oldest_wait_s": 61.0}
    still = {"1s": 0.0, "10s": 0.0, "60s": 0.2}
    return answers_of(
        numbers("central"),
        numbers("scheduler", queue=queue, rate=still, running=running(), is_drained=False),
        health={"status": "stuck", "reasons": [{"reason": "stuck", "dispatcher": "scheduler", "seconds": 61.2}]},
    )


def failing() -> Answers:
    """Some events fail, and one dispatcher has failed as a whole."""
    answers = answers_of(
        numbers(failed=1207, handled=40_000),
        numbers("writer", state="STOPPED", failure="JournalError: /var/lib/rm/journal: No space left on device"),
        health={"status": "failed", "reasons": [{"reason": "failed", "dispatcher": "writer"}]},
    )
    for name in ("central", "writer"):
        answers[f"/dispatchers/{name}/failures"] = page(*map(failure, range(1, 4)))
    return answers


ENTITY = {
    "id": "app_17",
    "machine": "rmapp",
    "state": "RUNNING",
    "since": NOW_MS - 5000,
    "history": page(
        {"at": NOW_MS - 5000, "seq": 812, "from_state": "ACCEPTED", "event_type": "ATTEMPT_REGISTERED",
         "to_state": "RUNNING", "valid": True, "error": None},
        {"at": NOW_MS - 9000, "seq": 640, "from_state": "SUBMITTED", "event_type": "KILL", "to_state": None,
         "valid": False, "error": "no transition from SUBMITTED on KILL"},
        {"at": NOW_MS - 9100, "seq": 612, "from_state": "NEW", "event_type": "START", "to_state": "SUBMITTED",
         "valid": True, "error": None},
    ),
    "complete": True,
}  # fmt: skip
