"""Parses a sweep's `KEY=V1,V2` settings, and makes the checks that need no workload.

KEY is `scheduler` (short for `scheduler.kind`), `nodes`, `load`, or the path of any key of the resource manager's
configuration. The values are YAML, so a list or a mapping is written `[a, b]` or `{a: 1}`.

`nodes` with a decimal point is a factor of the workload's nodes, without one a number of nodes: 1.0 is all of them, 1
is one node. `load` divides the times between submissions: with 2.0 applications arrive twice as fast.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatcher.errors import ConfigError
from dispatcher.util.yaml_text import YAMLTextError, parse_yaml

MOST_COMBINATIONS: Final = 1000
"""Each combination is a whole replay, so a larger number is a mistake in the settings."""

NODES: Final = "nodes"
LOAD: Final = "load"

_SHORT: Final = {"scheduler": "scheduler.kind"}
MOST_NODES: Final = 1_000_000
_LEAST_LOAD, _MOST_LOAD = 0.001, 1000
_NO_EFFECT: Final = {
    "name": "it is only a name",
    "metrics": "a sweep serves no metrics",
    "journal": "a sweep writes no journal",
    "journal_path": "a sweep writes no journal",
    "state_store": "a sweep keeps its applications in memory",
    "workload": "the workload is the command's argument",
    "simulation.workload_defaults": "the workload is read once, with the sizes of --config",
}


@dataclass(frozen=True, slots=True)
class Axis:
    """One key that is varied."""

    key: str
    """The key that the user typed."""
    path: str
    """The configuration key, or `nodes` or `load`."""
    values: tuple[Any, ...]

    def text(self, value: Any) -> str:
        """`key=value`, as a user types it."""
        return f"{self.key}={value_text(value)}"


def parse_settings(settings: Sequence[str]) -> tuple[Axis, ...]:
    """The axes of a sweep, in the order of the settings.

    Raises:
        ConfigError: no settings; a setting is not `KEY=V1,V2`; a repeated key or value; a key that cannot be varied; an
            invalid value of `nodes` or `load`; more than `MOST_COMBINATIONS` combinations. `combine` checks the values
            of configuration keys.
    """
    if not settings:
        raise ConfigError(
            "nothing to compare: give --set KEY=V1,V2 once or more, such as --set scheduler=fifo,capacity"
        )
    axes = tuple(_parse(setting) for setting in settings)
    for position, axis in enumerate(axes):
        _check_alone(axis, axes[:position])
    number = math.prod(len(axis.values) for axis in axes)
    if number > MOST_COMBINATIONS:
        product = " x ".join(str(len(axis.values)) for axis in axes)
        raise ConfigError(
            f"{product} = {number:,} combinations, and each is a whole replay; give fewer values, "
            f"for up to {MOST_COMBINATIONS:,} combinations"
        )
    return axes


def value_text(value: Any) -> str:
    """A value as YAML on one line."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _parse(setting: str) -> Axis:
    key, equals, text = setting.partition("=")
    key = key.strip()
    if not equals or not key or not text.strip():
        raise ConfigError(f"--set {setting}: expected KEY=V1,V2, such as scheduler=fifo,capacity or nodes=0.5,1.0")
    axis = Axis(key, _SHORT.get(key, key), _values(setting, text))
    _check_key(setting, axis.path)
    if axis.path == NODES:
        _check_nodes(setting, axis.values)
    elif axis.path == LOAD:
        _check_load(setting, axis.values)
    texts = [value_text(value) for value in axis.values]
    for position, each in enumerate(texts):
        if each in texts[:position]:
            raise ConfigError(f"--set {setting}: {each} is given twice; give each value once")
    return axis


def _values(setting: str, text: str) -> tuple[Any, ...]:
    try:
        values = parse_yaml(f"[{text}]")
    except YAMLTextError as error:
        raise ConfigError(f"--set {setting}: the values are not YAML: {error.problem}") from error
    if not values or text.rstrip().endswith(","):
        raise ConfigError(f"--set {setting}: a value is empty; expected V1,V2, and null for no value")
    return tuple(values)


def _check_key(setting: str, path: str) -> None:
    if path.startswith(f"{NODES}."):
        raise ConfigError(f"--set {setting}: the nodes come from the workload; vary their number with nodes=0.5,1.0")
    for prefix, reason in _NO_EFFECT.items():
        if path == prefix or path.startswith(f"{prefix}."):
            raise ConfigError(f"--set {setting}: {path} changes nothing here: {reason}")


def _check_nodes(setting: str, values: Sequence[Any]) -> None:
    kinds = set()
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_NODES:
            raise ConfigError(
                f"--set {setting}: found {value_text(value)}, expected factors of the workload's nodes, such as 0.5 "
                "or 1.0, or whole numbers of nodes, such as 100"
            )
        kinds.add(type(value))
    if len(kinds) > 1:
        raise ConfigError(
            f"--set {setting}: a value with a decimal point is a factor of the workload's nodes, one without is a "
            "number of nodes; use one form for all values, such as 0.5,1.0"
        )


def _check_load(setting: str, values: Sequence[Any]) -> None:
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not _LEAST_LOAD <= value <= _MOST_LOAD:
            raise ConfigError(
                f"--set {setting}: found {value_text(value)}, expected a factor for the applications' arrival rate, "
                f"from {_LEAST_LOAD} to {_MOST_LOAD}"
            )


def _check_alone(axis: Axis, before: Sequence[Axis]) -> None:
    for other in before:
        if axis.path == other.path:
            raise ConfigError(f"--set {axis.key} is given twice; give all its values at once: {axis.key}=V1,V2")
        if axis.path.startswith(f"{other.path}.") or other.path.startswith(f"{axis.path}."):
            raise ConfigError(f"--set {other.key} and --set {axis.key} overlap; give one of them")
