"""Looking at foreign objects, any of whose methods may raise, and logging to foreign logging handlers.

Events, their types, keys and errors belong to the user. `repr`, `str`, a property or a logging handler that raises must
not end the handler thread, a stop or a scrape. Nothing here raises, and nothing here may be called under a lock. All
texts are plain `str`, and UTF-8 can encode them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final, TypeGuard, TypeVar

_T = TypeVar("_T")
_LONGEST_TEXT: Final = 2000
_LONGEST_MESSAGE: Final = 500


def type_of(event: Any) -> Any:
    """`event.type`; None if it has none, or if looking at it raises."""
    try:
        return event.type
    except BaseException as error:
        reraise_interrupt(error)
        return None


def entity_of(event: Any) -> str | None:
    """`event.entity` as text, cut to 2,000 characters; None if it has none, or if looking at it raises."""
    try:
        entity = event.entity
        return None if entity is None else cut_text(lambda: id_text(entity))
    except BaseException as error:
        reraise_interrupt(error)
        return None


def is_member(event_type: Any) -> bool:
    """Whether it is an Enum member. Unlike `isinstance`, does not ask the object for its `__class__`."""
    return issubclass(type(event_type), Enum)


def is_instance(value: object, kind: type[_T]) -> TypeGuard[_T]:
    """Whether the object's class is `kind` or a subclass. The object is not asked for its `__class__`."""
    return issubclass(type(value), kind)


def class_name(value: Any) -> str:
    """The name of the object's class, whatever its metaclass makes of `__name__`."""
    return str(type.__dict__["__name__"].__get__(type(value)))


def full_class_name(value: Any) -> str:
    """The object's class, with its module unless that is `builtins`, whatever its metaclass makes of these names."""
    kind = type(value)
    name = plain_text(type.__dict__["__qualname__"].__get__(kind))
    module = type.__dict__["__module__"].__get__(kind)  # a class may put anything there
    return f"{plain_text(module)}.{name}" if is_instance(module, str) and module != "builtins" else name


def type_name(event_type: Any) -> str:
    """The name of an Enum member; the text of a combination of flags without a name, or of another object."""
    name = event_type._name_ if is_member(event_type) else None
    return plain_text(name) if name else _cut(lambda: str(event_type), lambda _: text_of(event_type))


def text_of(value: Any, most: int = _LONGEST_TEXT) -> str:
    """`repr(value)`, cut to `most` characters; the class and the error if `repr` raises."""
    return _cut(
        lambda: repr(value), lambda error: f"<{class_name(value)}, whose repr raised {class_name(error)}>", most
    )


def cut_text(make: Callable[[], str], most: int = _LONGEST_TEXT) -> str:
    """The text that `make` returns, cut to `most` characters; the error's class if it raises."""
    return _cut(make, lambda error: f"({class_name(error)} while making the text)", most)


def describe(error: BaseException) -> str:
    """The error's class and message, cut to 2,000 characters."""
    return _cut(lambda: f"{class_name(error)}: {error}", lambda raised: f"{class_name(error)}: (its __str__ raised)")


def message_of(error: BaseException) -> str:
    """The error's message, whole."""
    try:
        return str.__str__(str(error))
    except BaseException as raised:
        reraise_interrupt(raised)
        return f"(its __str__ raised {class_name(raised)})"


def short_message(error: BaseException) -> str:
    """The error's message, cut to 500 characters."""
    return cut_text(lambda: str(error), _LONGEST_MESSAGE - len("..."))[:_LONGEST_MESSAGE]


def plain_text(text: str) -> str:
    """The text as a plain `str`; lone surrogates, which UTF-8 cannot encode, are escaped."""
    text = str.__str__(text)  # of a subclass, whose methods are foreign
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def id_text(entity: Any) -> str:
    """The id of an entity, for the journal. A `str` is its own id, also as a member of `class Region(str, Enum)`, whose
    `str()` is `Region.EU`: the next event brings the value, and has to find the entity by it."""
    return plain_text(entity if is_instance(entity, str) else str(entity))


def register_call(enum: str, arguments: str) -> str:
    """The call that registers a handler for an Enum class of this name, which may be a scope's."""
    scope, _, name = enum.rpartition("/")
    return f"{f'scope({scope!r}).' if scope else ''}register({name}, handler{arguments})"


def kind_of(event_type: Any) -> str:
    """The class and name of an event's type: `Kind.TICK`."""
    return f"{class_name(event_type)}.{type_name(event_type)}"


def kinds_of(events: Iterable[Any]) -> str:
    """The number of events of each kind, most frequent first: `3 Kind.TICK, 1 Kind.TOCK`."""
    kinds = Counter(kind_of(type_of(event)) for event in events)
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())


def fields_of(dispatcher: str, event: Any) -> dict[str, Any]:
    """The fields of a log record about an event: `dispatcher`, `event_class`, `event_type`; `entity` if it has one."""
    event_type = type_of(event)
    fields = {"dispatcher": dispatcher, "event_class": class_name(event_type), "event_type": type_name(event_type)}
    entity = entity_of(event)
    return fields if entity is None else {**fields, "entity": entity}


def tell(
    log: logging.Logger,
    level: int,
    message: str,
    *args: Any,
    error: BaseException | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Log a message, with the error's traceback. If a logging handler or a filter raises, the message goes to stderr.

    `extra`: attributes of the record, for structured logs; plain values only. A foreign object among `args` would be
    formatted inside the logging handler: pass `text_of(it)` instead.
    """
    try:
        log.log(level, message, *args, exc_info=error, extra=extra)
    except BaseException as raised:
        reraise_interrupt(raised)
        with contextlib.suppress(BaseException):
            last = logging.lastResort
            if last is not None and level >= last.level:
                last.emit(
                    log.makeRecord(
                        log.name, level, "", 0, f"{message} (logging it raised %s)", (*args, describe(raised)), None
                    )
                )


def tell_of(
    log: logging.Logger,
    level: int,
    name: str,
    message: str,
    *args: Any,
    error: BaseException | None = None,
    **fields: Any,
) -> None:
    """Log a message of the dispatcher `name`, which begins with that name. The record also has it and the `fields`."""
    tell(log, level, f"%s: {message}", name, *args, error=error, extra={"dispatcher": name, **fields})


def _cut(make: Callable[[], str], instead: Callable[[BaseException], str], most: int = _LONGEST_TEXT) -> str:
    """The text that `make` returns, cut to `most` characters, or `instead` of the error that it raises."""
    try:
        text = str.__str__(make())
        return plain_text(text if len(text) <= most else f"{text[:most]}...")
    except BaseException as error:
        reraise_interrupt(error)
        return instead(error)


def reraise_interrupt(error: BaseException) -> None:
    """Ctrl-C on the main thread is the user's, not the foreign object's."""
    if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
        raise error
