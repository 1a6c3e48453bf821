"""Redelivering the unhandled events of a journal without the daemon they were posted to."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dispatcher.async_dispatcher import AsyncDispatcher
from dispatcher.config import JournalConfig
from dispatcher.errors import ConfigError, DispatcherError
from dispatcher.groups import MultiDispatcher
from dispatcher.journal.partitioned import PartitionedJournal
from dispatcher.journal.snapshot import parts_of, permissions_of
from dispatcher.journal.writer import JournalWriter
from dispatcher.util.terminal import one_line

_LONGEST_REPR: Final = 200


def redeliver(path: Path, factory: str) -> tuple[int, int, int]:
    """Make a dispatcher with `factory` (`module:function`), drain it, and stop it. The function is called with a
    JournalWriter or, for a partitioned journal, with a PartitionedJournal.

    Returns the numbers of events handled, failed and left. Blocks while handlers run.

    Raises:
        ConfigError: the function does not exist or raises, or does not return a dispatcher with that journal.
        JournalError: the journal cannot be written, or has an event whose class the dispatcher does not declare.
    """
    make = _load(factory)
    is_partitioned = parts_of(path).is_partitioned
    config = JournalConfig(write_ahead=True, durability="sync", permissions=permissions_of(path).name)
    journal = PartitionedJournal(path, config) if is_partitioned else JournalWriter(path, config)
    try:
        try:
            dispatcher = make(journal)
        except DispatcherError:
            raise
        except Exception as error:
            raise ConfigError(f"--with {factory}: the function raised {_described(error)}") from error
        parts: tuple[AsyncDispatcher, ...] = ()
        if isinstance(dispatcher, MultiDispatcher) and dispatcher.journal is journal:
            parts = dispatcher.partitions
        elif isinstance(dispatcher, AsyncDispatcher) and dispatcher.core.journal is journal:
            parts = (dispatcher,)
        if not parts:
            wanted = "a MultiDispatcher" if is_partitioned else "an AsyncDispatcher"
            raise ConfigError(
                f"{factory}: should return {wanted}(journal=journal) with the journal it was given, "
                f"not yet started; it returned {_shown(dispatcher)}"
            )
        with dispatcher:
            dispatcher.await_drained()
    finally:
        journal.close()
    stats = [part.stats() for part in parts]
    return sum(each.handled for each in stats), sum(each.failed for each in stats), journal.outstanding


def _load(factory: str) -> Callable[[Any], Any]:
    name, colon, function = factory.partition(":")
    if not (name and colon and function) or not all(map(str.isidentifier, name.split("."))):
        raise ConfigError(f"--with {factory}: give it as MODULE:FUNCTION, such as package.module:function")
    # As `python -m` does, so that modules in the current folder, usually the daemon's, are found.
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"--with {factory}: the module cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # whatever its code raises, or import_module of such a name
        raise ConfigError(f"--with {factory}: the module cannot be imported: {_described(error)}") from error
    finally:
        sys.path.remove("")
    made = getattr(module, function, None)
    if not callable(made):
        raise ConfigError(f"--with {factory}: {name} has no function {function}")
    return made  # type: ignore[no-any-return]


def _described(error: BaseException) -> str:
    """The error's class and text, and the line of the user's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(str(error))}{at}"


def _shown(value: object) -> str:
    try:
        return one_line(repr(value), _LONGEST_REPR)
    except Exception as error:
        return f"a {type(value).__name__}, whose repr raises {type(error).__name__}"
