"""Chromium with several windows, which is led as in the tests."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from ops.processes import resident_bytes

from tests.pipeline.report.page.browser import TIMEOUT_S
from tests.pipeline.report.page.browser import Browser as TestedBrowser

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--disable-extensions", "--disable-dev-shm-usage", "--disable-background-networking", "--window-size=1280,1024"),
    *("--disable-renderer-backgrounding", "--disable-backgrounding-occluded-windows"),
)


class Browser(TestedBrowser):
    """A browser whose windows have a session each. One thread."""

    def __init__(self, core: int | None = None) -> None:
        """`core`: the only one that it may use."""
        found = next((found for name in NAMES if (found := shutil.which(name)) is not None), None)
        if found is None:
            raise RuntimeError(f"none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)")
        self._folder = tempfile.TemporaryDirectory(prefix="bench-browser-", ignore_cleanup_errors=True)
        ours = os.sched_getaffinity(0) if core is not None else set()
        if core is not None:
            os.sched_setaffinity(0, {core})  # which it inherits
        super().__init__(found, Path(self._folder.name) / "profile", *FLAGS)
        if core is not None:
            os.sched_setaffinity(0, ours)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command, to a window or to the browser; returns its result."""
        self._session = session
        return self(method, **params)

    def open_window(self, url: str) -> str:
        """A new window, so that none hides another; returns its session once the page is loaded."""
        target = self.ask("Target.createTarget", url="about:blank", newWindow=True)["targetId"]
        session: str = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable", session)
        self.go(session, url)
        return session

    def go(self, session: str, url: str) -> None:
        """Load a page in a window, to its end."""
        self.ask("Page.navigate", session, url=url)
        deadline = time.monotonic() + TIMEOUT_S
        while self.value_in(session, "document.readyState + ' ' + location.href") != f"complete {url}":
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} was not loaded within {TIMEOUT_S:g} s")
            time.sleep(0.02)

    def value_in(self, session: str, expression: str) -> Any:
        """What a JavaScript expression gives in a window, as JSON."""
        self._session = session
        return self.value(expression)

    def heap_bytes(self, session: str) -> int:
        """The JavaScript heap of a window, after a garbage collection."""
        self.ask("HeapProfiler.collectGarbage", session)
        return int(self.ask("Runtime.getHeapUsage", session)["usedSize"])

    def renderers_bytes(self) -> int:
        """Resident size of all processes that draw pages."""
        processes = self.ask("SystemInfo.getProcessInfo")["processInfo"]
        return sum(resident_bytes(each["id"]) for each in processes if each["type"] == "renderer")
