"""The declaration of a cache: what identifies a result, how long it is valid, and where it is kept. Pickles."""

from __future__ import annotations

import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from dispatcher.errors import InvalidTypeError, InvalidValueError
from pipeline.streaming.cache.encoding import key_text
from pipeline.streaming.cache.names import cache_name
from pipeline.streaming.cache.store import ResultKey, ResultStore, UnknownCall
from pipeline.streaming.number_checks import require_number

KeyOf: TypeAlias = str | Sequence[str] | Callable[[Any], Any]
OnUnknown: TypeAlias = Literal["call", "capture"]

_DIGEST_BYTES: Final = 20
_SHOWN_CHARACTERS: Final = 500


@dataclass(frozen=True, kw_only=True)
class ResultCache(ABC):
    """Base of all caches of results. Create a SqliteResults or a PostgresResults.

    A result is found again by the function's name, `version`, the schema of the results and the key. Failures aren't
    kept, nor are results if `retry_on_result` wants another attempt.

    `key`: a column, several, or a function of the value whose result is the key: strings, numbers, dates, or tuples of
        them. By default, the whole value, a Row with its column names. The key must hold everything the results depend
        on.
    `expires_after_s`: how long a result is valid, in seconds. By default, it never expires. An expired one is called
        for again.
    `version`: change it when your function gives other results for the same key. Earlier ones are then left alone.
    `on_unknown`: what happens to a key whose call was in flight when its process was killed or gave it up, so the
        service could have done the work. "call" makes the call again, which is logged and counted. "capture" makes no
        call, and the row ends with an UnknownOutcomeError, as `on_error` says.
    `name`: the function's name, by default made of its module, its name, and a digest of what it binds: the arguments
        of a partial, the variables of a closure, the attributes of an instance. Functions with the same name and
        version share results. Some functions have no such name, so the cache needs one: a lambda, a function that binds
        something like a connection, one that is defined in a notebook. Also give one if the function reads global
        variables that change, or comes from a script that you move or edit.

    Raises:
        ValueError, TypeError: an option is invalid.
    """

    key: KeyOf | None = None
    expires_after_s: float | None = None
    version: str | int = 1
    on_unknown: OnUnknown = "call"
    name: str | None = None
    retry_for_s: float = field(default=60.0)
    """Seconds to keep asking a database that doesn't answer, before the task fails."""

    def __post_init__(self) -> None:
        if self.expires_after_s is not None:
            require_number("expires_after_s", self.expires_after_s, above=0)
        require_number("retry_for_s", self.retry_for_s, least=0)
        if self.on_unknown not in ("call", "capture"):
            raise InvalidValueError(f'on_unknown is {self.on_unknown!r}; choose "call" or "capture".')
        if isinstance(self.version, bool) or not isinstance(self.version, str | int):
            raise InvalidTypeError(f"version is {self.version!r}; give a string or a whole number.")
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise InvalidTypeError(f"name is {self.name!r}; give a string, or None for the function's own name.")
        if not (self.key is None or callable(self.key)) and not (self.key_columns and _are_names(self.key_columns)):
            raise InvalidTypeError(
                f"key is {self.key!r}; give a column, a list of columns, or a function of the value."
            )

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that `key` names, or none if it's a function or the whole value."""
        if isinstance(self.key, str):
            return (self.key,)
        return tuple(self.key) if isinstance(self.key, Sequence) else ()

    @property
    @abstractmethod
    def where(self) -> str:
        """The file or database in messages, without a password."""

    @abstractmethod
    def connect(self, function: str) -> ResultStore:
        """Return a new owner's store for the entries of `function`, the name shown to people. Blocks.

        Raises:
            ResultCacheError: it can't be opened.
        """

    def function_name(self, function: Any) -> str:
        """Return the name used to find a function's results again.

        Raises:
            ValueError: it has none, as a lambda, or a function that binds a connection.
        """
        return cache_name(function) if self.name is None else self.name

    def keys_of(self, function: str, form: str) -> Callable[[Any], ResultKey]:
        """Return a function from a value to its key. Results stored with another `form` aren't found."""
        columns, own_key = self.key_columns, self.key
        space = hashlib.blake2b(json.dumps([function, str(self.version), form]).encode(), digest_size=_DIGEST_BYTES)

        def key_of(value: Any) -> ResultKey:
            if columns:
                value = [value[name] for name in columns]
            elif callable(own_key):
                value = own_key(value)
            text = key_text(value)
            digest = space.copy()
            digest.update(text.encode("ascii"))
            return ResultKey(digest.digest(), text[:_SHOWN_CHARACTERS])

        return key_of

    def unknown(self) -> list[UnknownCall]:
        """Return the calls whose outcome is unknown, of all functions, the oldest first. Blocks.

        Raises:
            ResultCacheError: the cache can't be read.
        """
        with closing(self.connect("")) as store:
            return store.unknown()

    def forget_unknown(self) -> int:
        """Forget the calls whose outcome is unknown, and return their number. The next job makes them again. Blocks.

        Raises:
            ResultCacheError: the cache can't be changed.
        """
        with closing(self.connect("")) as store:
            return store.forget_unknown()

    def remove_expired(self) -> int:
        """Delete all results, of all functions, older than `expires_after_s`, and return their number. Blocks.

        Raises:
            ValueError: there's no `expires_after_s`.
            ResultCacheError: the cache can't be changed.
        """
        if self.expires_after_s is None:
            raise InvalidValueError(
                "expires_after_s is None: no result expires. Give the age of the results to delete."
            )
        with closing(self.connect("")) as store:
            return store.remove_older(time.time() - self.expires_after_s)


def _are_names(names: Sequence[Any]) -> bool:
    return all(isinstance(name, str) and name for name in names)
