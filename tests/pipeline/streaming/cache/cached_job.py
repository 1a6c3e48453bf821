"""A job that a test kills: calls the service of a CountingServer for keys, through a cache.

python cached_job.py CACHE URL FIRST END
"""

from __future__ import annotations

import sys
import urllib.request
from functools import partial
from pathlib import Path

from pipeline.streaming import SqliteResults, unordered_wait


def ask(url: str, key: int) -> int:
    with urllib.request.urlopen(f"{url}/{key}", timeout=30) as answer:
        return int(answer.read())


def run(path: Path, url: str, first: int, end: int) -> None:
    cache = SqliteResults(path, name="ask")
    for result in unordered_wait(range(first, end), partial(ask, url), timeout=60, cache=cache, pool_size=8):
        print(result, flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
