"""As kill_daemon.py, whose commands it takes; its daemons serve the REST API on the port in FOLDER/port.

They end when the file FOLDER/stop is there.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from kill_daemon import CONFIG, NODES, be_template

import dispatcher.web.gate
import dispatcher.web.server  # both are loaded by the first start otherwise: by each daemon anew  # noqa: F401
from dispatcher import CompositeService
from statemachines.resourcemanager import ResourceManager, ResourceManagerConfig
from statemachines.resourcemanager.web import RMDoor


def run(folder: Path) -> None:
    settings = {
        **CONFIG,
        "state_store": {"kind": "sqlite", "path": folder / "state.db", "batch_size": 20},
        "max_completed_applications": 1_000_000,
        "web": {"port": int((folder / "port").read_text()), "unix_socket": False, "refresh_ms": 20},
    }
    manager = ResourceManager(ResourceManagerConfig.model_validate(settings))
    manager.bring(NODES)
    daemon = CompositeService("daemon")
    daemon.add_service(RMDoor(manager))
    daemon.add_service(manager)
    has_ended = threading.Event()
    with daemon:
        while not (folder / "stop").exists():
            has_ended.wait(0.02)


if __name__ == "__main__":
    be_template(Path(sys.argv[1]), run)
