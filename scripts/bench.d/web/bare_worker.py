"""A bare Starlette route on uvicorn: bare_worker.py OPTIONS-AS-JSON. It answers with so many bytes of JSON."""

from __future__ import annotations

import os
import socket
import threading

import uvicorn
from ops.processes import Answer, serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class Bare:
    """The server, on a thread as the door's is, with uvicorn's settings of the door."""

    def __init__(self, size: int, core: int | None = None) -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})
        body = b'"' + b"x" * (size - 2) + b'"'

        async def answer(_: Request) -> Response:
            return Response(body, media_type="application/json")

        config = uvicorn.Config(
            Starlette(routes=[Route("/metrics", answer)]),
            interface="asgi3",
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()
        self.started: Answer = {"port": listening.getsockname()[1]}

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


if __name__ == "__main__":
    serve(lambda options: Bare(**options))
