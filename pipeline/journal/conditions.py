"""A query's comparisons, read from text."""

from __future__ import annotations

import re
from typing import Any, Final

from dispatcher.errors import DispatcherError
from dispatcher.journal.conditions import Comparison

_LITERAL: Final = r"-?\d+|'[^'\\]*'|true|false"
_COMPARISON: Final = re.compile(
    rf"\s*(?P<column>[a-z_]+)\s*(?:(?P<operator><=|>=|==|=|<|>)\s*(?P<value>{_LITERAL})"
    rf"|\s+in\s*\(\s*(?P<among>(?:{_LITERAL})(?:\s*,\s*(?:{_LITERAL}))*)\s*\)"
    rf"|\s+between\s+(?P<least>-?\d+)\s+and\s+(?P<most>-?\d+))\s*(?:\band\b|$)",
    re.IGNORECASE,
)


class ConditionError(DispatcherError, ValueError):
    """A text is not a conjunction of comparisons."""


def comparisons_in(text: str) -> list[Comparison]:
    """The comparisons of a text such as "seq >= 17 and event_type = 'PLACED'", which is also SQL.

    Raises:
        ConditionError: it is something else.
    """
    found: list[Comparison] = []
    position, is_open = 0, True
    while is_open:
        match = _COMPARISON.match(text, position)
        if match is None:
            raise ConditionError(
                f"where: {text[position:].strip() or text!r} is not a comparison of a column with a value. Join "
                "comparisons with =, <, <=, >, >=, IN and BETWEEN by AND, and leave other filters to the DataFrame."
            )
        column, operator, value, among, least, most = match.groups()
        if operator is not None:
            found.append(Comparison(column.lower(), operator.replace("==", "="), _value(value)))
        elif among is not None:
            values = tuple(_value(one) for one in re.findall(_LITERAL, among, re.IGNORECASE))
            found.append(Comparison(column.lower(), "in", values))
        else:
            found += (Comparison(column.lower(), ">=", int(least)), Comparison(column.lower(), "<=", int(most)))
        position = match.end()
        is_open = match.group().lower().endswith("and")
    return found


def _value(literal: str) -> Any:
    if literal.startswith("'"):
        return literal[1:-1]
    return int(literal) if literal.lower() not in ("true", "false") else literal.lower() == "true"
