"""Decimals of a fixed precision and scale."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation


class ToDecimal:
    """Rounds half up to the scale of a type such as `decimal(10,2)`; floats by their shortest text."""

    def __init__(self, type_name: str) -> None:
        precision, scale = map(int, re.findall(r"\d+", type_name))
        self._unit = Decimal(1).scaleb(-scale)
        self._context = Context(prec=precision, rounding=ROUND_HALF_UP)

    def __call__(self, value: object) -> Decimal:
        """The decimal of a value that is not None.

        Raises:
            ValueError: too many digits before the point, not finite, or no number. TypeError: another type.
        """
        if not isinstance(value, int | float | str | Decimal):
            raise TypeError(f"{value!r} is no number")
        try:
            rounded = Decimal(str(value)).quantize(self._unit, context=self._context)
        except InvalidOperation:
            raise ValueError(f"{value!r} does not fit") from None
        if not rounded.is_finite():
            raise ValueError(f"{value!r} does not fit")
        return rounded
