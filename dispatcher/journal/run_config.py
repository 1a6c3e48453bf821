"""The configuration of the run that wrote a journal: a file beside the segments, for people and for the report.

It is no part of the journal: whatever is in its place, the journal is read, verified and repaired without it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import yaml

from dispatcher.config import ConfigModel
from dispatcher.errors import JournalError
from dispatcher.util.files import replace_file

RUN_CONFIG: Final = "run.yaml"

_MOST_BYTES: Final = 1 << 16


def write_run_config(journal: Path, config: ConfigModel, about: str) -> None:
    """Write all keys with their values, defaults too, below a comment, `about` the run. Replaces an earlier file.

    Whoever may read the journal's folder may read the file.

    Raises:
        JournalError: it cannot be written.
    """
    comment = " ".join("".join(letter if letter.isprintable() else " " for letter in about).split())
    text = f"# {comment}\n" + yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    draft = journal / f".{RUN_CONFIG}.new"
    try:
        draft.touch()
        draft.chmod(journal.stat().st_mode & 0o644)
        replace_file(journal / RUN_CONFIG, text.encode("utf-8", "backslashreplace"), draft=draft, sync=False)
    except OSError as error:
        raise JournalError(f"{journal / RUN_CONFIG}: cannot be written: {error.strerror or error}") from error


def read_run_config(journal: Path) -> str | None:
    """The file's text, without control characters and cut after 64 KB; None if there is none that can be read."""
    try:
        # Not blocking: what has this name may be a FIFO.
        file = os.open(journal / RUN_CONFIG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        data = os.read(file, _MOST_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(file)
    text = data[:_MOST_BYTES].decode("utf-8", "replace")
    shown = "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return f"{shown}\n..." if len(data) > _MOST_BYTES else shown
