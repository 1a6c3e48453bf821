"""A resource manager as a process of its own, for a test to kill. Run as a script: `kill_daemon.py FOLDER`.

The script is a template that has imported everything: each line on its standard input is a command.

    fork    starts a daemon, a fork of the template, and prints its process id
    reap    waits for its end, and prints its exit status

Daemons serve clients on the socket FOLDER/socket: a request is (name, arguments), its answer (True, result) or
(False, error). They end with the template, and that with its standard input.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from statemachines.resourcemanager import Resource, ResourceManager, ResourceManagerConfig
from statemachines.simulation.workload import NodeSpec, Workload

CONFIG = {
    "metrics": {"enabled": False},
    "max_attempts": 3,
    "nm_heartbeat_interval_ms": 25,
    "nm_expiry_interval_s": 1,
    "am_expiry_interval_s": 0.3,
    "container_allocation_expiry_s": 0.3,
    "simulation": {"am_register_delay_ms": 5},
}
NODES = Workload("nodes", tuple(NodeSpec(f"n{number}", Resource(100, 100_000)) for number in range(3)), ())


class Daemon:
    """A resource manager that keeps its state in FOLDER/state.db, and its clients."""

    def __init__(self, folder: Path) -> None:
        store = {"kind": "sqlite", "path": folder / "state.db", "batch_size": 20}
        self._manager = ResourceManager(ResourceManagerConfig.model_validate({**CONFIG, "state_store": store}))
        self._manager.bring(NODES)
        self._address = str(folder / "socket")
        self._has_ended = threading.Event()

    def run(self) -> None:
        """Until a client stops it."""
        with self._manager:
            Path(self._address).unlink(missing_ok=True)  # of a daemon that was killed
            listener = Listener(self._address, "AF_UNIX", backlog=16)
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            self._has_ended.wait()

    def _accept(self, listener: Listener) -> None:
        while True:
            connection = listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                name, *arguments = connection.recv()
                try:
                    answer = (True, getattr(self, name)(*arguments))
                except Exception as error:
                    answer = (False, repr(error))
                connection.send(answer)

    # -- requests

    def new(self) -> str:
        return self._manager.clients.get_new_application()

    def submit(self, submission: Any) -> str:
        return self._manager.clients.submit_application(submission, timeout=10)

    def states(self) -> dict[str, tuple[str, str]]:
        """By id, name and state of each application."""
        reports = self._manager.clients.get_applications()
        return {report.application_id: (report.name, report.state) for report in reports}

    def stop(self) -> None:
        self._has_ended.set()


def _fork(folder: Path, run: Callable[[Path], None]) -> tuple[int, int]:
    """Start a daemon; returns its id, and a pipe that it dies of when it is closed, with the template or before."""
    ear, mouth = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ear)
        return pid, mouth
    status = 1
    try:
        os.close(mouth)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the template's answers are not for the daemon to write
        threading.Thread(target=lambda: os.read(ear, 1) or os._exit(2), daemon=True).start()
        run(folder)
        status = 0
    except BaseException:
        logging.exception("the daemon failed")
    finally:
        os._exit(status)


def be_template(folder: Path, run: Callable[[Path], None]) -> None:
    """Serve the commands; `run` is a daemon's life."""
    logging.basicConfig(level=logging.WARNING)
    pid = mouth = 0
    for line in sys.stdin:
        if line == "fork\n":
            pid, mouth = _fork(folder, run)
            print(pid, flush=True)
        else:
            print(os.waitpid(pid, 0)[1], flush=True)
            os.close(mouth)


if __name__ == "__main__":
    be_template(Path(sys.argv[1]), lambda folder: Daemon(folder).run())
