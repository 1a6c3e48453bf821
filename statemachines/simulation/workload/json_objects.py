"""Decodes a text of consecutive JSON values, or an array of them, with their positions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\r\n]*")


class BadSyntaxError(Exception):
    """The text is not JSON at `row` (a line, from 1) and `column` (a character of it, from 1)."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(problem)
        self.row: int = text.count("\n", 0, position) + 1
        self.column: int = position - text.rfind("\n", 0, position)
        self.problem = problem


def json_values(text: str) -> Iterator[tuple[int, object]]:
    """Position and value of each top-level value, or of each element if the text is one array.

    Raises:
        BadSyntaxError: the text is not JSON from here on, or ends too early. The values before were yielded.
    """
    position = _skip_blanks(text, 0)
    if text.startswith("[", position):
        yield from _array_values(text, position)
        return
    while position < len(text):
        value, end = _decode(text, position)
        yield position, value
        position = _skip_blanks(text, end)


def element_row(text: str, position: int, row: int, key: str, index: int) -> int:
    """The line of element `index` of the list at `key`, in the object at `position` in line `row`.

    The decoder does not report positions inside an object, so the list is decoded again, for error messages only.
    """
    # Inside a JSON string the quotes would be escaped: this finds a key only.
    start = re.compile(rf'"{re.escape(key)}"\s*:\s*\[').search(text, position)
    if start is None:
        return row
    place = _skip_blanks(text, start.end())
    try:
        for _ in range(index):
            _, end = _decode(text, place)
            place = _skip_blanks(text, _skip_blanks(text, end) + 1)
    except BadSyntaxError:
        # The object has the key twice: the first list is shorter, and the decoder returned the second.
        return row
    return row + text.count("\n", position, place)


def _array_values(text: str, start: int) -> Iterator[tuple[int, object]]:
    position = _skip_blanks(text, start + 1)
    closed = text.startswith("]", position)
    while not closed:
        value, end = _decode(text, position)
        yield position, value
        position = _skip_blanks(text, end)
        closed = text.startswith("]", position)
        if not closed:
            if not text.startswith(",", position):
                raise BadSyntaxError(text, position, "expected , or ] after an element of the array")
            position = _skip_blanks(text, position + 1)
    position = _skip_blanks(text, position + 1)
    if position < len(text):
        raise BadSyntaxError(text, position, "expected nothing after the ] that closes the array")


def _decode(text: str, position: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        problem = "the file ends in the middle of a value" if at_end else "not JSON"
        raise BadSyntaxError(text, error.pos, f"{problem}: {error.msg}") from None
    except RecursionError:
        raise BadSyntaxError(text, position, "objects or arrays are nested too deeply") from None
    except ValueError:
        # int() refuses more than sys.get_int_max_str_digits() digits.
        raise BadSyntaxError(text, position, "a number here has thousands of digits") from None


def _skip_blanks(text: str, position: int) -> int:
    blanks = _BLANKS.match(text, position)
    assert blanks is not None  # the pattern matches an empty string
    return blanks.end()
