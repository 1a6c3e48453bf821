"""What a command is given as MODULE:NAME."""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Any

from dispatcher.errors import ConfigError
from dispatcher.util.terminal import one_line


def imported(place: str, given: str, kind: str) -> Any:
    """The object at `place`, which is MODULE:NAME. `given`: how messages name it; `kind`: what it is.

    Raises:
        ConfigError: it is not of that form, the module cannot be imported, or has no such name.
    """
    name, colon, attribute = place.partition(":")
    if not (name and colon and attribute) or not all(map(str.isidentifier, name.split("."))):
        raise ConfigError(f"{given}: give it as MODULE:{kind.upper()}, such as package.module:{kind}")
    # As `python -m` does, so that modules in the current folder, usually the daemon's, are found.
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{given}: the module cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # whatever its code raises, or import_module of such a name
        raise ConfigError(f"{given}: the module cannot be imported: {described(error)}") from error
    finally:
        sys.path.remove("")
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(f"{given}: {name} has no {kind} {attribute}")
    return found


def described(error: BaseException) -> str:
    """The error's class and text, and the line of the user's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(str(error))}{at}"
