"""Retry strategies: how often, how much later, on what; and that they refuse what makes no sense."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.streaming import RetryStrategy

fixed_delay = RetryStrategy.fixed_delay
exponential_backoff = RetryStrategy.exponential_backoff


def always(_: object) -> bool:
    return True


@pytest.mark.parametrize(
    ("strategy", "attempts", "delays"),
    [
        (fixed_delay(3, 50), (1, 2, 3), [50, 50, 50]),
        (exponential_backoff(6, 10, 100, 2), range(1, 7), [10, 20, 40, 80, 100, 100]),
        (exponential_backoff(6, 10, 100, 2), (4, 1, 4), [80, 10, 80]),
        (exponential_backoff(10**9, 10, 100, 2), (10**9,), [100]),
        (RetryStrategy.no_retry(), (1,), [-1]),
    ],
    ids=["fixed", "grows to its cap", "whatever was asked for before", "beyond the machine's numbers", "no retry"],
)
def test_a_delay_follows_from_the_attempt(strategy: RetryStrategy, attempts: Iterable[int], delays: list[int]) -> None:
    assert [strategy.backoff_ms(attempt, draw=pytest.fail) for attempt in attempts] == delays  # nothing is drawn


@pytest.mark.parametrize(
    ("strategy", "result", "error"),
    [
        (fixed_delay(2, 1, retry_on_result=always), True, False),
        (fixed_delay(2, 1, retry_on_exception=always), False, True),
        (fixed_delay(2, 1), False, False),
        (exponential_backoff(2, 1, 1, 1), False, False),
        (RetryStrategy.no_retry(), False, False),
        (RetryStrategy(max_attempts=0, initial_delay_ms=1, max_delay_ms=1, retry_on_result=always), False, False),
    ],
    ids=["of results", "of errors", "without predicates", "backoff without predicates", "no retry", "no attempts"],
)
def test_one_predicate_enables_a_strategy_and_the_missing_one_says_never(
    strategy: RetryStrategy, result: bool, error: bool
) -> None:
    assert strategy.is_enabled() == (result or error)
    if strategy.max_attempts:
        assert (strategy.retries_result([1]), strategy.retries_error(OSError())) == (result, error)


@pytest.mark.parametrize("classes", [OSError, (KeyError, OSError)])
def test_an_exception_class_stands_for_its_subclasses_too(classes: Any) -> None:
    strategy = exponential_backoff(2, 1, 1, 1, retry_on_exception=classes)

    assert strategy.retries_error(ConnectionResetError())
    assert not strategy.retries_error(ValueError())


@pytest.mark.parametrize(
    ("cap_ms", "attempt", "delays"),
    [(1000, 3, [32, 40, 47]), (100, 6, [80, 90, 99])],
    ids=["below", "at the cap"],
)
def test_jitter_makes_a_delay_shorter_or_longer_by_its_fraction(cap_ms: int, attempt: int, delays: list[int]) -> None:
    """At the cap, it spreads delays below it."""
    strategy = exponential_backoff(6, 10, cap_ms, 2, jitter=0.2)

    assert [strategy.backoff_ms(attempt, lambda drawn=drawn: drawn) for drawn in (0.0, 0.5, 0.999999)] == delays  # type: ignore[misc]


@given(
    st.integers(1, 50),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.floats(1, 1e6),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_no_delay_leaves_the_range_of_its_jitter_or_passes_the_cap(
    attempt: int, first_ms: int, more_ms: int, multiplier: float, jitter: float, drawn: float
) -> None:
    cap_ms = first_ms + more_ms
    mean_ms = exponential_backoff(1, first_ms, cap_ms, multiplier).backoff_ms(attempt)

    delay_ms = exponential_backoff(1, first_ms, cap_ms, multiplier, jitter).backoff_ms(attempt, lambda: drawn)

    assert first_ms <= mean_ms <= cap_ms
    assert mean_ms * (1 - jitter) - 1 <= delay_ms <= min((mean_ms + 1) * (1 + jitter), cap_ms)


def test_a_strategy_survives_pickling() -> None:
    strategy = exponential_backoff(3, 10, 100, 2, 0.1, operator.not_, (OSError, TimeoutError))

    copy = pickle.loads(pickle.dumps(strategy))

    assert copy == strategy
    assert copy.retries_error(TimeoutError())
    assert not pickle.loads(pickle.dumps(RetryStrategy.no_retry())).is_enabled()


WHOLE = (0, -1, 1.5, True, None, "3")


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (lambda value: fixed_delay(value, 10), "max_attempts", WHOLE),
        (lambda value: fixed_delay(3, value), "delay_ms", WHOLE),
        (lambda value: exponential_backoff(value, 10, 100, 2), "max_attempts", WHOLE),
        (lambda value: exponential_backoff(3, value, 100, 2), "initial_delay_ms", WHOLE),
        (lambda value: exponential_backoff(3, 10, value, 2), "max_delay_ms", WHOLE),
        (
            lambda value: exponential_backoff(3, 10, 100, value),
            "multiplier",
            (0.5, 0, -2, float("nan"), float("inf"), True, "2", None),
        ),
        (
            lambda value: exponential_backoff(3, 10, 100, 2, value),
            "jitter",
            (-0.1, 1.1, float("nan"), True, "0.1", None),
        ),
        (
            lambda value: RetryStrategy(max_attempts=value, initial_delay_ms=1, max_delay_ms=1),
            "max_attempts",
            (-1, 1.5, True, None),
        ),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_name(make: Any, name: str, values: Any) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^{name}"):
            make(value)


@pytest.mark.parametrize(
    ("name", "predicates"),
    [
        ("retry_on_result", (3, "yes", OSError)),
        ("retry_on_exception", (3, "yes", int, (), (OSError, int), (OSError, "x"), [OSError])),
    ],
)
def test_a_predicate_that_cannot_be_asked_is_refused(name: str, predicates: Any) -> None:
    for make in (partial(fixed_delay, 3, 10), partial(exponential_backoff, 3, 10, 100, 2)):
        for predicate in predicates:
            with pytest.raises(TypeError, match=name):
                make(**{name: predicate})


def test_a_cap_below_the_first_delay_is_refused() -> None:
    with pytest.raises(ValueError, match="max_delay_ms is 9, less than initial_delay_ms, which is 10"):
        exponential_backoff(3, 10, 9, 2)
