"""A wrong kind of argument is named by the error, whichever public function or constructor it is passed to."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from dispatcher import DispatcherError, InvalidTypeError, JournalWriter, Retry, register_metrics

from .documents import PUBLIC

pytestmark = pytest.mark.long

EXTRAS = {"pyspark", "pyarrow", "starlette", "uvicorn", "jinja2", "psycopg"}
MADE_BY_US = {"DispatcherView", "RMApp", "RMAppAttempt", "RMContainer", "RMNode", "ResultCache", "JsonText"}
"""Classes that users are given, or derive from, and a str."""
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
STARTS_JAVA = {"spark_session.app_name", "spark_session.long_run"}


class Wrong:
    """Of a kind that nothing takes."""


CALLABLES = [(package, name) for package, names in PUBLIC.items() for name in names]


@pytest.mark.parametrize(("package", "name"), CALLABLES)
def test_a_wrong_kind_of_argument_is_named(package: str, name: str) -> None:
    """It was an AttributeError or a TypeError from the inside."""
    try:
        value = getattr(importlib.import_module(package), name)
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRAS:
            raise
        pytest.skip(f"without {error.name}")
    if not callable(value) or name in MADE_BY_US or is_no_function(value):
        return

    for wrong in wrong_arguments(name, value):
        said = error_of(lambda wrong=wrong: value(**wrong))  # type: ignore[misc]
        assert said is None or any(part in said for part in (name, *wrong, "Wrong")), f"{wrong}: {said}"


def is_no_function(value: Any) -> bool:
    is_protocol = getattr(value, "_is_protocol", False)
    return isinstance(value, type) and (is_protocol or issubclass(value, BaseException | Enum))


def wrong_arguments(name: str, value: Callable[..., Any]) -> Iterator[dict[str, Wrong]]:
    """All required arguments at once or, if there are none, one optional argument after the other."""
    named = [each for each in inspect.signature(value).parameters.values() if each.kind in NAMED]
    if required := [each.name for each in named if each.default is each.empty]:
        yield {each: Wrong() for each in required}
        return
    for each in named:
        if f"{name}.{each.name}" not in STARTS_JAVA:
            yield {each.name: Wrong()}


def error_of(call: Callable[[], object]) -> str | None:
    """What our error says; None: the argument is not looked at yet. Other errors are raised."""
    try:
        result = call()
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except DispatcherError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda path: JournalWriter(path, {"write_ahead": True}),
            "config must be a JournalConfig, not {'write_ahead': T",
        ),
        (lambda path: JournalWriter(3), "path must be a str or a Path, not 3"),
        (lambda path: register_metrics(3), "dispatcher must be an AsyncDispatcher or a DispatcherGroup, not 3"),
        (lambda path: Retry(jitter="a"), "jitter must be a number, not 'a'"),
    ],
)
def test_the_message_says_which_kind_is_right(tmp_path: Path, call: Callable[[Path], object], message: str) -> None:
    with pytest.raises(InvalidTypeError) as raised:
        call(tmp_path)

    assert str(raised.value).startswith(message)
