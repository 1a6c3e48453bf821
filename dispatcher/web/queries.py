"""What the query of a request asks for: whole numbers, one of several words. And a number in its path.

Every bad value of a query is a Refusal (400).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from dispatcher.web.plain_answers import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

T = TypeVar("T")

LIMIT: Final = 100
MOST: Final = 1000


def number(request: Request, name: str, default: T, least: int, most: int) -> int | T:
    """A whole number. Raises Refusal for any other text, or out of bounds."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (_is_number(text) and least <= int(text) <= most):
        raise Refusal(400, f"{name}={text}: expected a whole number from {least} to {most}")
    return int(text)


def number_in_path(request: Request, name: str) -> int:
    """A whole number of up to 18 digits, or Refusal (404). The router's own convertor raises where there are many."""
    text: str = request.path_params[name]
    if not _is_number(text):
        raise Refusal(404, f"{text[:100]}: expected a whole number")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def limit_of(request: Request, default: int = LIMIT) -> int:
    return number(request, "limit", default, 1, MOST)


def choice(request: Request, name: str, allowed: Sequence[str]) -> str:
    """One of the allowed texts, the first by default."""
    text = request.query_params.get(name, allowed[0])
    if text not in allowed:
        raise Refusal(400, f"{name}={text}: not one of {', '.join(allowed)}")
    return text
