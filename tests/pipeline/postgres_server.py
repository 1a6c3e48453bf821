"""A PostgreSQL server of the tests' own, on a free loopback port, which can be stopped and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import psycopg

PASSWORD = "s3cret/word"
_USER = "postgres"
_TIMEOUT_S = 60
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "autovacuum": "off",
    "shared_buffers": "16MB",
    "max_connections": "40",
    "log_min_messages": "fatal",
}


class PostgresUnavailableError(Exception):
    """There is no PostgreSQL here, or nobody to run it. Says what is missing."""


def _binary(name: str) -> str:
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: path.parts[-3].zfill(4))
    found = str(installed[-1]) if installed else shutil.which(name)
    if found is None:
        raise PostgresUnavailableError(f"no {name}: neither in /usr/lib/postgresql nor on the PATH (apt: postgresql)")
    return found


def _owner() -> pwd.struct_passwd | None:
    """As whom to run the server: it refuses to be root's. None: as ourselves."""
    if os.geteuid() != 0:
        return None
    for name in (_USER, "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresUnavailableError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


class PostgresServer:
    """Made and started by `start`, which may follow a `stop`; `remove` stops it and deletes all of it."""

    def __init__(self) -> None:
        self._initdb, self._postgres = _binary("initdb"), _binary("postgres")
        self._owner = _owner()
        self._folder = Path(tempfile.mkdtemp(prefix="lookup-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        # Bound all the time, so that no other program gets the port while the server is away. The server, which has the
        # same option, may listen there.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port: int = self._reserved.getsockname()[1]
        if self._owner is not None:
            os.chown(self._folder, self._owner.pw_uid, self._owner.pw_gid)
        password = self._folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        options = ["-U", _USER, "-E", "UTF8", "--locale=C", "--no-sync", "--auth=scram-sha-256", f"--pwfile={password}"]
        self._run([self._initdb, "-D", f"{self._folder}/data", *options])

    @property
    def conninfo(self) -> str:
        return f"host=127.0.0.1 port={self.port} dbname=postgres user={_USER} password={PASSWORD}"

    def start(self) -> None:
        """Returns when the server answers; at once if it runs."""
        if self._process is not None:
            return
        settings = [part for key, value in _SETTINGS.items() for part in ("-c", f"{key}={value}")]
        command = [
            self._postgres,
            "-D",
            f"{self._folder}/data",
            "-p",
            str(self.port),
            "-k",
            str(self._folder),
            *settings,
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder, **self._as_owner())
        self._await_answer()

    def stop(self) -> None:
        """Ends the server, and its clients' connections with it; returns when it is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def remove(self) -> None:
        self.stop()
        self._reserved.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def _await_answer(self) -> None:
        assert self._process is not None
        ready = [_binary("pg_isready"), "-h", "127.0.0.1", "-p", str(self.port), "-t", "1", "-q"]
        for _ in range(_TIMEOUT_S * 20):
            if subprocess.run(ready, timeout=_TIMEOUT_S).returncode == 0:
                return
            try:
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            break
        self.stop()
        raise AssertionError(f"PostgreSQL does not start: {(self._folder / 'log').read_text()}")

    def _run(self, command: list[str]) -> None:
        made = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, **self._as_owner())
        assert made.returncode == 0, made.stderr

    def _as_owner(self) -> dict[str, object]:
        if self._owner is None:
            return {}
        return {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": []}
