"""No test sees, or is seen by, what else runs on the machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dispatcher.web import doors

from .kit.commands import ROOT, TIMEOUT_S, run_command

pytestmark = pytest.mark.long

HOSTILE = {
    "COLUMNS": "12",
    "HADOOP_CONF_DIR": "/etc/hadoop",
    "NO_COLOR": "1",
    "PGPASSWORD": "theirs",
    "SPARK_HOME": "/opt/spark",
    "WATCHDOG_USEC": "1",
    "XDG_CONFIG_HOME": "/etc/xdg",
}
INNER = "test_what_a_test_and_its_processes_see_of_the_environment"


class Host:
    """A machine on which a daemon runs in the ordinary folder, and which a service manager watches."""

    def __init__(self, folder: Path, manager: socket.socket) -> None:
        self.manager = manager
        self.environment = {**HOSTILE, "HOME": str(folder), "NOTIFY_SOCKET": f"{folder}/notify", "TMPDIR": str(folder)}


@pytest.fixture
def host() -> Iterator[Host]:
    with TemporaryDirectory(prefix="host-") as folder, ExitStack() as stack:
        ordinary = Path(folder, f"dispatcher-{os.geteuid()}")
        stack.enter_context(doors.listen_at(ordinary / f"ResourceManager-{os.getpid()}.sock", 8))
        manager = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        manager.bind(f"{folder}/notify")
        manager.setblocking(False)
        yield Host(Path(folder), manager)


def test_a_run_of_the_tests_sees_nothing_of_the_machine_and_is_not_seen(host: Host) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "-q", f"{__file__}::{INNER}"]

    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": "", **host.environment},
    )

    assert done.returncode == 0, done.stdout
    with pytest.raises(BlockingIOError):
        host.manager.recv(1)


def test_what_a_test_and_its_processes_see_of_the_environment() -> None:
    listed = run_command("ps")

    assert (listed.returncode, listed.stdout) == (0, "")
    assert doors.find_doors() == []
    assert [name for name in (*HOSTILE, "NOTIFY_SOCKET") if name in os.environ] == []
    assert Path.home().parent.name.startswith("run-")
    assert doors.door_folder().is_relative_to(Path.home().parent)
