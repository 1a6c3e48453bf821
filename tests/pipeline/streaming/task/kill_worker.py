"""Runs a StreamTask in a process that is killed: a script, for the test that kills it.

Started once, it imports everything and then forks a child for each run, which costs milliseconds. It has one thread,
so the fork is safe. For each line of JSON on stdin it makes one run, and answers with one line:

    {"folder": ..., "kill_after_s": 0.03 or null, "mode": "ordered", "inputs": 100, ...}  ->  {"killed": true}

The child appends each output to `folder/output`, one write to a line, so that a line is whole or not there. When it has
been restored, it first appends what it knows to `folder/starts`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pipeline.streaming import (
    CheckpointStorage,
    IterableInput,
    SourceContext,
    SourceStreamTask,
    StreamRecord,
    StreamTask,
    StreamTaskOutput,
    async_wait_operator,
)


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


class CountingSource:
    """0, 1, 2... on a thread of its own."""

    def __init__(self, end: int) -> None:
        self.position = 0
        self.end = end

    def run(self, ctx: SourceContext[int]) -> None:
        while self.position < self.end:
            with ctx.checkpoint_lock:
                ctx.collect(self.position)
                self.position += 1

    def cancel(self) -> None:
        self.end = 0

    def snapshot_state(self) -> int:
        return self.position

    def initialize_state(self, state: Any) -> None:
        self.position = state


def run_task(request: dict[str, Any]) -> None:
    folder = Path(request["folder"])
    output = LineOutput(folder / "output", request["cuts"])
    storage = CheckpointStorage(folder / "checkpoints")

    async def look_up(value: int) -> list[int]:
        await asyncio.sleep(0.001 * (1 + value % 3))
        return [value]

    operators = async_wait_operator(look_up, timeout_ms=60_000, capacity=4, output_mode=request["mode"])
    task: StreamTask
    if request["source"]:
        task = SourceStreamTask(
            CountingSource(request["inputs"]),
            operators,
            output,
            queue_capacity=5,
            checkpoint_storage=storage,
            checkpoint_interval_ms=3,
        )
    else:
        task = StreamTask(
            IterableInput(range(request["inputs"])),
            operators,
            output,
            checkpoint_storage=storage,
            checkpoint_interval_ms=3,
        )
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


def run_and_kill(request: dict[str, Any]) -> bool:
    """Fork a child for one run, and kill it after a while unless it ends before; says whether it was killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            run_task(request)
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    kill_after_s = request["kill_after_s"]
    if kill_after_s is None:
        ended = True
    else:
        ended = signal.sigtimedwait({signal.SIGCHLD}, kill_after_s) is not None
        if not ended:
            os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while signal.sigtimedwait({signal.SIGCHLD}, 0) is not None:  # of this child; the next one has its own
        pass
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise RuntimeError(f"the task has failed: {request}")
    return os.WIFSIGNALED(status)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # it is waited for, with a timeout
    for line in sys.stdin:
        print(json.dumps({"killed": run_and_kill(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
