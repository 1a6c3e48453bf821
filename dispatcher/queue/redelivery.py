"""Redelivering the unhandled events of a journal without the daemon they were posted to."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.config import JournalConfig
from dispatcher.errors import ConfigError
from dispatcher.journal.format.segments import MANIFEST
from dispatcher.journal.writer import JournalWriter
from dispatcher.util.files import Permissions


def redeliver(path: Path, factory: str) -> tuple[int, int, int]:
    """Make a dispatcher with `factory` (`module:function`, called with a JournalWriter), drain it, and stop it.

    Returns the numbers of events handled, failed and left. Blocks while handlers run.

    Raises:
        ConfigError: the function does not exist, or does not return an AsyncDispatcher with that journal.
        JournalError: the journal cannot be written, or has an event whose class the dispatcher does not declare.
    """
    make = _load(factory)
    permissions = Permissions.of_file(path / MANIFEST).name
    journal = JournalWriter(path, JournalConfig(write_ahead=True, durability="sync", permissions=permissions))
    try:
        dispatcher = make(journal)
        if not isinstance(dispatcher, AsyncDispatcher) or dispatcher.journal is not journal:
            raise ConfigError(
                f"{factory}: should return an AsyncDispatcher(journal=journal) with the journal it was given, "
                f"not yet started; it returned {dispatcher!r}"
            )
        with dispatcher:
            dispatcher.await_drained()
    finally:
        journal.close()
    return dispatcher.handled, dispatcher.failed, journal.outstanding


def _load(factory: str) -> Callable[[JournalWriter], Any]:
    name, colon, function = factory.partition(":")
    if not (name and colon and function):
        raise ConfigError(f"--with {factory}: give it as MODULE:FUNCTION")
    # As `python -m` does, so that modules in the current folder, usually the daemon's, are found.
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"--with {factory}: the module cannot be imported: {error}") from error
    finally:
        sys.path.remove("")
    made = getattr(module, function, None)
    if not callable(made):
        raise ConfigError(f"--with {factory}: {name} has no function {function}")
    return made  # type: ignore[no-any-return]
