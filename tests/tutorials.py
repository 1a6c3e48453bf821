"""A tutorial as its reader follows it: files are written and changed, commands typed, and what they print compared.

The blocks of a tutorial, in the order of the page:

- of a language and the name of a file, such as `python shop.py`: the file is written.
- `diff` and the name of a file: its lines with `-` go, those with `+` come. Hunks are parted by lines with `...`.
- `console`: lines that begin with `$ ` are typed into a shell, which goes on from block to block. The other lines are
  what is printed. A line `...` stands for any lines, and `...` in a line for any text. While a command runs in the
  background, lines may come in another order, and between others.
- `python spark`: is run in this process. A block `text` that follows is what it prints.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NamedTuple

from .commands import living_in_session
from .documents import ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
ON_SPARK = ("what-if",)
"""Those with commands that start Spark."""
TIMEOUT_S = 120.0
PORTS = ("9464", "8000")
"""The ports in the tutorials. Another one takes the place of each, which is free."""


class Block(NamedTuple):
    language: str
    name: str
    """Of a file, or empty."""
    text: str


class Wrong(AssertionError):
    """The page says something else than what happens."""


def blocks_of(page: Path) -> list[Block]:
    found = re.findall(
        r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [Block(*each) for each in found]


def is_followed(page: Path) -> bool:
    """Whether there is something to type."""
    return any(block.language == "console" for block in blocks_of(page))


def needs(page: Path) -> list[str]:
    """The commands of the page that a machine may lack."""
    typed = "".join(block.text for block in blocks_of(page) if block.language == "console")
    return [command for command in ("curl", "uvicorn") if f"{command} " in typed]


def follow(page: Path, folder: Path) -> None:
    """Do what the page says, in a folder."""
    ports = {port: str(free_port()) for port in PORTS}
    with Terminal(folder) as terminal:
        for block in blocks_of(page):
            text = re.sub("|".join(PORTS), lambda found: ports[found[0]], block.text)
            if block.language == "console":
                for command, printed in commands_in(text):
                    terminal.type(command, printed)
            elif block.language == "diff":
                path = folder / block.name
                path.write_text(changed(path.read_text(encoding="utf-8"), text), encoding="utf-8")
            elif "." in block.name:
                path = folder / block.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def follow_here(page: Path, module: ModuleType) -> None:
    """Run the blocks `python spark` of the page, with the names of `module`."""
    for block, after in itertools.pairwise([*blocks_of(page), Block("", "", "")]):
        if (block.language, block.name) != ("python", "spark"):
            continue
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block.text, str(page), "exec"), module.__dict__)
        printed = "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())
        expected = after.text.strip() if after.language == "text" else ""
        if not re.fullmatch(pattern_of(expected.splitlines()), printed + "\n"):
            raise Wrong(f"{page.name} says that this prints\n{expected}\nbut it prints\n{printed}\n\n{block.text}")


def changed(before: str, diff: str) -> str:
    """The text after a block `diff`."""
    for hunk in re.split(r"^\.\.\.\n", diff, flags=re.MULTILINE):
        lines = [(line[:1], f"{line[1:]}\n") for line in hunk.splitlines()]
        old = "".join(line for sign, line in lines if sign != "+")
        new = "".join(line for sign, line in lines if sign != "-")
        if before.count(old) != 1:
            raise Wrong(f"these lines are {before.count(old)} times in the file:\n{old}\n{before}")
        before = before.replace(old, new)
    return before


def commands_in(console: str) -> list[tuple[str, list[str]]]:
    """Each command, and the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line.rstrip())
    return found


def pattern_of(lines: list[str]) -> str:
    """A regular expression of these lines."""
    return "".join("(?:.*\n)*?" if line == "..." else text_pattern(line) + "\n" for line in lines) or "\n*"


def text_pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.split("...")))


class Terminal:
    """A shell in a folder, with what it prints. Leaving it ends all that it has started."""

    def __init__(self, folder: Path) -> None:
        self._printed = threading.Condition()
        self._lines: list[str] = []  # guarded by _printed
        self._numbers = itertools.count()
        self._has_jobs = False
        self._shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            start_new_session=True,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONUNBUFFERED": "1",  # a reader's terminal shows lines at once
                "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", str(folder)),
            },
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.type("set -m", [])  # job control, as a reader's shell has it

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in living_in_session(self._shell.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._shell.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        assert self._shell.stdin is not None
        with contextlib.suppress(OSError):
            self._shell.stdin.close()
        assert self._shell.stdout is not None
        self._shell.stdout.close()

    def type(self, command: str, printed: list[str]) -> None:
        """Run a command, and wait for what the page says that it prints."""
        begin, end = len(self._lines), f"end of command {next(self._numbers)}"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"eval {shlex.quote(command)} < /dev/null\necho {end}\n")
        self._shell.stdin.flush()
        self._has_jobs = self._has_jobs or command.endswith("&")
        deadline = time.monotonic() + TIMEOUT_S
        with self._printed:
            while not self._is_as_said(begin, end, printed):
                left = deadline - time.monotonic()
                if left <= 0 or not self._printed.wait(left):
                    raise self._wrong(command, begin, printed)

    def _is_as_said(self, begin: int, end: str, printed: list[str]) -> bool:
        lines = self._lines[begin:]
        if end not in lines:
            return False
        if self._has_jobs:
            others = lines.copy()
            for line in printed:
                found = next((each for each in others if re.fullmatch(text_pattern(line), each)), None)
                if found is None:
                    return False
                if line.strip() != "...":
                    others.remove(found)
            return True
        if re.fullmatch(pattern_of(printed), "".join(f"{line}\n" for line in lines if line != end)) is None:
            raise self._wrong(end, begin, printed)
        return True

    def _wrong(self, command: str, begin: int, printed: list[str]) -> Wrong:
        expected, got = "\n".join(printed), "\n".join(self._lines[begin:])
        return Wrong(f"{command}: the page says that this prints\n{expected}\n\nbut it prints\n{got}")

    def _read(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            with self._printed:
                self._lines.append(line.rstrip())
                self._printed.notify_all()
