"""One job on PyFlink's AsyncDataStream: pyflink_async.py OPTIONS-AS-JSON. Run by a Python that has apache-flink.

Prints the seconds from the first call to the last answer. They leave out the start of Flink and of its Python workers.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.datastream import AsyncDataStream, AsyncFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.java_gateway import get_gateway


class Sleeping(AsyncFunction[int, int]):  # type: ignore[misc]  # known to PyFlink's environment only
    """Each subtask leaves a file that says when its first call began and when its last answer came."""

    def __init__(self, folder: str, latency_s: float) -> None:
        self._folder = folder
        self._latency_s = latency_s
        self._calls = 0
        self._first_s = self._last_s = 0.0
        self._place = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self._place = runtime_context.get_index_of_this_subtask()

    async def async_invoke(self, value: int) -> list[int]:
        if not self._calls:
            self._first_s = time.monotonic()
        self._calls += 1
        await asyncio.sleep(self._latency_s)
        self._last_s = time.monotonic()
        return [value]

    def close(self) -> None:
        seen = {"calls": self._calls, "first_s": self._first_s, "last_s": self._last_s}
        Path(self._folder, f"{self._place}.json").write_text(json.dumps(seen))


def run(
    rows: int,
    mode: str,
    tasks: int,
    capacity: int,
    latency_s: float,
    timeout_s: float,
    worker_processes: bool,
    bundle_size: int | None = None,
) -> dict[str, float]:
    """`mode` is ordered or unordered.

    `worker_processes`: a Python process for each task, as on a cluster; else all tasks share the process of this
    script, which is what a script gets that is run on its own machine.
    """
    os.environ.update(_python_worker_execution_mode="process" if worker_processes else "loopback")
    configuration = Configuration()
    configuration.set_string("python.executable", sys.executable)
    configuration.set_string("python.client.executable", sys.executable)
    if bundle_size is not None:
        configuration.set_string("python.fn-execution.bundle.size", str(bundle_size))
    environment = StreamExecutionEnvironment.get_execution_environment(configuration)
    environment.set_parallelism(tasks)
    no_watermarks = WatermarkStrategy.no_watermarks()
    numbers = environment.from_source(NumberSequenceSource(0, rows - 1), no_watermarks, "numbers", Types.LONG())
    wait = AsyncDataStream.ordered_wait if mode == "ordered" else AsyncDataStream.unordered_wait
    with tempfile.TemporaryDirectory() as folder:
        timeout = Time.milliseconds(int(timeout_s * 1000))
        answers = wait(numbers, Sleeping(folder, latency_s), timeout, capacity, Types.LONG())
        flink = get_gateway().jvm.org.apache.flink
        answers.sink_to(Sink(flink.streaming.api.functions.sink.v2.DiscardingSink()))
        job = environment.execute("async")
        seen = [json.loads(file.read_text()) for file in Path(folder).iterdir()]
    calls = sum(subtask["calls"] for subtask in seen)
    assert calls == rows, f"{calls} calls for {rows} rows"
    took_s = max(subtask["last_s"] for subtask in seen) - min(subtask["first_s"] for subtask in seen)
    return {"rows": rows, "took_s": took_s, "job_s": job.get_net_runtime() / 1000}


if __name__ == "__main__":
    print(json.dumps(run(**json.loads(sys.argv[1]))))
