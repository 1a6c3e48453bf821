"""Events in the write-ahead log, as lines of JSON, and the texts of their rows.

A line may have marks before the event: what the dispatcher has to know of it besides.

The classes declared for an Enum class encode and decode its events. A line is
`{"event_class": ..., "event_type": ..., "model": ..., "event": {...}}`: the names of the Enum class, its member and the
event's own class, then the event's fields, which pydantic writes and reads. Names in a log select only among the
declared classes; nothing else is ever imported or instantiated.
"""

from __future__ import annotations

import json
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from enum import Enum
from itertools import accumulate
from threading import get_ident
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from dispatcher.errors import EventNotDeclaredError, InvalidTypeError, InvalidValueError, JournalError
from dispatcher.event import ScopedEvent
from dispatcher.journal.format.declarations import LONGEST_LINE, adapter_of, lossless
from dispatcher.journal.format.marks import EVENT, Marks
from dispatcher.journal.format.outstanding import Accepted
from dispatcher.journal.format.round_trip import difference, quoted
from dispatcher.util.foreign import describe, register_call

_MARKS: Final = b',"marks":'
_MOST_NESTED: Final = 4
"""How many encodings may be in progress on one thread. A signal handler may interrupt one and post, and so on."""

_PAYLOADS: Final = json.JSONEncoder(default=str, separators=(",", ":"))
"""One for all payloads: `json.dumps` would make its own for each."""


def with_marks(line: bytes, marks: Marks) -> bytes:
    """The line with these marks, and no others."""
    head, event, fields = line.partition(EVENT)
    head = head.partition(_MARKS)[0]
    plain = Marks()._asdict()
    said = {name: value for name, value in marks._asdict().items() if value != plain[name]}
    if not said:
        return head + event + fields
    return b"".join((head, _MARKS, json.dumps(said, separators=(",", ":")).encode("ascii"), event, fields))


def marks_of(line: bytes) -> Marks:
    """The marks of a line. Raises JournalError: they cannot be read."""
    head, _, _ = line.partition(EVENT)
    if _MARKS not in head:
        return Marks()
    try:
        return Marks(**json.loads(head + b"}")["marks"])
    except (ValueError, TypeError) as error:
        raise JournalError(f"a line of the write-ahead log cannot be read: {line[:500]!r}: {error}") from error


class Current(NamedTuple):
    """A line of a log that no later one takes the place of."""

    accepted: Accepted
    marks: Marks
    order: float
    """Its event's place among the accepted seqs."""


def in_order_of_acceptance(accepted: Iterable[Accepted]) -> list[Current]:
    """The lines of one log that no later one takes the place of, in the order in which their events were accepted.

    Both lines are there after a crash that came before the row that settles the earlier one. An attempt keeps the
    place that its event had. An event that was due at a time comes behind those accepted before that time.

    Raises:
        JournalError: marks cannot be read.
    """
    found = {each.seq: (each, marks_of(each.line)) for each in accepted}
    for _, marks in tuple(found.values()):
        found.pop(marks.replaces, None)
    posted = [each for each, marks in found.values() if not marks.due_ns]
    times = list(accumulate((each.at_ns for each in posted), max))  # the system clock may have been set back
    last, lines = max(found, default=0), []
    for each, marks in found.values():
        order: float = each.seq
        if marks.attempt > 1:
            order = marks.order or marks.replaces or each.seq  # earlier releases did not write the order
        elif marks.due_ns:
            behind = bisect_right(times, marks.due_ns)
            order = posted[behind].seq - 0.5 if behind < len(posted) else last + 0.5
        lines.append(Current(each, marks, order))
    return sorted(lines, key=lambda line: (line.order, line.marks.due_ns if line.marks.attempt == 1 else 0))


def fields_of(line: bytes) -> bytes:
    """The event's fields in a line, as JSON."""
    return line.partition(EVENT)[2][:-1]


def undeclared_line(event_class: str, event_type: str, said: str) -> bytes:
    """The line of an event that no class is declared for: it is shown, and cannot be read back."""
    names = {"event_class": event_class, "event_type": event_type, "model": ""}
    return json.dumps(names, separators=(",", ":")).encode("ascii")[:-1] + EVENT + json.dumps(said).encode() + b"}"


class _Declared:
    """An event class, declared for an Enum class. Never changes."""

    def __init__(self, event_type: type[Enum], class_: type, adapter: TypeAdapter[Any]) -> None:
        self.adapter = adapter
        self.class_ = class_
        names = f'{{"event_class":{json.dumps(event_type.__name__)},"event_type":'
        model = f',"model":{json.dumps(class_.__name__)}'
        self.heads = {
            name: f"{names}{json.dumps(name)}{model}".encode("ascii") + EVENT for name in event_type.__members__
        }
        known = lossless(class_, adapter.core_schema, needs="type")
        self.is_simple = known is not None and known.is_simple
        self.keeps: Callable[[Any], bool] = known.keeps if known is not None else _never
        """Whether an event certainly comes back from a line shorter than LONGEST_LINE. No code of its class runs."""
        self.write: Callable[[Any], bytes] = adapter.serializer.to_json


def _never(event: Any) -> bool:
    return False


class EventCodec:
    """The declared event classes of one dispatcher. Any thread may declare, encode and decode."""

    def __init__(self, dispatcher: str) -> None:
        self._dispatcher = dispatcher
        self._lock = threading.Lock()  # leaf lock
        # Each dict is replaced under _lock, never changed in place, and read without the lock.
        self._types: dict[str, type[Enum]] = {}  # replaced under _lock
        self._models: dict[tuple[str, str], _Declared] = {}  # by Enum class and event class; replaced under _lock
        self._declared: dict[tuple[type, type], _Declared] = {}  # the same, unless it is held; replaced under _lock
        self._is_held = False  # see `hold`; written under _lock
        # How many encodings are in progress on each thread; each thread touches its own item.
        self._depths: dict[int, int] = {}
        self._endless: set[int] = set()  # threads that have exceeded _MOST_NESTED; each adds and removes itself

    def declare(self, event_type: type[Enum], classes: Iterable[type]) -> None:
        """Declare that events whose type is a member of `event_type` are instances of `classes`.

        Raises:
            TypeError: a class is neither a pydantic model nor a dataclass, or has a field that JSON cannot give back.
            ValueError: another Enum class or event class of the same name was declared.
        """
        made = {}
        for class_ in classes:
            if not (isinstance(class_, type) and (is_dataclass(class_) or issubclass(class_, BaseModel))):
                raise InvalidTypeError(f"events= takes pydantic models and dataclasses; {class_!r} is neither")
            made[class_] = _Declared(event_type, class_, adapter_of(class_))
        name = event_type.__name__
        with self._lock:
            if self._types.get(name, event_type) is not event_type:
                raise InvalidValueError(
                    f"two Enum classes named {name} are registered; the journal identifies them by name"
                )
            for class_ in made:
                known = self._models.get((name, class_.__name__))
                if known is not None and known.class_ is not class_:
                    raise InvalidValueError(f"two event classes named {class_.__name__} are declared for {name}")
            self._types = {**self._types, name: event_type}
            self._models = {**self._models, **{(name, class_.__name__): made[class_] for class_ in made}}
            self._declare_models()

    def is_declared(self, event_type: type[Enum]) -> bool:
        """Whether event classes were declared for the Enum class."""
        return self._types.get(event_type.__name__) is event_type

    def _declare_models(self) -> None:
        """Under _lock."""
        # While it is held, no class is found, so that an encoding of a released codec makes no further check.
        models = {} if self._is_held else self._models
        self._declared = {(self._types[name], model.class_): model for (name, _), model in models.items()}

    def hold(self) -> None:
        """Encode no event until `release`."""
        with self._lock:
            self._is_held = True
            self._declare_models()

    def release(self) -> None:
        with self._lock:
            self._is_held = False
            self._declare_models()

    def check_released(self) -> None:
        """Raises JournalError: it is held."""
        if self._is_held:
            raise JournalError(
                f"{self._dispatcher}: not started, and unhandled events of an earlier run come first. Start the "
                "MultiDispatcher before you post to it."
            )

    def encode(self, event: Any) -> bytes:
        """The event's line, without the newline. Whatever is accepted comes back from it equal in types and values.

        Raises:
            EventNotDeclaredError: its class was not declared for its Enum class.
            JournalError: a field has a value that would come back as something else, or not at all; the message names
                the field. Or the codec is held.
        """
        type_ = event.type
        declared = self._declared.get((type(type_), type(event)))
        if declared is None and type(event) is ScopedEvent:
            event = event.scoped_event
            declared = self._declared.get((type(type_), type(event)))
        if declared is None:
            self.check_released()
            raise EventNotDeclaredError(self._dispatcher, event, type_)
        head = declared.heads.get(type_._name_)
        if head is None:
            raise self._refusal(event, f"its type {quoted(type_)} is not a member of its class but a combination")
        fields = b""
        try:
            if declared.keeps(event):
                fields = declared.write(event) if declared.is_simple else to_json(event, inf_nan_mode="constants")
        except Exception:  # the proof says what is wrong
            pass
        if not 0 < len(fields) < LONGEST_LINE:
            fields = self._proven_fields(declared, event, fields)
        return b"".join((head, fields, b"}"))

    def _proven_fields(self, declared: _Declared, event: Any, fields: bytes) -> bytes:
        """The event's fields, proven: the event has come back from them. `fields`: empty if they are not written yet.

        It may run serializers and validators of the user, and these may post. Raises JournalError.
        """
        thread = get_ident()
        depth = self._depths.get(thread, 0)
        try:
            if depth == _MOST_NESTED:
                self._endless.add(thread)
                raise RecursionError
            self._depths[thread] = depth + 1
            fields = fields or to_json(event, inf_nan_mode="constants")
            self._read_back(declared, event, fields)
            return fields
        except Exception as error:  # from pydantic, or from the user's code
            if thread in self._endless:
                raise JournalError(
                    f"{self._dispatcher}: {type(event).__name__} cannot be kept in the journal: its serializers or "
                    "validators post events while an event is encoded, and these do the same, without end. Let them "
                    "only convert values, and post from a handler."
                ) from error
            if isinstance(error, JournalError):
                raise
            raise self._refusal(event, _reason(event, error)) from error
        finally:
            self._depths[thread] = depth
            if not depth:
                del self._depths[thread]
                self._endless.discard(thread)

    def _read_back(self, declared: _Declared, event: Any, fields: bytes) -> None:
        """Raises JournalError: the event would come back as something else."""
        back = declared.adapter.validate_json(fields)
        changed = difference(event, back)
        if changed is None and back.type is not event.type:
            changed = f"its type is {quoted(event.type)}, and would come back as {quoted(back.type)}"
        if changed is not None:
            raise self._refusal(event, changed)

    def _refusal(self, event: Any, reason: str) -> JournalError:
        return JournalError(
            f"{self._dispatcher}: {quoted(event)} cannot be kept in the journal: {reason}. Post an event whose fields "
            "are of their declared types and come back from JSON as they were."
        )

    def decode(self, line: bytes) -> Any:
        """
        Raises:
            JournalError: the event's classes are not declared, or the line no longer fits them.
        """
        try:
            head, _, fields = line.partition(EVENT)  # cannot match inside a name, where JSON escapes quotation marks
            names = json.loads(head + b"}")
            key = names["event_class"], names["model"]
            declared = self._models.get(key)
            if declared is None:
                raise JournalError(
                    f"{self._dispatcher}: the journal has an unhandled event of the class {key[1]} for {key[0]}, which "
                    f"is not declared. Call {register_call(key[0], f', events={key[1]}')} before the start."
                )
            event = declared.adapter.validate_json(fields[:-1])
            wanted = self._types[key[0]][names["event_type"]]
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(
                f"{self._dispatcher}: an unhandled event of the journal no longer fits its class: {error}. "
                f"Read it with the version that wrote it; it is {line[:500].decode('utf-8', 'replace')}"
            ) from error
        originals = getattr(type(wanted), "_originals_", None)
        if originals is not None:  # it is a scope's
            scoped, wanted = wanted, originals[wanted._name_]
        if event.type is not wanted:
            raise JournalError(
                f"{self._dispatcher}: {quoted(event)}, read from the journal, has the type {event.type}, but was "
                f"written with {wanted}. Make `type` a field of {key[1]}."
            )
        return event if originals is None else ScopedEvent(scoped, event)


def _reason(event: Any, error: Exception) -> str:
    """What keeps an event from going into JSON and back, in one line that names the field."""
    said = describe(error).partition("\n")[0]
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        said = first["msg"]
        if first["loc"]:
            return f"its field {'.'.join(map(str, first['loc']))} would not be read again: {said}"
    names = [field.name for field in dataclass_fields(event)] if is_dataclass(event) else list(type(event).model_fields)
    for name in names:
        try:
            from_json(to_json(getattr(event, name), inf_nan_mode="constants"), allow_inf_nan=True)
        except Exception:
            return f"its field {name} does not go into JSON and back: {said}"
    return said


class JsonText(str):
    """A JSON payload, stored in its row unchanged."""

    __slots__ = ()


def encode_payload(payload: Any) -> str:
    """An event's payload as JSON, for its row. Never raises."""
    if type(payload) is JsonText:
        return payload
    try:
        return _PAYLOADS.encode(payload)
    except BaseException as error:  # e.g. a key that is not a string, a cycle, a __str__ that raises
        return json.dumps({"unencodable": describe(error)})
