"""What the query of a request asks for: whole numbers, one of several words.

Every bad value is a Refusal (400).
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
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= most):
        raise Refusal(400, f"{name}={text}: expected a whole number from {least} to {most}")
    return int(text)


def limit_of(request: Request, default: int = LIMIT) -> int:
    return number(request, "limit", default, 1, MOST)


def choice(request: Request, name: str, allowed: Sequence[str]) -> str:
    """One of the allowed texts, the first by default."""
    text = request.query_params.get(name, allowed[0])
    if text not in allowed:
        raise Refusal(400, f"{name}={text}: not one of {', '.join(allowed)}")
    return text
