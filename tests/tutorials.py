"""A tutorial as its reader follows it: files are written and changed, commands typed, and what they print compared.

The blocks of a tutorial, in the order of the page:

- of a language and the name of a file, such as `python shop.py`: the file is written.
- `diff` and the name of a file: its lines with `-` go, those with `+` come. Hunks are parted by lines with `...`.
- `console`: lines that begin with `$ ` are typed into a shell, which goes on from block to block. The other lines are
  what is printed, all of it. A line `...` stands for any lines, and `...` in a line for any text. The lines of a job in
  the background may come between others.
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
from functools import cache
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, NamedTuple

from .documents import ROOT
from .kit.commands import living_in_session

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
ON_SPARK = ("what-if",)
"""Those with commands that start Spark."""
TIMEOUT_S = 120.0
PORTS = ("9464", "8000", "8080")
"""The ports in the tutorials. Another one takes the place of each, which is free."""
SHORTER = {"time.sleep(5)": "time.sleep(2)", "drain_timeout_s=5": "drain_timeout_s=1"}
"""What a reader may wait for, and a test need not."""
NOTICE = re.compile(r"(\[\d+\][+-]?|bash: line \d+:| ) +(\d+ )?(Done|Exit|Killed|Terminated)\b.*|INFO:  .*")
"""What a shell prints about its jobs, and uvicorn about requests. A page may leave it out."""


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


def follow(page: Path, folder: Path, commands: Path | None = None) -> None:
    """Do what the page says, in a folder; `commands`: a folder whose programs take the place of those on the PATH."""
    others = SHORTER | {port: str(free_port()) for port in PORTS}
    with Terminal(folder, commands) as terminal:
        for block in blocks_of(page):
            text = re.sub("|".join(map(re.escape, others)), lambda found: others[found[0]], block.text)
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
    """A shell in a folder, with what it prints. Leaving it ends all that it has started.

    Jobs in the background and commands print into a pipe each: the lines of each keep their order, and every line of
    both has to be on the page.
    """

    def __init__(self, folder: Path, commands: Path | None = None) -> None:
        self._printed = threading.Condition()
        self._lines: dict[str, list[str]] = {"jobs": [], "commands": []}  # since the last command; guarded by _printed
        self._last: list[str] = []
        self._numbers = itertools.count()
        self._has_jobs = False
        printed, commands_end = os.pipe()
        own = filter(None, (commands, Path(sys.executable).parent))
        self._shell = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            start_new_session=True,
            pass_fds=[commands_end],
            env={
                **os.environ,
                "PATH": os.pathsep.join([*map(str, own), os.environ["PATH"]]),
                "PYTHONUNBUFFERED": "1",  # a reader's terminal shows lines at once
                "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", str(folder)),
            },
        )
        os.close(commands_end)
        self._to_commands = f"{commands_end}"
        assert self._shell.stdout is not None
        self._readers = [
            threading.Thread(target=self._read, args=("jobs", self._shell.stdout)),
            threading.Thread(target=self._read, args=("commands", os.fdopen(printed, encoding="utf-8"))),
        ]
        for reader in self._readers:
            reader.start()
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
        for reader in self._readers:
            reader.join(TIMEOUT_S)
        assert self._shell.stdin is not None
        with contextlib.suppress(OSError):
            self._shell.stdin.close()
        last = self._last[-1:] if self._last[-1:] == ["..."] else []
        if error is None and not is_shuffle_of(tuple(last), *map(tuple, self._lines.values())):
            raise self._wrong("after the last command", last)

    def type(self, command: str, printed: list[str]) -> None:
        """Run a command, and wait for what the page says that it prints."""
        end = f"end of command {next(self._numbers)}"
        is_job = command.endswith("&")
        self._has_jobs = self._has_jobs or is_job
        to = "" if is_job else f" >&{self._to_commands} 2>&1"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"eval {shlex.quote(command)} < /dev/null{to}\necho {end} >&{self._to_commands}\n")
        self._shell.stdin.flush()
        deadline = time.monotonic() + TIMEOUT_S
        with self._printed:
            while not self._is_as_said(end, printed):
                left = deadline - time.monotonic()
                if (end in self._lines["commands"] and not self._has_jobs) or left <= 0 or not self._printed.wait(left):
                    raise self._wrong(command, printed)
            for lines in self._lines.values():
                lines.clear()
            self._last = printed

    def _is_as_said(self, end: str, printed: list[str]) -> bool:
        commands = self._lines["commands"]
        return commands[-1:] == [end] and is_shuffle_of(
            tuple(printed), tuple(self._lines["jobs"]), tuple(commands[:-1])
        )

    def _wrong(self, command: str, printed: list[str]) -> Wrong:
        expected, got = "\n".join(printed), "\n".join([*self._lines["jobs"], *self._lines["commands"]])
        return Wrong(f"{command}: the page says that this prints\n{expected}\n\nbut it prints\n{got}")

    def _read(self, name: str, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                with self._printed:
                    self._lines[name].append(line.rstrip())
                    self._printed.notify_all()


@cache
def is_shuffle_of(said: tuple[str, ...], *printed: tuple[str, ...]) -> bool:
    """Whether the page's lines are those of all outputs, each in its own order. The page may leave out notices."""
    if not said and not any(printed):
        return True
    line, after = (said[0], said[1:]) if said else (None, ())
    if line == "..." and is_shuffle_of(after, *printed):
        return True
    for at, lines in enumerate(printed):
        if lines:
            rest = (*printed[:at], lines[1:], *printed[at + 1 :])
            is_said = line is not None and re.fullmatch(text_pattern(line), lines[0]) is not None
            if is_said and is_shuffle_of(said if line == "..." else after, *rest):
                return True
            if NOTICE.fullmatch(lines[0]) and is_shuffle_of(said, *rest):
                return True
    return False
