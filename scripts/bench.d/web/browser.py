"""Chromium, driven by its debugging protocol over a pipe, so that no library is needed."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from typing import Any

from ops.processes import resident_bytes

TIMEOUT_S = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    """Where it is installed; None if it is not."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Browser:
    """A browser without a window. One thread."""

    def __init__(self, core: int | None = None) -> None:
        found = program()
        if found is None:
            raise RuntimeError(f"none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)")
        self._folder = tempfile.TemporaryDirectory(prefix="bench-browser-")
        to_it, commands = os.pipe()
        answers, from_it = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions"]
        options += ["--disable-dev-shm-usage", "--disable-background-networking", "--window-size=1280,1024"]
        options += ["--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows"]

        def prepare() -> None:
            # Its pipe is at the descriptors 3 and 4. One of ours may have such a number: copies beyond them first.
            copies = [fcntl.fcntl(each, fcntl.F_DUPFD, 10) for each in (to_it, from_it)]
            for place, each in enumerate(copies, start=3):
                os.dup2(each, place)
            if core is not None:
                os.sched_setaffinity(0, {core})

        self._process = subprocess.Popen(
            [found, *options, "--remote-debugging-pipe", f"--user-data-dir={self._folder.name}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=prepare,
            close_fds=False,
        )
        os.close(to_it)
        os.close(from_it)
        self._commands, self._answers = commands, answers
        self._unread = b""
        self._numbers = itertools.count(1)

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command; returns its result. Events that come meanwhile are dropped."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            found = self._next(deadline)
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result

    def open(self, url: str) -> str:
        """A new window, so that none hides another; returns its session once the page is loaded."""
        target = self.ask("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        session: str = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable", session)
        self.go(session, url)
        return session

    def go(self, session: str, url: str) -> None:
        """Load a page in a tab, to its end."""
        self.ask("Page.navigate", session, url=url)
        deadline = time.monotonic() + TIMEOUT_S
        while self.value(session, "document.readyState + ' ' + location.href") != f"complete {url}":
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} was not loaded within {TIMEOUT_S:g} s")
            time.sleep(0.02)

    def value(self, session: str, expression: str) -> Any:
        """What a JavaScript expression gives, as JSON."""
        answer = self.ask("Runtime.evaluate", session, expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def heap_bytes(self, session: str) -> int:
        """The JavaScript heap of a tab, after a garbage collection."""
        self.ask("HeapProfiler.collectGarbage", session)
        return int(self.ask("Runtime.getHeapUsage", session)["usedSize"])

    def renderers_bytes(self) -> int:
        """Resident size of all processes that draw pages."""
        processes = self.ask("SystemInfo.getProcessInfo")["processInfo"]
        pids = [each["id"] for each in processes if each["type"] == "renderer"]
        return sum(map(resident_bytes, pids))

    def close(self) -> None:
        os.close(self._commands)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._folder.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._answers, 1 << 20) if ready else b""
            if not piece:
                raise TimeoutError(f"the browser has not answered within {TIMEOUT_S:g} s, or has ended")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found
