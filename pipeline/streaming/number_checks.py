"""Checks of numbers that a user gives: each refusal names the option, its value and what is possible."""

from __future__ import annotations

from numbers import Integral, Real

from dispatcher.errors import InvalidValueError


def require_number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    whole: bool = False,
    error: type[Exception] = InvalidValueError,
) -> None:
    """Raise `error` unless `value` is a number, `least` or more, or `above` that. A text or a bool is no number."""
    is_number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if is_number and (least is None or value >= least) and (above is None or value > above):  # type: ignore[operator]
        return
    bound = f"of {least:g} or more" if least is not None else f"above {above:g}"
    raise error(f"{name} is {value!r}; it must be a {'whole ' if whole else ''}number {bound}")
