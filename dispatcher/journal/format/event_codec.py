"""Events in the write-ahead log, as lines of JSON, and the texts of their rows.

The classes declared for an Enum class encode and decode its events. A line is
`{"event_class": ..., "event_type": ..., "model": ..., "event": {...}}`: the names of the Enum class, its member and the
event's own class, then the event's fields, which pydantic writes and reads. Names in a log select only among the
declared classes; nothing else is ever imported or instantiated.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_json

from dispatcher.errors import EventNotDeclaredError, JournalError
from dispatcher.util.foreign import describe, text_of

_EVENT: Final = b',"event":'


class EventCodec:
    """The declared event classes of one dispatcher. Any thread may declare, encode and decode."""

    def __init__(self, dispatcher: str) -> None:
        self._dispatcher = dispatcher
        self._lock = threading.Lock()  # leaf lock
        # Each dict is replaced under _lock, never changed in place, and read without the lock.
        self._types: dict[str, type[Enum]] = {}  # replaced under _lock
        self._models: dict[tuple[str, str], TypeAdapter[Any]] = {}  # by Enum class and event class; under _lock
        self._names: dict[type, str] = {}  # as JSON, by the event's class; replaced under _lock

    def declare(self, event_type: type[Enum], classes: Iterable[type]) -> None:
        """Declare that events whose type is a member of `event_type` are instances of `classes`.

        Raises:
            TypeError: a class is neither a pydantic model nor a dataclass, or has a field that JSON cannot hold.
            ValueError: another Enum class or event class of the same name was declared.
        """
        made = {}
        for class_ in classes:
            if not (isinstance(class_, type) and (is_dataclass(class_) or issubclass(class_, BaseModel))):
                raise TypeError(f"events= takes pydantic models and dataclasses; {class_!r} is neither")
            try:
                made[class_] = TypeAdapter(class_)
            except Exception as error:  # pydantic raises many kinds, all about the class's fields
                raise TypeError(f"{class_.__name__} cannot be kept in a journal: {error}") from error
        name = event_type.__name__
        with self._lock:
            if self._types.get(name, event_type) is not event_type:
                raise ValueError(f"two Enum classes named {name} are registered; the journal identifies them by name")
            for class_ in made:
                known = self._models.get((name, class_.__name__))
                if known is not None and class_ not in self._names:
                    raise ValueError(f"two event classes named {class_.__name__} are declared for {name}")
            self._types = {**self._types, name: event_type}
            self._models = {**self._models, **{(name, class_.__name__): made[class_] for class_ in made}}
            self._names = {**self._names, **{class_: json.dumps(class_.__name__) for class_ in made}}

    def encode(self, event: Any) -> bytes:
        """The event's line, without the newline.

        Raises:
            EventNotDeclaredError: its class was not declared for its Enum class.
            JournalError: a field has a value that JSON cannot hold.
        """
        type_ = event.type
        name = type(type_).__name__
        model = self._names.get(type(event))
        if model is None or (name, type(event).__name__) not in self._models:
            raise EventNotDeclaredError(self._dispatcher, event)
        try:
            fields = to_json(event, inf_nan_mode="constants")
            # Recovery must be able to read every line: an event that does not survive the round trip is refused here.
            self._models[name, type(event).__name__].validate_json(fields)
        except Exception as error:  # from pydantic, or from the user's own serializers
            raise JournalError(
                f"{self._dispatcher}: {text_of(event)} cannot be kept in the journal: {error}. Post an event whose "
                "fields are of their declared types and go into JSON and back."
            ) from error
        head = f'{{"event_class":{json.dumps(name)},"event_type":{json.dumps(type_.name)},"model":{model}'
        return b"".join((head.encode("ascii"), _EVENT, fields, b"}"))

    def decode(self, line: bytes) -> Any:
        """
        Raises:
            JournalError: the event's classes are not declared, or the line no longer fits them.
        """
        try:
            head, _, fields = line.partition(_EVENT)  # cannot match inside a name, where JSON escapes quotation marks
            names = json.loads(head + b"}")
            key = names["event_class"], names["model"]
            adapter = self._models.get(key)
            if adapter is None:
                raise JournalError(
                    f"{self._dispatcher}: the journal has an unhandled event of the class {key[1]} for {key[0]}, which "
                    f"is not declared. Call register({key[0]}, handler, events={key[1]}) before the start."
                )
            event = adapter.validate_json(fields[:-1])
            wanted = self._types[key[0]][names["event_type"]]
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(
                f"{self._dispatcher}: an unhandled event of the journal no longer fits its class: {error}. "
                f"Read it with the version that wrote it; it is {line[:500].decode('utf-8', 'replace')}"
            ) from error
        if event.type is not wanted:
            raise JournalError(
                f"{self._dispatcher}: {text_of(event)}, read from the journal, has the type {event.type}, but was "
                f"written with {wanted}. Make `type` a field of {key[1]}."
            )
        return event


def encode_payload(payload: Any) -> str:
    """An event's payload as JSON, for its row. Never raises."""
    try:
        return json.dumps(payload, default=str, separators=(",", ":"))
    except BaseException as error:  # e.g. a key that is not a string, a cycle, a __str__ that raises
        return json.dumps({"unencodable": describe(error)})
