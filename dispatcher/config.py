"""Configuration: pydantic models with working defaults, and YAML files that override them.

A file with a mistake is rejected as a whole. The error is one line that names the file, the key and the allowed values.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

from dispatcher.errors import ConfigError, InvalidTypeError
from dispatcher.util.files import PermissionsName
from dispatcher.util.foreign import text_of
from dispatcher.util.functions import path_of, require_methods
from dispatcher.util.terminal import one_line, printable

M = TypeVar("M", bound=BaseModel)
Place = Callable[[Sequence[int | str]], str]
"""`place(keys)`: where in the source the value at these keys is; empty if unknown."""

MOST_S: Final = 1e9
"""Longest time in a configuration, about 32 years. The system's waits, and dates, end somewhere beyond."""
MOST_NUMBER: Final = 2**53
"""Greatest number in a configuration. Larger ones are inexact in tools that read JSON numbers as doubles."""


def _make_strict(schema: Any) -> None:
    """Let the numbers and booleans of a schema take no other type. Models in it have done so already."""
    if isinstance(schema, dict):
        if schema.get("type") in ("int", "float", "bool"):
            schema["strict"] = True
        for key, each in schema.items():
            if key not in ("default", "metadata"):
                _make_strict(each)
    elif isinstance(schema, list | tuple):
        for each in schema:
            _make_strict(each)


class ConfigModel(BaseModel):
    """Base of all configuration models: immutable, and rejects unknown keys.

    Mistakes raise ConfigError, from the constructor, from `model_validate` and from a file alike. It names the key and
    the valid values.

    Numbers can be up to `MOST_NUMBER` from zero, or up to `MOST_S` if the key is a time, ending in `_s` or `_ms`.
    Values aren't converted: true isn't 1, "5" isn't 5, and 1.5 isn't an integer. Paths must be valid for the operating
    system.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
    gone_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier versions, each with why it was removed and what to do."""

    def __init__(self, /, **values: Any) -> None:
        with _explained(type(self), type(self).__name__):
            super().__init__(**values)

    # Models inside of another are then validated with it, and not by a call of this: an error has the whole path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Make the model from a mapping, as `load_config` does from a file."""
        with _explained(cls, cls.__name__):
            return super().model_validate(obj, **options)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Make the model from JSON, as `load_config` does from YAML."""
        with _explained(cls, cls.__name__):
            return super().model_validate_json(json_data, **options)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _make_strict(schema)
        return schema

    @field_validator("*")
    @classmethod
    def _within_bounds(cls, value: Any, info: ValidationInfo) -> Any:
        _check_bounds(value, info.field_name or "")
        return value


@contextlib.contextmanager
def _explained(model: type[BaseModel], source: str, place: Place | None = None) -> Iterator[None]:
    """Make a ConfigError of pydantic's error. `place`: None: the values come from Python."""
    try:
        yield
    except ValidationError as error:
        problems = error.errors(include_url=False)
        where = place(problems[0]["loc"]) if place is not None else ""
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        at = f", {where}" if where else ""
        what = _explain(problems[0], model, "the file: " if place is not None else "")
        raise ConfigError(f"{source}{at}: {what}{more}") from error


AtExit = Literal["drain", "discard", "warn"]


class DispatcherConfig(ConfigModel):
    """Settings of one AsyncDispatcher."""

    queue_capacity: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="maximum events in the queue, up to 10,000,000; null: no maximum. Posts from handlers are "
        "not bounded.",
    )
    queue_full_policy: Literal["block", "reject", "drop_oldest"] = Field(
        default="block",
        description="a post to a full queue waits (block), is rejected (reject), or discards the oldest event "
        "(drop_oldest)",
    )
    queue_full_timeout_s: float | None = Field(
        default=None,
        gt=0,
        description="maximum wait of a post under block, in seconds, before it is rejected; null disables it",
    )
    batch_size: int = Field(default=256, ge=1, description="maximum events handled before the loop turns to other work")
    drain_events_on_stop: bool = Field(
        default=True, description="handle queued events before stopping; false discards and counts them"
    )
    drain_timeout_s: float = Field(
        default=30.0,
        ge=0,
        description="maximum time that stop() waits for handlers, in seconds; then it discards and counts the "
        "events left",
    )
    at_exit: AtExit = Field(
        default="drain",
        description="what happens to queued events if the program ends without stop(): they are handled within "
        "drain_timeout_s (drain), discarded and counted (discard), or left, with a warning (warn)",
    )
    measure_times: Literal["all", "sampled", "none"] = Field(
        default="sampled",
        description="which events are timed in the queue and in their handlers: all (implied by a journal), none, "
        "or a sample (sampled): every event while handlers are slow, and the mean of a batch and one "
        "post per ms while they are fast",
    )
    handler_warn_after_s: float | None = Field(
        default=10.0,
        gt=0,
        description="log a handler that runs longer than this, in seconds, once, with its stack; null disables it",
    )
    liveness_stuck_after_s: float | None = Field(
        default=None,
        gt=0,
        description="/livez fails, and systemd's watchdog gets no more signs of life, while an event or a mail "
        "runs longer than this, in seconds. Set it if a restart is better than a long handler; null "
        "disables it",
    )
    queue_grows_warn_s: float | None = Field(
        default=10.0,
        gt=0,
        description="health is degraded while the queue has grown for this long, in seconds; null disables it",
    )
    queue_grows_warn_from: int = Field(
        default=1000, ge=1, description="minimum number of events in the queue for this warning"
    )
    failing_warn_share: float | None = Field(
        default=0.1,
        gt=0,
        le=1,
        description="health is degraded while at least this share of the last minute's events of a type has failed; "
        "null disables it",
    )
    failing_warn_from: int = Field(
        default=10, ge=1, description="minimum number of failed events of a type in the last minute for this warning"
    )
    print_events_info_threshold: int = Field(
        default=5000,
        ge=1,
        description="log the contents of a queue of this many events by event type, up to once in 30 s",
    )


def dispatcher_config(config: DispatcherConfig | None, queue_capacity: int | None) -> DispatcherConfig:
    """The config of a dispatcher that is made with these arguments.

    Raises:
        TypeError: `config` is not a DispatcherConfig.
        ConfigError: `queue_capacity` isn't a possible value, or `config` says what a full queue does, and has no
            capacity.
    """
    if config is None:
        config = DispatcherConfig.model_construct()  # the defaults, without the pydantic machinery that checks values
    elif not isinstance(config, DispatcherConfig):
        raise InvalidTypeError(f"config must be a DispatcherConfig, not {text_of(config)}. Pass a name as name=...")
    if queue_capacity is not None:
        checked = DispatcherConfig(queue_capacity=queue_capacity)
        config = config.model_copy(update={"queue_capacity": checked.queue_capacity})  # it may be of a subclass
    for setting, default in (("queue_full_policy", "block"), ("queue_full_timeout_s", None)):
        if config.queue_capacity is None and (value := getattr(config, setting)) != default:
            raise ConfigError(
                f"{setting} is {value!r}, but the queue is never full, because queue_capacity is not set. Set it, or "
                f"leave {setting} out"
            )
    return config


class MetricsConfig(ConfigModel):
    """Settings of the Prometheus endpoint."""

    enabled: bool = Field(default=True, description="serve /metrics, /livez and /readyz")
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(
        default=0, ge=0, le=65535, description="port to listen on; 0 chooses a free one, which is printed"
    )


class JournalConfig(ConfigModel):
    """Settings of the event journal."""

    gone_keys: ClassVar[Mapping[str, str]] = {
        "history_index": "lookups search the journal, which needs no index: remove the key"
    }

    segment_bytes: int = Field(
        default=64 * 1024 * 1024, ge=1024, description="close a segment that has reached this size, in bytes"
    )
    segment_age_s: float = Field(
        default=60.0, gt=0, description="close a segment of this age, in seconds, at the next event or idle moment"
    )
    buffer_rows: int = Field(default=4096, ge=1, description="rows kept in memory before they are written")
    durability: Literal["none", "interval", "sync"] = Field(
        default="none",
        description="what survives a power failure: the rows that the system has written by then (none), all but "
        "the last sync_interval_ms (interval), or all (sync: each write waits for the disk, and "
        "threads share one wait). With each, a crash of the process alone loses the rows that are "
        "buffered",
    )
    sync_interval_ms: int = Field(default=1000, ge=1, description="time between two fsyncs under durability interval")
    write_ahead: bool = Field(
        default=False,
        description="post(event) returns True only when the event is in the journal (under sync: on disk). The "
        "next start redelivers the events that were accepted and not handled",
    )
    failure_policy: Literal["stop", "continue"] = Field(
        default="stop",
        description="when the journal cannot be written (disk full, read-only, gone): stop the dispatcher, or log "
        "it and continue without a journal. In write-ahead mode, no further event is accepted then",
    )
    on_loss: Literal["refuse", "start"] = Field(
        default="refuse",
        description="in write-ahead mode, when a start finds that accepted events are lost with a damaged or "
        "missing segment: refuse to start, or start without them, and log and count them",
    )
    retention_s: float | None = Field(
        default=None,
        gt=0,
        description="remove closed segments older than this, in seconds, unless recovery needs them; null disables it",
    )
    retention_bytes: int | None = Field(
        default=None,
        ge=1,
        description="remove the oldest closed segments beyond this total size, in bytes; null disables it",
    )
    permissions: PermissionsName = Field(
        default="private",
        description="who can read the journal: its owner only (private: files 0600, folders 0700), its group as "
        "well (group: 0640, 0750), or everyone (0644, 0755). Existing folders keep their mode",
    )


def load_config(path: Path | str, model: type[M], overrides: Mapping[str, Any] | None = None) -> M:
    """Read `model` from a YAML file. Your top-level `overrides` win over the file.

    Raises:
        ConfigError: the file is missing, isn't YAML, or has an unknown or duplicate key, a wrong type or an invalid
            value.
    """
    file = path_of(path)
    require_methods(model, "model", "a class of pydantic models", "model_validate")
    require_methods(own := overrides if overrides is not None else {}, "overrides", "a mapping", "keys", "items")
    text = _read_text(file)
    data = _parse_text(file, text)

    from dispatcher.util.yaml_text import place_of

    def place(keys: Sequence[int | str]) -> str:
        return place_of(text, keys) if keys and keys[0] not in own else ""

    return _validated({**data, **own}, model, str(path), place)


def parse_config(data: Mapping[str, Any], model: type[M], *, source: str = "config") -> M:
    """Make `model` from plain data. Raises ConfigError as `load_config` does; `source` is named as the file."""
    return _validated(data, model, source, lambda keys: "")


def _validated(data: Mapping[str, Any], model: type[M], source: str, place: Place) -> M:
    with _explained(model, source, place):
        return model.__pydantic_validator__.validate_python(data)  # type: ignore[no-any-return]


def _read_text(path: Path) -> str:
    from dispatcher.util.yaml_text import MOST_BYTES

    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: no file can have such a name
        reason = error.strerror if isinstance(error, OSError) else None
        raise ConfigError(f"{_shown_path(path)}: cannot be read: {reason or error}") from error
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{_shown_path(path)}: exceeds the limit of {MOST_BYTES:,} bytes for a configuration file")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{_shown_path(path)}: is not UTF-8 text, at byte {error.start}") from error


def _parse_text(path: Path, text: str) -> dict[str, Any]:
    from dispatcher.util.yaml_text import YAMLTextError, parse_yaml

    try:
        data = parse_yaml(text)
    except YAMLTextError as error:
        where = f", {error.where}" if error.where else ""
        raise ConfigError(f"{_shown_path(path)}{where}: {error.problem}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{_shown_path(path)}: a mapping of keys to values is expected, not {type(data).__name__}")
    return data


def configure_logging(path: Path | str | None = None) -> None:
    """Set up logging from a YAML file for `logging.config.dictConfig`; None: warnings to standard error.

    Lines that cannot be written to a log file are counted, and the program goes on: see docs/health.md.

    Raises:
        ConfigError: the file cannot be read, or logging rejects its contents.
    """
    from dispatcher.util.log_files import guard_handlers

    if path is None:
        handler = logging.StreamHandler()
        handler.setFormatter(_PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.basicConfig(level=logging.WARNING, handlers=[handler])
        guard_handlers()
        return
    from logging.config import dictConfig

    data = _parse_text(Path(path), _read_text(Path(path)))
    try:
        dictConfig(data)
    except Exception as error:  # whatever the classes that the file names raise
        cause = f": {error.__cause__}" if error.__cause__ is not None else ""
        reason = one_line(f"{error}{cause}") or type(error).__name__
        raise ConfigError(f"{_shown_path(path)}: logging rejects it: {reason}") from error
    guard_handlers()


class _PrintableFormatter(logging.Formatter):
    """Escapes what would change the terminal. Line ends stay, for tracebacks, and tabs, for audit lines."""

    def format(self, record: logging.LogRecord) -> str:
        return "".join(part if part in ("\n", "\t") else printable(part) for part in _PARTS(super().format(record)))


_PARTS: Final = re.compile(r"([\n\t])").split


def _explain(problem: Any, model: type[BaseModel], whole: str) -> str:
    path = [part for part in problem["loc"] if part != "int" and part != "float"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    key = one_line(key, _LONGEST_SHOWN)
    if problem["type"] == "extra_forbidden":
        found = _model_at(model, path[:-1])
        gone = getattr(found, "gone_keys", {}).get(path[-1])
        if gone is not None:
            return f"{key} is no longer a key; {gone}"
        allowed = list(found.model_fields) if found is not None else []
        near = _nearest(path[-1], allowed)
        return (
            f"unknown key {key}; allowed here: {', '.join(sorted(allowed))}{near}" if allowed else f"unknown key {key}"
        )
    if problem["type"] == "missing":
        return f"{key} is missing; it has no default"
    message = problem["msg"][:1].lower() + problem["msg"][1:]
    near = ""
    if problem["type"] == "literal_error":
        near = _nearest(problem["input"], re.findall("'(.*?)'", problem["ctx"]["expected"]))
    return f"{f'{key}: ' if key else whole}{_REPR.repr(problem['input'])} is not allowed; {one_line(message)}{near}"


def _nearest(given: object, allowed: Sequence[str]) -> str:
    """For the end of a message: what may have been meant."""
    import difflib

    near = difflib.get_close_matches(given[:_LONGEST_SHOWN], allowed, 1) if isinstance(given, str) else ()
    return f"; did you mean {near[0]}?" if near else ""


class _BoundedRepr(reprlib.Repr):
    """`repr` for a value of any size: printable, one line, a few hundred characters."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = _LONGEST_SHOWN

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write integers of thousands of digits.
        return repr(x) if x.bit_length() < 1000 else f"a number of {x.bit_length():,} bits"


_LONGEST_SHOWN: Final = 200
_REPR: Final = _BoundedRepr()


def _shown_path(path: Path | str) -> str:
    return one_line(str(path))


def _check_bounds(value: Any, key: str) -> None:
    """Raises PydanticCustomError for a number or a path beyond the bounds of ConfigModel, also inside a collection."""
    if isinstance(value, bool | BaseModel | str):
        return
    if isinstance(value, int | float):
        most = MOST_S if key.endswith("_s") else 1000 * MOST_S if key.endswith("_ms") else MOST_NUMBER
        if abs(value) > most:
            raise PydanticCustomError("out_of_bounds", "input should be at most {most}", {"most": f"{most:,.0f}"})
    elif isinstance(value, os.PathLike):
        _check_path(os.fspath(value))
    elif isinstance(value, Mapping):
        _check_bounds(list(value.values()), key)
    elif isinstance(value, Iterable):
        for each in value:
            _check_bounds(each, key)


def _check_path(path: str) -> None:
    try:
        is_possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise PydanticCustomError("impossible_path", "no file can have this name")


def _model_at(model: type[BaseModel], path: list[Any]) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for part in path:
        if current is None or isinstance(part, int):
            continue
        field = current.model_fields.get(part)
        current = _model_in(field.annotation) if field is not None else None
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)
