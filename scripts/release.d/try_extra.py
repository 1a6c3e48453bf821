"""Tries an installed wheel with one of its extras, as its first user does; run outside the repository.

python try_extra.py EXTRA VERSION
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from enum import Enum, auto
from pathlib import Path


class JobEventType(Enum):
    SUBMITTED = auto()


def core() -> None:
    from dispatcher import AsyncDispatcher, Event, JournalConfig, JournalWriter

    handled: list[Event[JobEventType]] = []
    with tempfile.TemporaryDirectory() as folder:
        journal = JournalWriter(Path(folder, "journal"), JournalConfig())
        dispatcher = AsyncDispatcher(name="jobs", journal=journal)
        dispatcher.register(JobEventType, handled.append)
        with dispatcher:
            assert dispatcher.post(Event(JobEventType.SUBMITTED))
        assert len(handled) == 1
    from statemachines.resourcemanager import ResourceManagerConfig

    assert ResourceManagerConfig().scheduler.kind in ("fifo", "capacity")


def cli() -> None:
    for words in (["--version"], ["config", "show", "resourcemanager"], ["graph", "rmapp"]):
        done = command(*words)
        assert done.returncode == 0, done.stderr
    assert sys.argv[2] in command("--version").stdout


def web() -> None:
    from dispatcher import AsyncDispatcher, CompositeService
    from dispatcher.ops import OpsDoor
    from dispatcher.web import WebConfig

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "door.sock")
        daemon = CompositeService("daemon")
        daemon.add_service(OpsDoor(web=WebConfig(socket_path=path), name="jobs"))
        daemon.add_service(AsyncDispatcher(name="jobs"))
        with daemon, socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /ops/v1/dispatchers HTTP/1.0\r\nHost: door\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert b" 200 " in answer, answer
        assert b'"jobs"' in answer, answer


def cron() -> None:
    from dispatcher import AsyncDispatcher, Event

    nightly = AsyncDispatcher().post_every(cron="0 7 * * 1-5", tz="Europe/Berlin", event=Event(JobEventType.SUBMITTED))
    assert nightly.due is not None


def spark() -> None:
    from pipeline.spark import spark_session

    with spark_session("local[1]") as session:
        assert session.range(3).count() == 3


def connect() -> None:
    from pyspark.sql.connect.session import SparkSession

    assert SparkSession.__name__


def postgres() -> None:
    import psycopg

    from pipeline.lookup import PostgresTable

    assert psycopg.pq.version()
    assert PostgresTable.__name__


def command(*words: str) -> subprocess.CompletedProcess[str]:
    script = shutil.which("dispatcher", path=str(Path(sys.executable).parent))
    assert script is not None
    return subprocess.run([script, *words], capture_output=True, text=True, timeout=120, check=False)


def main() -> None:
    core()
    tries = {"cli": cli, "cron": cron, "web": web, "spark": spark, "connect": connect, "postgres": postgres}
    if sys.argv[1] in tries:
        tries[sys.argv[1]]()
    else:
        done = command("--version")
        assert (done.returncode, "pip install" in done.stderr) == (2, True), done
    print(f"{sys.argv[1]}: works on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
