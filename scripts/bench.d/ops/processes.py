"""Processes that are measured, or that ask: each answers one line of JSON for each line of JSON that it is given.

They stay alive from round to round, and take turns: what slows the machine for a minute hits all of them alike.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ANSWER_TIMEOUT_S = 3600.0
Answer = dict[str, Any]


class Worker:
    """A process of one of this folder's scripts. For one thread."""

    def __init__(self, script: str, *, source: Path | None = None, **options: Any) -> None:
        """`source`: a folder with another revision of the packages; None: those that are installed."""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed with the process
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / script), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
            env=_environment(source),
        )
        self.started = self.answer()
        """What it said once it was ready."""

    def send(self, do: str, **options: Any) -> None:
        """Give it something to do; `answer` waits for the end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **options}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Answer:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._process.kill()
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError(f"{self._process.args}: no answer: {self._errors.read()[-3000:]}")
        answer: Answer = json.loads(line)
        return answer

    def ask(self, do: str, **options: Any) -> Answer:
        self.send(do, **options)
        return self.answer()

    def close(self) -> None:
        """End it, in an orderly way if it can."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # its loop ends with its input
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _environment(source: Path | None) -> dict[str, str]:
    first = [] if source is None else [str(source)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*first, os.environ.get("PYTHONPATH", "")])}


def measured_by(
    script: Path, what: str, options: Answer, *, cores: int | None = None, source: Path | None = None
) -> Answer:
    """The answer of a process that measures once. `cores`: how many it may use; `source`: as of `Worker`."""
    command = [sys.executable, str(script), what, json.dumps(options)]
    hook = None if cores is None else on_last_cores(cores)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=hook, env=_environment(source)
    )
    answer: Answer = json.loads(done.stdout)
    return answer


def on_last_cores(count: int) -> Callable[[], None]:
    """A hook that pins a child process to the last `count` cores, so that its rates hold for that number."""

    def stay() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-count:])

    return stay


def serve(start: Callable[[Answer], Any]) -> None:
    """The loop of a script: `start(options)` returns the object whose methods are what it can be asked to do.

    Its attribute `started` is the first answer. It is closed when the input ends.
    """
    worker = start(json.loads(sys.argv[1]))
    try:
        print(json.dumps(worker.started), flush=True)
        for line in sys.stdin:
            options = json.loads(line)
            answer = getattr(worker, options.pop("do"))(**options)
            print(json.dumps(answer or {}), flush=True)
    finally:
        worker.close()


@contextmanager
def source_of(revision: str | None, *packages: str) -> Iterator[Path | None]:
    """A folder with the packages as of a revision of the repository, by default the dispatcher; None for none."""
    if revision is None:
        yield None
        return
    root = HERE.parents[2]
    with tempfile.TemporaryDirectory() as folder:
        archive = ["git", "-C", str(root), "archive", revision, *(packages or ("dispatcher",))]
        packed = subprocess.run(archive, capture_output=True)
        if packed.returncode:
            raise SystemExit(f"the revision {revision}: {packed.stderr.decode(errors='replace').strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        yield Path(folder)


def in_turns(workers: Mapping[str, Worker], rounds: int, turn: Callable[[str, Worker], Answer]) -> list[dict[str, Any]]:
    """The answers of each round by name. Each round begins with another one, and the last ones come first in turn."""
    names, answers = list(workers), []
    for number in range(rounds):
        start = number % len(names)
        order = names[start:] + names[:start]
        answers.append({name: turn(name, workers[name]) for name in order})
    return answers


def resident_bytes(process: int | str = "self") -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Pouring:
    """Threads that post without a pause until they are told to stop."""

    def __init__(self, producers: int, post_many: Callable[[], Any]) -> None:
        self._is_over = False  # written by the thread that stops them, read by them
        self._post_many = post_many
        self._threads = [threading.Thread(target=self._pour) for _ in range(producers)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join()

    def _pour(self) -> None:
        while not self._is_over:
            self._post_many()


def wait_until(holds: Callable[[], bool], timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not reached within {timeout_s:g} s")
        time.sleep(0.01)
