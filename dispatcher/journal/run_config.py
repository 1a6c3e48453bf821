"""The configuration of the run that wrote a journal: a file next to the segments, for people and for the report.

It is no part of the journal: whatever is in its place, the journal is read, verified and repaired without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from dispatcher.config import ConfigModel
from dispatcher.errors import JournalError
from dispatcher.journal.snapshot import permissions_of
from dispatcher.util.files import read_file, replace_file

RUN_CONFIG: Final = "run.yaml"

_MOST_BYTES: Final = 1 << 16


def write_run_config(journal: Path, config: ConfigModel, about: str) -> None:
    """Write all keys with their values, defaults too, below a comment, `about` the run. Replaces an earlier file.

    Its permissions are the journal's.

    Raises:
        JournalError: it cannot be written.
    """
    comment = " ".join("".join(letter if letter.isprintable() else " " for letter in about).split())
    text = f"# {comment}\n" + yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    draft = journal / f".{RUN_CONFIG}.new"
    try:
        mode = permissions_of(journal).file_mode
        replace_file(journal / RUN_CONFIG, text.encode("utf-8", "backslashreplace"), draft=draft, sync=False, mode=mode)
    except OSError as error:
        raise JournalError(f"{journal / RUN_CONFIG}: cannot be written: {error.strerror or error}") from error


def read_run_config(journal: Path) -> str | None:
    """The file's text, without control characters and cut after 64 KB; None if the file cannot be read."""
    try:
        data = read_file(journal / RUN_CONFIG, _MOST_BYTES + 1)
    except OSError:
        return None
    text = data[:_MOST_BYTES].decode("utf-8", "replace")
    shown = "".join(
        letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )
    return f"{shown}\n..." if len(data) > _MOST_BYTES else shown
