"""The names of functions in a cache: equal for functions with the same results, in each process, and else different."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import os
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr

from dispatcher import InvalidValueError
from pipeline.streaming import AsyncFunction, SqliteResults

from ....kit import TIMEOUT_S

HERE = __name__
cache_name = SqliteResults("results.db").function_name


class Currency(enum.Enum):
    EUR = "EUR"
    USD = "USD"


class Access(enum.Flag):
    READ = 1
    WRITE = 2
    LIST = 4


def price(currency: Any, item: Any = None) -> str:
    return f"{currency}{item}"


def of_factory(currency: Any) -> Callable[[Any], str]:
    def priced(item: Any) -> str:
        return f"{currency}{item}"

    return priced


def by_default(currency: Any) -> Callable[..., str]:
    def priced(item: Any, used: Any = currency) -> str:
        return f"{used}{item}"

    return priced


def by_keyword(currency: Any) -> Callable[..., str]:
    async def priced(item: Any, *, used: Any = currency) -> str:
        return f"{used}{item}"

    return priced


def in_currency(currency: Any) -> Callable[[Callable[..., str]], Callable[..., str]]:
    def decorate(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def priced(item: Any) -> str:
            return function(currency, item)

        return priced

    return decorate


def recursive(currency: Any) -> Callable[[int], str]:
    def priced(item: int) -> str:
        return priced(item - 1) if item else str(currency)

    return priced


def of_two(currency: Any) -> Callable[[Any], str]:
    if currency == "EUR":

        def priced(item: Any) -> str:
            return f"EUR{item}"
    else:

        def priced(item: Any) -> str:
            return f"USD{item}"

    return priced


def local_class(currency: Any) -> Any:
    class Prices(AsyncFunction[Any, Any]):
        async def async_invoke(self, value: Any) -> str:
            return f"{currency}{value}"

    return Prices()


class Client(AsyncFunction[Any, Any]):
    kind = "client"

    def __init__(self, currency: Any) -> None:
        self.currency = currency
        self.own_call = self.call

    async def async_invoke(self, value: Any) -> str:
        return f"{self.currency}{value}"

    def call(self, item: Any) -> str:
        return f"{self.currency}{item}"

    partly = functools.partialmethod(call)

    @classmethod
    def of_class(cls, item: Any) -> str:
        return f"{cls.kind}{item}"

    @staticmethod
    def of_none(item: Any) -> str:
        return str(item)


class EuroClient(Client):
    kind = "euro"


@dataclass(frozen=True, slots=True)
class Frozen:
    currency: Any
    more: tuple[Any, ...] = ()

    def __call__(self, item: Any) -> str:
        return f"{self.currency}{item}"


class Model(BaseModel):
    currency: Any = None
    _hidden: Any = PrivateAttr(default=None)

    def call(self, item: Any) -> str:
        return f"{self.currency}{item}"

    @classmethod
    def hiding(cls, currency: Any) -> Model:
        model = cls()
        model._hidden = currency
        return model


class Code(str):
    """A value of a user's own type."""


MAKERS: dict[str, Callable[[Any], Any]] = {
    "argument": lambda value: functools.partial(price, value),
    "keyword": lambda value: functools.partial(price, currency=value),
    "nested partial": lambda value: functools.partial(functools.partial(price, item=1), value),
    "partial of a closure": lambda value: functools.partial(of_factory(value), item=1),
    "partial method": lambda value: Client(value).partly,
    "closure": of_factory,
    "closure of a closure": lambda value: of_factory(of_factory(value)),
    "default": by_default,
    "keyword default": by_keyword,
    "wraps": lambda value: in_currency(value)(price),
    "lru_cache": lambda value: functools.lru_cache(of_factory(value)),
    "recursion": recursive,
    "method": lambda value: Client(value).call,
    "method of a value": lambda value: {1: value}.get,
    "method bound by hand": lambda value: MethodType(of_factory(value), Client(1)),
    "AsyncFunction": Client,
    "local class": local_class,
    "dataclass": Frozen,
    "model": lambda value: Model(currency=value).call,
    "private attribute": lambda value: Model.hiding(value).call,
    "list": lambda value: Frozen([1, [value]]),
    "set": lambda value: Frozen({1, value}),
    "dict": lambda value: Frozen({"a": {"b": value}}),
    "own type": lambda value: Frozen(Code(value)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_a_function_binds_is_in_its_name(make: Callable[[Any], Any]) -> None:
    """The function in one currency got the cached results of the other."""
    names = [cache_name(make(currency)) for currency in ("EUR", "USD", "EUR")]

    assert names[0] == names[2] != names[1]
    assert "EUR" not in names[0]


@pytest.mark.parametrize(
    "values",
    [
        (1, True, 1.0, "1", b"1", Decimal(1), Decimal("1.0"), None, 1 << 70),
        ([1], (1,), {1}, frozenset({1}), {1: 1}, {"1": 1}),
        (dt.date(2026, 1, 1), dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, fold=1), "2026-01-01", dt.timedelta(1)),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1), dt.time(1), dt.time(1, tzinfo=dt.UTC)),
        (Currency.EUR, Currency.USD, "EUR", Access.READ | Access.WRITE, Access.READ, Access.READ | Access.LIST),
        (Path("a"), "a", re.compile("a"), re.compile("a", re.I), Code("a"), Frozen("a"), Client("a")),
        (len, sum, str.upper, "a".upper, "b".upper, price, int, Currency, functools, Client.of_class),
        (0.0, -0.0, float("nan"), float("inf")),
    ],
)
def test_values_of_different_meaning_give_different_names(values: tuple[Any, ...]) -> None:
    names = {cache_name(functools.partial(price, value)) for value in values}

    assert len(names) == len(values)


def test_functions_of_one_name_in_one_function_differ() -> None:
    assert cache_name(of_two("EUR")) != cache_name(of_two("USD"))


def test_what_a_class_inherits_belongs_to_the_class() -> None:
    names = {cache_name(each) for each in (Client.of_class, EuroClient.of_class, Client(1).call, EuroClient(1).call)}

    assert len(names) == 4


@functools.lru_cache
def remembered(item: int) -> int:
    return item


@in_currency("EUR")
def decorated(currency: Any, item: Any) -> str:
    return f"{currency}{item}"


class Stateless(AsyncFunction[Any, Any]):
    async def async_invoke(self, value: Any) -> Any:
        return value


def nested() -> Any:
    def inner(item: int) -> int:
        return item

    return inner


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (price, "price"),
        (functools.partial(price), "price"),
        (remembered, "remembered"),
        (decorated, "decorated"),
        (Client.of_none, "Client.of_none"),
        (Client.of_class, "Client.of_class"),
        (Client.call, "Client.call"),
        (Stateless(), "Stateless"),
        (nested(), "nested.<locals>.inner"),
    ],
)
def test_a_function_that_binds_nothing_keeps_the_name_of_earlier_caches(function: Any, name: str) -> None:
    assert cache_name(function) == f"{HERE}.{name}"


def unfilled() -> Callable[[], Any]:
    def early() -> Any:
        return late

    if early.__name__ == "":
        late = 1
    return early


@dataclass
class Locked:
    password: str = field(repr=False)
    lock: Any = field(default_factory=threading.Lock)

    def __call__(self, item: Any) -> Any:
        return item


def replaced(item: Any) -> Any:
    return item


earlier = replaced


def replaced(item: Any) -> Any:  # type: ignore[no-redef]
    return item


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda item: item, "a lambda does not have one"),
        (functools.partial(lambda item, more: item, 1), "a lambda does not have one"),
        (functools.partial(price, threading.Lock()), "its argument 1 is a _thread.lock"),
        (
            functools.partial(price, item=[threading.Lock()]),
            "its argument 'item' is a list: its item is a _thread",
        ),
        (of_factory(threading.Lock()), "its variable 'currency' is a _thread.lock"),
        (of_factory(lambda item: item), "its variable 'currency' is a function: a lambda"),
        (by_keyword(iter([])), "its default of 'used' is a list_iterator"),
        (unfilled(), "its variable 'late' has no value yet"),
        (Locked("secret"), "its attribute 'lock' is a _thread.lock"),
        (Client(threading.Event()).call, "its attribute 'currency' is a threading.Event: its attribute"),
        (earlier, "has another object, or none, as replaced"),
        (type("Made", (Stateless,), {})(), "has another class, or none, as Made"),
    ],
)
def test_a_function_without_a_name_is_refused_by_what_is_in_the_way(function: Any, why: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(why)) as refusal:
        cache_name(function)

    assert 'name="prices"' in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_value_that_contains_itself_has_a_name() -> None:
    ring: list[Any] = []
    ring.append(ring)

    assert cache_name(of_factory(ring)) == cache_name(of_factory(ring)) != cache_name(of_factory([]))


def test_the_names_are_those_of_another_process() -> None:
    code = f"from {HERE} import *; print(*[cache_name(make('EUR')) for make in MAKERS.values()], sep='\\n')"
    command, root = [sys.executable, "-c", code], Path(__file__).parents[4]
    environment = os.environ | {"PYTHONHASHSEED": "7"}

    printed = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    ).stdout

    assert printed.splitlines() == [cache_name(make("EUR")) for make in MAKERS.values()]


SCRIPT = """
from pipeline.streaming import SqliteResults, unordered_wait

def price(item):
    return f"{CURRENCY}{item}"

CURRENCY = "EUR"
print(*unordered_wait([1], price, timeout=60, cache=SqliteResults("results.db")))
"""


def test_scripts_with_one_cache_have_their_own_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both had a function `__main__.price`, and the second script printed the first one's price."""

    def printed(script: str, text: str, run: Callable[..., Any] = runpy.run_path) -> str:
        """What a program prints; it is run as `python` and `python -m` run theirs."""
        (tmp_path / f"{script}.py").write_text(text)
        if run is runpy.run_path:
            run(str(tmp_path / f"{script}.py"), run_name="__main__")
        else:
            run(script, run_name="__main__", alter_sys=True)
        return capsys.readouterr().out.strip()

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    in_euros, in_dollars = SCRIPT, SCRIPT.replace('"EUR"', '"USD"')
    assert printed("euros", in_euros) == "EUR1"
    assert printed("dollars", in_dollars) == "USD1"
    assert printed("euros", in_dollars.replace("print", "\n\nprint")) == "EUR1"  # edited outside of the function
    assert printed("euros", in_dollars.replace("{item}", "-{item}")) == "USD-1"
    assert printed("pounds", SCRIPT.replace('"EUR"', '"GBP"'), runpy.run_module) == "GBP1"


def test_a_function_of_a_session_has_no_name(tmp_path: Path) -> None:
    session = subprocess.run(
        [sys.executable, "-"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        input=SCRIPT,
        check=False,
    )

    assert "has no name of its own" in session.stderr.splitlines()[-1]
