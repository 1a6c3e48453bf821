"""Folders of a run, and files and folders that are replaced as a whole."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dispatcher.errors import DispatcherError


def timed(parent: Path, name: str = "") -> Path:
    """A path in `parent` that is still free: `name`, the current time in UTC, and a number if a second has several."""
    stem = name + time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(path for each in names if not (path := parent / each).exists())


@contextmanager
def drafts(folder: Path, *names: str, what: str) -> Iterator[Path]:
    """A folder for the drafts of files and folders in `folder`, which it creates. At the end they take their places.

    A name without a draft keeps what it has, and so do all names if the block raises. What a killed process has left is
    removed. One process at a time. `what` they are, for the error.

    Raises:
        DispatcherError: `folder` cannot be created or written.
    """
    place = folder / f".drafts-{names[0]}"
    with _writing(folder, what):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    try:
        yield place
        with _writing(folder, what):
            for name in names:
                if (place / name).exists():
                    _replace(place / name, folder / name, aside=place / f".old-{name}")
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def _writing(folder: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DispatcherError(
            f"{folder}: the {what} cannot be written here ({error.strerror or error}). Name another folder for it."
        ) from error


def _replace(new: Path, path: Path, *, aside: Path) -> None:
    if new.is_dir():  # only a file replaces another one in one step
        with contextlib.suppress(FileNotFoundError):
            path.rename(aside)
    new.replace(path)
