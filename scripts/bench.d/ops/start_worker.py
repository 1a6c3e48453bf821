"""How long one thing takes to be imported and to start, in this new process: start_worker.py WHAT SOURCE.

A daemon has imported the dispatcher before it opens its door, so the door's time begins after that.
"""

from __future__ import annotations

import json
import sys
import time

EXTRAS = ("aiohttp", "anyio", "click", "h11", "httptools", "jinja2", "pandas", "psycopg", "pyarrow")
EXTRAS += ("pyspark", "rich", "starlette", "textual", "typer", "uvicorn", "zstandard")


def core() -> float:
    begun = time.perf_counter()
    from dispatcher import AsyncDispatcher

    assert AsyncDispatcher
    return time.perf_counter() - begun


def package() -> float:
    begun = time.perf_counter()
    import dispatcher

    assert dispatcher
    return time.perf_counter() - begun


def door() -> float:
    import tempfile
    from pathlib import Path

    core()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        from dispatcher.ops import OpsDoor
        from dispatcher.web import WebConfig

        with OpsDoor(web=WebConfig(socket_path=Path(folder) / "door.sock")):
            return time.perf_counter() - begun


def metrics() -> float:
    core()
    begun = time.perf_counter()
    from dispatcher import MetricsServer

    with MetricsServer():
        return time.perf_counter() - begun


def prometheus() -> float:
    begun = time.perf_counter()
    from prometheus_client import start_http_server

    server, thread = start_http_server(0, "127.0.0.1")
    took_s = time.perf_counter() - begun
    server.shutdown()
    server.server_close()
    thread.join()
    return took_s


def aiomonitor() -> float:
    import asyncio

    from ops.peers_worker import free_port

    async def start() -> float:
        begun = time.perf_counter()
        from aiomonitor import Monitor

        loop = asyncio.get_running_loop()
        monitor = Monitor(loop, termui_port=free_port(), webui_port=free_port(), console_enabled=False)
        with monitor:
            return time.perf_counter() - begun

    return asyncio.run(start())


WHAT = {"core": core, "package": package, "door": door, "metrics": metrics}
WHAT |= {"prometheus": prometheus, "aiomonitor": aiomonitor}

if __name__ == "__main__":
    if sys.argv[2]:
        sys.path.insert(0, sys.argv[2])
    took_s = WHAT[sys.argv[1]]()
    print(json.dumps({"ms": took_s * 1e3, "extras": [name for name in EXTRAS if name in sys.modules]}))
