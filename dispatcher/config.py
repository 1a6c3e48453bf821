"""Configuration: pydantic models with working defaults, and YAML files that override them.

A file with a mistake is rejected as a whole. The error is one line that names the file, the key and the allowed values.
"""

from __future__ import annotations

import logging.config
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dispatcher.errors import ConfigError
from dispatcher.util.files import PermissionsName

M = TypeVar("M", bound=BaseModel)


class ConfigModel(BaseModel):
    """Base of all configuration: rejects unknown keys, and is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DispatcherConfig(ConfigModel):
    """Settings of one AsyncDispatcher."""

    queue_capacity: int | None = Field(
        None, ge=1, description="most events in the queue; null: no bound. Posts from handlers are not bounded."
    )
    queue_full_policy: Literal["block", "reject", "drop_oldest"] = Field(
        "block",
        description="a post to a full queue waits (block), is refused (reject), or discards the oldest (drop_oldest)",
    )
    queue_full_timeout_s: float | None = Field(
        None, gt=0, description="longest wait of a post under block, in seconds, before it is refused; null: no limit"
    )
    batch_size: int = Field(256, ge=1, description="most events handled before the loop turns to other work")
    drain_events_on_stop: bool = Field(
        True, description="handle queued events before stopping; false: discard and count them"
    )
    drain_timeout_s: float = Field(
        30.0,
        ge=0,
        description="longest that stop() waits for handlers, in seconds; then it discards and counts the events left",
    )
    measure_times: Literal["all", "sampled", "none"] = Field(
        "sampled",
        description="which events are timed in the queue and in their handlers: all (implied by a journal), none, or "
        "sampled: every event while handlers are slow; the mean of a batch and one post per ms while they are fast",
    )
    handler_warn_after_s: float | None = Field(
        10.0,
        gt=0,
        description="log a handler that runs longer than this, in seconds, once, with its stack; null disables it",
    )
    print_events_info_threshold: int = Field(
        5000, ge=1, description="log the contents of a queue of this many events by event type, at most once in 30 s"
    )


class MetricsConfig(ConfigModel):
    """Settings of the Prometheus endpoint."""

    enabled: bool = Field(True, description="serve /metrics")
    host: str = Field("127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="port to listen on; 0: a free one, which is printed")


class JournalConfig(ConfigModel):
    """Settings of the event journal."""

    segment_bytes: int = Field(
        64 * 1024 * 1024, ge=1024, description="close a segment that has reached this size, in bytes"
    )
    segment_age_s: float = Field(
        60.0, gt=0, description="close a segment of this age, in seconds, at the next event or idle moment"
    )
    buffer_rows: int = Field(4096, ge=1, description="rows kept in memory before they are written")
    durability: Literal["none", "interval", "sync"] = Field(
        "none",
        description="what survives a power failure: the rows that the system has written by then (none), all but the "
        "last sync_interval_ms (interval), or all (sync: each write waits for the disk; threads share one wait). "
        "With each, a crash of the process alone loses the rows that are buffered",
    )
    sync_interval_ms: int = Field(1000, ge=1, description="time between two fsyncs under durability interval")
    write_ahead: bool = Field(
        False,
        description="handle(event) returns True only when the event is in the journal (under sync: on disk); the next "
        "start redelivers the events that were accepted and not handled",
    )
    failure_policy: Literal["stop", "continue"] = Field(
        "stop",
        description="when the journal cannot be written (disk full, read-only, gone): stop the dispatcher, or continue "
        "without a journal and log it",
    )
    retention_s: float | None = Field(
        None,
        gt=0,
        description="remove closed segments older than this, in seconds, unless recovery needs them; null disables it",
    )
    retention_bytes: int | None = Field(
        None, ge=1, description="remove the oldest closed segments beyond this total size, in bytes; null disables it"
    )
    permissions: PermissionsName = Field(
        "private",
        description="who may read the journal besides its owner: nobody (private: files 0600, folders 0700), its group "
        "(group: 0640, 0750), or everyone (0644, 0755). Folders that exist keep theirs",
    )


def load_config(path: Path | str, model: type[M], overrides: Mapping[str, Any] | None = None) -> M:
    """Read `model` from a YAML file; top-level `overrides` win over the file.

    Raises:
        ConfigError: the file is missing or not YAML, or has an unknown key, a wrong type or a bad value.
    """
    data = _load_yaml(Path(path))
    return parse_config({**data, **(overrides or {})}, model, source=str(path))


def parse_config(data: Mapping[str, Any], model: type[M], *, source: str = "config") -> M:
    """Make `model` from plain data. Raises ConfigError as `load_config` does; `source` is named as the file."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors()
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(f"{source}: {_explain(problems[0], model)}{more}") from error


def _load_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text, at byte {error.start}") from error
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "not valid YAML"
        raise ConfigError(f"{path}{where}: {problem}") from error
    except (ValueError, AttributeError, RecursionError) as error:  # raised by PyYAML itself, e.g. for 2020-99-99
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a mapping of keys to values is expected, not {type(data).__name__}")
    return data


def configure_logging(path: Path | str | None = None) -> None:
    """Set up logging from a YAML file for `logging.config.dictConfig`; None: warnings to standard error.

    Raises:
        ConfigError: the file cannot be read, or logging rejects its contents.
    """
    if path is None:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        return
    data = _load_yaml(Path(path))
    try:
        logging.config.dictConfig(data)
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        cause = f": {error.__cause__}" if error.__cause__ is not None else ""
        raise ConfigError(f"{path}: logging refuses it: {error}{cause}") from error


def _explain(problem: Any, model: type[BaseModel]) -> str:
    path = [part for part in problem["loc"] if part != "int" and part != "float"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    if problem["type"] == "extra_forbidden":
        allowed = _fields_at(model, path[:-1])
        return f"unknown key {key}; allowed here: {', '.join(sorted(allowed))}" if allowed else f"unknown key {key}"
    if problem["type"] == "missing":
        return f"{key} is missing; it has no default"
    message = problem["msg"][:1].lower() + problem["msg"][1:]
    return f"{key or 'the file'}: {problem['input']!r} is not allowed; {message}"


def _fields_at(model: type[BaseModel], path: list[Any]) -> list[str]:
    current: type[BaseModel] | None = model
    for part in path:
        if current is None or isinstance(part, int):
            continue
        field = current.model_fields.get(part)
        current = _model_in(field.annotation) if field is not None else None
    return list(current.model_fields) if current is not None else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)
