"""Handing the unhandled events of a journal to their handlers, without the daemon that they were posted to."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.config import JournalConfig
from dispatcher.errors import ConfigError
from dispatcher.journal.writer import JournalWriter


def redeliver(path: Path, factory: str) -> tuple[int, int, int]:
    """Run the dispatcher that `factory` (`module:function`) makes of a JournalWriter until it is drained, and stop it.

    Returns how many events were handled, have failed, and are still left. Blocks while handlers run.

    Raises:
        ConfigError: there is no such function, or it returns no AsyncDispatcher with that journal.
        JournalError: the journal cannot be written, or has an event whose class the dispatcher does not declare.
    """
    make = _load(factory)
    journal = JournalWriter(path, JournalConfig(write_ahead=True, durability="sync"))
    try:
        dispatcher = make(journal)
        if not isinstance(dispatcher, AsyncDispatcher) or dispatcher.journal is not journal:
            raise ConfigError(
                f"{factory}: should return an AsyncDispatcher(journal=journal) of the journal that it is given, "
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
    # As `python -m` does: the recovering process runs in the daemon's folder.
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
