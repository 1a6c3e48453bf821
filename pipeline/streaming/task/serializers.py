"""How checkpoints store values: as JSON, which rejects what it would alter, or pickled. Any thread."""

from __future__ import annotations

import base64
import pickle
from typing import Any, Final, Protocol

from pipeline.streaming.errors import CheckpointError

_ATOMS: Final = frozenset((type(None), bool, int, float, str))
_ADVICE: Final = (
    "Use None, bool, int, float, str, list and dict, or make the storage with serializer=PickleSerializer()."
)


class Serializer(Protocol):
    """Converts values to JSON and back. `name` is stored: only a serializer of that name reads the checkpoint."""

    @property
    def name(self) -> str: ...

    def dump(self, value: Any) -> Any:
        """`value` as None, bool, int, float, str, lists and dicts with str keys. Called on the mailbox thread."""

    def load(self, stored: Any) -> Any:
        """The value that was dumped."""


class JsonSerializer:
    """Stores None, bool, int, float, str, lists and dicts with str keys unchanged, and rejects anything else.

    That includes values that JSON would alter: tuples, subclasses, and dicts with other keys.
    """

    name = "json"

    def dump(self, value: Any) -> Any:
        """Return the value as JSON. Raises CheckpointError, naming the part, if that would alter or lose part of it."""
        try:
            _check_json(value, "value")
        except RecursionError:
            raise CheckpointError("a value is nested too deeply, or contains itself; JSON cannot hold it") from None
        return value

    def load(self, stored: Any) -> Any:
        """Return the value as it was dumped."""
        return stored


class PickleSerializer:
    """Stores every value that pickle accepts. A user with write access to the folder can run code in the task."""

    name = "pickle"

    def dump(self, value: Any) -> Any:
        """Return the pickled value, as base64 text."""
        return base64.b64encode(pickle.dumps(value)).decode("ascii")

    def load(self, stored: Any) -> Any:
        """Return the value of such a text."""
        return pickle.loads(base64.b64decode(stored))


def _check_json(value: Any, path: str) -> None:
    kind = type(value)
    if kind in _ATOMS:
        return
    if kind is list:
        for index, item in enumerate(value):
            _check_json(item, f"{path}[{index}]")
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise CheckpointError(f"{path} has the key {key!r}; JSON has str keys only. {_ADVICE}")
            _check_json(item, f"{path}[{key!r}]")
    else:
        raise CheckpointError(f"{path} is a {kind.__qualname__}, which JSON would not give back. {_ADVICE}")
