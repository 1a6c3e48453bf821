"""Hadoop's own classes on the JVM, from the jars inside the installed pyspark, by HadoopBench.java.

One JVM serves the whole run, one round at a time, so that its rounds alternate with ours; in between it waits for
input. Its log level is ERROR: at INFO it would log its queue size every 1,000 events, and at WARN each post to a queue
that is almost full. Its collector and its heap are Java's defaults.

On two cores its dispatcher's rate varies by a factor of four and more from run to run, however warm it is; on one core
it is fast and steady. So each round has several runs, and the targets show its fastest run beside the median.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from measure import Row

SOURCE = Path(__file__).with_name("HadoopBench.java")
WARM_UP_ROUNDS = 10
RUNS_PER_ROUND = 3
ANSWER_TIMEOUT_S = 120.0


class Hadoop:
    """The JVM that runs HadoopBench."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors
        self._warm: set[str] = set()

    def row(self, key: str, name: str, java_row: str, count: int) -> Row:
        """A row of a table. Its first run comes after enough others for the JIT to have done its work."""

        def run(asked: int) -> float:
            if java_row not in self._warm:
                self._warm.add(java_row)
                for _ in range(WARM_UP_ROUNDS):
                    self._ask(java_row, count)
            return self._ask(java_row, asked)

        return Row(key, name, count, run, RUNS_PER_ROUND)

    def _ask(self, java_row: str, count: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(ANSWER_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write(f"{java_row} {count}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            watchdog.cancel()
        if not answer.startswith(f"{java_row} "):
            self._errors.seek(0)
            raise RuntimeError(f"the JVM gave no figure for {java_row}: {answer or self._errors.read()[-2000:]}")
        return float(answer.split()[1])


@contextmanager
def hadoop_jvm() -> Iterator[Hadoop | None]:
    """The JVM, ended on the way out; None, with a line that says why, where it cannot run."""
    command, problem = _command()
    if problem:
        print(f"The rows of Hadoop on the JVM are skipped: {problem}.")
        yield None
        return
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
        )
        try:
            yield Hadoop(process, errors)
        finally:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.close()  # its main ends with its input
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _command() -> tuple[list[str], str]:
    """How to start it, or why not."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        return [], "no java was found"
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False)
    if "jdk.compiler" not in modules.stdout:
        return [], f"{java} has no compiler; a JDK of 17 or newer is needed, not only a JRE"
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        return [], "pyspark, whose jars hold Hadoop's classes, is not installed"
    jars = Path(pyspark.origin).parent / "jars"
    if not list(jars.glob("hadoop-client-api-*.jar")):
        return [], f"there is no hadoop-client-api in {jars}"
    return [java, "-Dlog4j2.level=ERROR", "-cp", str(jars / "*"), str(SOURCE)], ""
