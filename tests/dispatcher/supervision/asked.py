"""The health of what a test has made, and of nothing else in the process."""

from __future__ import annotations

from typing import Any

from dispatcher.supervision.health import Health


def health_of(*dispatchers: Any, **options: Any) -> Health:
    """The health of these dispatchers (or views) alone, without what other tests have made."""
    views = [getattr(each, "view", each) for each in dispatchers]
    return Health(lambda: views, **options)
