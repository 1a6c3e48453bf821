"""Units of time."""

from __future__ import annotations

from typing import Final

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000


def milliseconds(seconds: float) -> int:
    """Seconds as whole milliseconds.

    >>> milliseconds(1.2345)
    1234
    """
    return round(seconds * 1000)
