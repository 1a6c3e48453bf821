"""A headless Chromium for tests, led through the DevTools protocol over a pair of pipes: no port, no driver."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIMEOUT_S = 180.0

_FIRST_FREE = 10  # the browser wants its pipes at 3 and 4: nothing that is handed over may be there already
_PIPES_TO_3_AND_4 = 'in=$1; out=$2; shift 2; exec "$@" 3<&$in 4>&$out'


class Browser:
    """One page in one browser. `problems` collects the messages of its console and log, and its uncaught errors."""

    def __init__(self, executable: str, profile: Path, *more_flags: str) -> None:
        self.problems: list[str] = []
        self._numbers = itertools.count(1)
        self._received = b""
        self._session: str | None = None
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe"]
        flags += more_flags
        theirs_in, self._commands = _pipe()
        self._answers, theirs_out = _pipe()
        command = [executable, *flags, f"--user-data-dir={profile}", "about:blank"]
        with (profile.parent / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", _PIPES_TO_3_AND_4, "bash", str(theirs_in), str(theirs_out), *command],
                pass_fds=(theirs_in, theirs_out),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> Self:
        try:
            [page] = [one for one in self("Target.getTargets")["targetInfos"] if one["type"] == "page"]
            self._session = self("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self(f"{domain}.enable")
            self("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(TIMEOUT_S)
        os.close(self._commands)
        os.close(self._answers)

    def open(self, page: Path, width: int, scheme: str = "light") -> None:
        """Show a file at this width, and wait until it has been read and its script has run."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=1000, deviceScaleFactor=1, mobile=False)
        self("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self("Page.navigate", url=page.as_uri())
        deadline = time.monotonic() + TIMEOUT_S
        while not self.value("document.readyState === 'complete' && location.protocol === 'file:'"):
            assert time.monotonic() < deadline, f"{page} was not read in time: {self.problems}"

    def value(self, script: str) -> Any:
        """Evaluate an expression in the page, and await it if it is a promise."""
        answer = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, where the focus is."""
        key_event = {"key": key, "code": key, "windowsVirtualKeyCode": {"Enter": 13, "Tab": 9}[key]}
        self("Input.dispatchKeyEvent", type="keyDown", text="\r" if key == "Enter" else "", **key_event)
        self("Input.dispatchKeyEvent", type="keyUp", **key_event)

    def screenshot(self, file: Path, selector: str = "html") -> None:
        """Write a picture of an element, including any part outside the window."""
        box = self.value(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            "return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height}; })()"
        )
        file.write_bytes(self.picture(box))

    def picture(self, box: Mapping[str, float]) -> bytes:
        """A PNG of a part of the page: x, y, width and height in pixels."""
        answer = self("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip={**box, "scale": 1})
        return base64.b64decode(answer["data"])

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """Run a command of the protocol and wait for its answer; what comes in between goes to `problems`."""
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": number, "method": method, "params": params, **session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._next_message(deadline)
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next_message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._answers, 1 << 20) if ready else b""
            assert chunk, "the browser has ended or does not answer"
            self._received += chunk
        text, self._received = self._received.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, message: Mapping[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Runtime.consoleAPICalled":
                said = [str(one.get("value", one.get("description"))) for one in params["args"]]
                self.problems.append(f"console.{params['type']}: {' '.join(said)}")
            case "Runtime.exceptionThrown":
                self.problems.append(f"uncaught: {params['exceptionDetails']}")
            case "Log.entryAdded":
                self.problems.append(f"{params['entry']['level']}: {params['entry']['text']}")


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
