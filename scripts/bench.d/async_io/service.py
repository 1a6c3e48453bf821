"""The service behind all calls, which only sleeps, and the rate limit that its latency sets.

Imported by Spark's Python workers, so it imports nothing of the project.
"""

from __future__ import annotations

import asyncio
import time
from functools import cache
from typing import Any

TASKS = 2
CAPACITY = 100
TIMEOUT_S = 60
LATENCY_S = 0.01
TAIL_LATENCY_S = 0.5
TAIL_ONE_IN = 100


def tail_latency_s(key: int) -> float:
    """Of 100 calls, one takes 500 ms and all others 10 ms; which one is spread evenly, and the same in every run."""
    return TAIL_LATENCY_S if (key * 2654435761 >> 7) % TAIL_ONE_IN == 0 else LATENCY_S


def limit(mean_latency_s: float = LATENCY_S, tasks: int = TASKS) -> float:
    """Calls per second with all of the capacity in flight all the time."""
    return tasks * CAPACITY / mean_latency_s


@cache
def mean_tail_latency_s(rows: int) -> float:
    """Over the keys from 0."""
    return sum(map(tail_latency_s, range(rows))) / rows


async def call(key: int) -> int:
    await asyncio.sleep(LATENCY_S)
    return key


async def call_with_tail(key: int) -> int:
    await asyncio.sleep(tail_latency_s(key))
    return key


async def call_without_latency(key: int) -> int:
    return key


def call_blocking(key: int) -> int:
    time.sleep(LATENCY_S)
    return key


# The same for a whole row of one column, as the operator's functions get it.


async def wait(row: Any) -> list[Any]:
    await asyncio.sleep(LATENCY_S)
    return [row]


async def wait_with_tail(row: Any) -> list[Any]:
    await asyncio.sleep(tail_latency_s(row["id"]))
    return [row]


async def echo(value: Any) -> list[Any]:
    return [value]


def wait_blocking(row: Any) -> list[Any]:
    time.sleep(LATENCY_S)
    return [row]
