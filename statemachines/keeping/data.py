"""The data that entities keep with their states: written with the transition that changed it, and taken back if that
fails.

Threading: an entity's item belongs to the thread of its events. What threads share are dicts and a set, each with one
call for a change; any thread reads a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_json

from dispatcher.errors import DispatcherError, InvalidTypeError, InvalidValueError
from dispatcher.journal.format.declarations import LONGEST_LINE, adapter_of, lossless
from dispatcher.journal.format.entity_data import data_text, fields_in, version_in
from dispatcher.journal.format.round_trip import difference, quoted
from dispatcher.util.foreign import describe

Upgrade = Callable[[int, dict[str, Any]], Any]
"""From a version and the fields of older data, as JSON gives them back: the fields of the present version."""


class EntityDataError(DispatcherError):
    """Raised when the data of an entity can't be kept in a journal, or can't be read back.

    If a transition raises it, the entity's state and data are as before. `machine` is the factory's name.
    """

    def __init__(self, machine: str, entity: str, problem: str) -> None:
        self.machine = machine
        self.entity = entity
        super().__init__(f"{machine} {entity}: {problem}")


class EntityData:
    """The data of the entities of one kind, each as it was after its last transition."""

    def __init__(self, machine: str, class_: type, version: int, upgrade: Upgrade | None) -> None:
        """
        Raises:
            TypeError: `class_` is neither a pydantic model nor a dataclass, or has a field that JSON cannot give back.
            ValueError: `version` is less than 1.
        """
        if not (isinstance(class_, type) and (is_dataclass(class_) or issubclass(class_, BaseModel))):
            raise InvalidTypeError(f"{machine}: data= takes a pydantic model or a dataclass; {class_!r} is neither")
        if version < 1:
            raise InvalidValueError(f"{machine}: data_version={version}: must be at least 1")
        self._machine = machine  # never changes, like all fields that do not say otherwise
        self._class = class_
        self._version = version
        self._upgrade = upgrade
        self._adapter = adapter = adapter_of(class_)
        known = lossless(class_, adapter.core_schema)
        self._keeps: Callable[[Any], bool] = known.keeps if known is not None else lambda data: False
        self._texts: dict[str, str] = {}  # by entity: after its last transition
        self._changes: dict[str, str] = {}  # by entity: what the transition in progress has changed
        self._unwritten: set[str] = set()  # entities that the journal has no data of

    def begin(self, operand: Any, entity: str, text: str | None) -> None:
        """An entity begins, or comes back with the `text` of its data. Raises as `text_of`; for `text` as `read`."""
        if text is not None:
            operand.data = self.read(entity, text)
        else:
            text = self.text_of(entity, getattr(operand, "data", None))
            self._unwritten.add(entity)
        self._texts[entity] = text

    def seal(self, operand: Any, entity: str) -> None:
        """Encode the data before the state changes. Raises EntityDataError."""
        text = self.text_of(entity, operand.data)
        if text != self._texts[entity] or entity in self._unwritten:
            self._changes[entity] = text

    def undo(self, operand: Any, entity: str) -> None:
        """The transition fails: give the operand the data that it had."""
        self._changes.pop(entity, None)
        operand.data = self.read(entity, self._texts[entity])

    def change_of(self, entity: str) -> str | None:
        """What the journal gets with the transition that was just made; None: nothing has changed."""
        return self._changes.get(entity)

    def commit(self, entity: str) -> None:
        """The transition has ended. If it was made, its change counts."""
        text = self._changes.pop(entity, None)
        if text is not None:
            self._texts[entity] = text
            self._unwritten.discard(entity)

    def forget(self, entity: str) -> None:
        """The entity is no longer kept."""
        self._texts.pop(entity, None)
        self._changes.pop(entity, None)
        self._unwritten.discard(entity)

    def fields_text(self, entity: str) -> str | None:
        """The fields as JSON; None: there is no such entity. Any thread."""
        text = self._texts.get(entity)
        return None if text is None else fields_in(text)

    def text_of(self, entity: str, data: Any) -> str:
        """
        Raises:
            EntityDataError: it is not of the class, or would not come back from the text as it is.
        """
        if type(data) is not self._class:
            problem = f"its data is {quoted(data)}, not a {self._class.__name__}. Set `data` where the operand is made"
            raise EntityDataError(self._machine, entity, f"{problem}, and to that class alone.")
        fields = b""
        with suppress(Exception):  # the proof says what is wrong
            if self._keeps(data):
                fields = to_json(data, inf_nan_mode="constants")
        if not 0 < len(fields) < LONGEST_LINE:
            fields = self._proven(entity, data)
        return data_text(self._version, fields.decode())

    def _proven(self, entity: str, data: Any) -> bytes:
        """The fields, once the data has come back from them."""
        try:
            fields = to_json(data, inf_nan_mode="constants")
            changed = difference(data, self._adapter.validate_json(fields))
        except Exception as error:  # from pydantic, or from the user's code
            changed = describe(error)
            raise self._unkept(entity, data, changed) from error
        if changed is not None:
            raise self._unkept(entity, data, changed)
        return fields

    def _unkept(self, entity: str, data: Any, reason: str) -> EntityDataError:
        return EntityDataError(
            self._machine,
            entity,
            f"its data {quoted(data)} cannot be kept in the journal: {reason}. Use values of the declared types that "
            "come back from JSON as they were.",
        )

    def read(self, entity: str, text: str) -> Any:
        """The data, also of an older version.

        Raises:
            EntityDataError: it no longer fits the class, its version is later than ours or has no `upgrade`, or that
                raised.
        """
        version, fields = version_in(text), fields_in(text)
        name, advice = self._class.__name__, "Raise data_version, and let upgrade= make the present fields of it."
        if version > self._version:
            problem = f"its data is of version {version}, and this program knows {name} up to {self._version}."
            raise EntityDataError(self._machine, entity, f"{problem} Run the program that wrote it, or a later one.")
        if version < self._version and self._upgrade is None:
            problem = f"its data is of version {version}, and {name} is of version {self._version}."
            raise EntityDataError(self._machine, entity, f"{problem} Pass upgrade=, which makes the present fields.")
        try:
            if version < self._version and self._upgrade is not None:
                made = self._upgrade(version, json.loads(fields))
                if type(made) is self._class:
                    return made
                fields = json.dumps(made)
            return self._adapter.validate_json(fields)
        except Exception as error:  # from pydantic, or from the user's code
            problem = f"its data {fields[:200]} of version {version} does not fit {name}: {describe(error)}. {advice}"
            raise EntityDataError(self._machine, entity, problem) from error
