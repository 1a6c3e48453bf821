"""Whether the tests run against compiled modules."""

from __future__ import annotations

from dispatcher.queue import posting

IS_COMPILED = not (posting.__file__ or "").endswith(".py")
