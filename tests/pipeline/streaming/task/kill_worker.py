"""Runs a StreamTask in a process that is killed, once for each line of JSON: see tests/kit/killed.py.

    {"folder": ..., "kill_after_s": 0.03 or null, "mode": "ordered", "inputs": 100, ...}

The kernel kills the process when its timer expires, as SIGKILL does: Python handles no SIGALRM. A run appends each
output to `folder/output`, one write to a line, so that a line is whole or not there. A restored run first appends what
it knows to `folder/starts`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import traceback
from pathlib import Path
from typing import Any

from pipeline.streaming import (
    CheckpointStorage,
    IterableInput,
    SourceStreamTask,
    StreamRecord,
    StreamTask,
    StreamTaskOutput,
    async_wait_operator,
)

from ....kit.killed import serve
from .task_fakes import Counter


class LineOutput(StreamTaskOutput):
    """A file of one value to a line; its state is its length, to which it is cut back if it `cuts`."""

    def __init__(self, path: Path, cuts: bool) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._cuts = cuts

    def __call__(self, element: Any) -> None:
        if isinstance(element, StreamRecord):
            os.write(self._descriptor, f"{element.value}\n".encode())

    def snapshot_state(self) -> int:
        return os.fstat(self._descriptor).st_size

    def initialize_state(self, state: Any) -> None:
        if self._cuts:
            os.ftruncate(self._descriptor, state or 0)

    def close(self) -> None:
        os.close(self._descriptor)


def run_task(request: dict[str, Any]) -> None:
    folder = Path(request["folder"])
    output = LineOutput(folder / "output", request["cuts"])
    storage = CheckpointStorage(folder / "checkpoints")

    async def look_up(value: int) -> list[int]:
        await asyncio.sleep(0.001 * (1 + value % 3))
        return [value]

    operators = async_wait_operator(look_up, timeout_ms=60_000, capacity=4, output_mode=request["mode"])
    stored: dict[str, Any] = {"checkpoint_storage": storage, "checkpoint_interval_ms": 3}
    task: StreamTask
    if request["source"]:
        task = SourceStreamTask(Counter(request["inputs"]), operators, output, queue_capacity=5, **stored)
    else:
        task = StreamTask(IterableInput(range(request["inputs"])), operators, output, **stored)
    next_id = storage.next_id()
    recovery = task.restore()
    if recovery is None:
        output.initialize_state(None)
    start = {
        "lines": (folder / "output").read_bytes().count(b"\n"),
        "next_id": next_id,
        "restored": recovery.checkpoint_id if recovery is not None else 0,
        "outputs_before": recovery.outputs_before if recovery is not None else 0,
    }
    with (folder / "starts").open("a") as starts:
        starts.write(json.dumps(start) + "\n")
    task.run()


def run(line: str) -> None:
    request = json.loads(line)
    if request["kill_after_s"] is not None:
        signal.setitimer(signal.ITIMER_REAL, request["kill_after_s"])
    try:
        run_task(request)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    serve(run)
