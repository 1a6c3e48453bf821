"""A resource manager for a test to kill. It is given FOLDER and PORT, and serves its REST API there.

It keeps its state in FOLDER/state.db, writes its log to FOLDER/log, and ends when the file FOLDER/stop is there.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import uvicorn  # the first start would load it otherwise: each daemon anew  # noqa: F401

from dispatcher import CompositeService
from statemachines.resourcemanager import Resource, ResourceManager, ResourceManagerConfig
from statemachines.resourcemanager.web import RMDoor
from statemachines.simulation.workload import NodeSpec, Workload

from ....kit.killed import say, serve

NODES = Workload("nodes", tuple(NodeSpec(f"n{number}", Resource(100, 100_000)) for number in range(3)), ())


def main(folder: str, port: str) -> None:
    logging.basicConfig(level=logging.WARNING, filename=f"{folder}/log")
    server = os.getppid()
    settings = {
        "metrics": {"enabled": False},
        "max_attempts": 3,
        "max_completed_applications": 1_000_000,
        "nm_heartbeat_interval_ms": 25,
        "nm_expiry_interval_s": 1,
        "am_expiry_interval_s": 0.3,
        "container_allocation_expiry_s": 0.3,
        "simulation": {"am_register_delay_ms": 5},
        "state_store": {"kind": "sqlite", "path": f"{folder}/state.db", "batch_size": 20},
        "web": {"port": int(port), "unix_socket": False, "refresh_ms": 20},
    }
    try:
        manager = ResourceManager(ResourceManagerConfig.model_validate(settings))
        manager.bring(NODES)
        daemon = CompositeService("daemon")
        daemon.add_service(RMDoor(manager))
        daemon.add_service(manager)
        has_ended = threading.Event()
        with daemon:
            while not Path(folder, "stop").exists() and os.getppid() == server:
                has_ended.wait(0.02)
    except BaseException:
        logging.exception("the daemon failed")
        raise
    say("stopped")


if __name__ == "__main__":
    serve(main)
