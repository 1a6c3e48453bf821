"""Finding log files, in order, and reading them."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path

from pipeline.yarnlog.clock import LogClock, YarnLogError
from pipeline.yarnlog.log_formats import LogFormat
from pipeline.yarnlog.opening import PACKED, opened_log
from pipeline.yarnlog.parser import Record, Unparsed, parse_lines

# A container's own log is `syslog`. A rotated log ends in a date, or in a number that grows with its age.
_LOG = re.compile(r"(?P<name>.*\.log|syslog)(?:\.(?P<rotated>[\w.-]+?))?(?:\.(?:gz|bz2|xz|zst))?", re.ASCII | re.DOTALL)


def log_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files to read, each once: a file at a path whatever its name, and all logs below a folder.

    Logs in a folder are `*.log` and `syslog`, also rotated (`.log.1`, `.log.2015-10-18`) and packed (`.gz`,
    `.bz2`, `.xz`, `.zst`), but not hidden. They are sorted by name, and by age from the oldest to the newest.

    Raises:
        YarnLogError: a path does not exist, or a folder has no logs.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            logs = sorted((file for file in path.rglob("*") if _is_log(file, path)), key=_age)
            if not logs:
                raise YarnLogError(
                    f"{path}: no log in this folder; logs are *.log and syslog, also rotated (.log.1) or packed "
                    f"({', '.join(PACKED)}). Give the path of a file with another name itself"
                )
            found.update(dict.fromkeys(file.absolute() for file in logs))
        elif path.exists():
            found[path.absolute()] = None
        else:
            raise YarnLogError(f"{path}: no such file or folder")
    if not found:
        raise YarnLogError("no path is given; name a file or a folder")
    return list(found)


def _is_log(file: Path, root: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    return not is_hidden and _LOG.fullmatch(file.name) is not None and file.is_file()


def _age(file: Path) -> tuple[str, str, int, int, str]:
    found = _LOG.fullmatch(file.name)
    assert found is not None
    rotated = found["rotated"] or ""
    is_number = rotated.isdecimal() and len(rotated) < 8
    order = 2 if not rotated else 1 if is_number else 0
    return str(file.parent), found["name"], order, -int(rotated) if is_number else 0, rotated


def daemon_of(file: str | Path) -> str:
    """The daemon's name: the log's name without the suffixes of rotation and compression."""
    name = Path(file).name
    found = _LOG.fullmatch(name)
    return name if found is None else found["name"]


def read_log(
    path: str | Path,
    clock: LogClock | None = None,
    *,
    errors: str = "surrogateescape",
    on_format: Callable[[LogFormat], object] | None = None,
) -> Generator[Record | Unparsed]:
    """Parse a file in UTF-8 or UTF-16, unpacked if its name ends in a suffix of `PACKED`.

    Reads lazily: the lines that are searched for a format, and one record for each source, are in memory. Bytes that
    are not UTF-16 are replaced. Times without a year are no later than the file's last change.

    Raises:
        YarnLogError: during the iteration: the file cannot be read, or is not packed as its name says.
    """
    with opened_log(path) as lines:
        yield from parse_lines(lines, clock, errors=errors, latest=_changed_on(path), on_format=on_format)


def format_of(path: str | Path, clock: LogClock | None = None) -> LogFormat | None:
    """The format of a file; None: no line of it is a header in any known format. Reads as far as the first header.

    Raises:
        YarnLogError: as `read_log`.
    """
    formats: list[LogFormat] = []
    with closing(read_log(path, clock, errors="replace", on_format=formats.append)) as lines:
        while not formats and next(lines, None) is not None:
            pass
    return formats[0] if formats else None


def _changed_on(path: str | Path) -> date:
    return datetime.fromtimestamp(Path(path).stat().st_mtime, UTC).date()
