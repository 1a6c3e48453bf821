"""How much the tests try that draw inputs, seeds or moments at random: `TESTS_EFFORT` times what a commit needs."""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("TESTS_EFFORT", "1"))


def tries(count: int) -> int:
    """The number of examples, repetitions or kills: `count` before a commit, more in a long run."""
    return count * EFFORT
