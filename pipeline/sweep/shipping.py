"""A workload on its way to where it is replayed: packed into bytes once, unpacked once in each process there."""

from __future__ import annotations

import pickle
import zlib
from dataclasses import replace
from functools import lru_cache

from dispatcher.util.garbage import tune_garbage_collection
from statemachines.simulation.workload import Workload


def pack(workload: Workload) -> bytes:
    """The workload without its bad rows, for `unpack` in another process that has the same packages."""
    # An error that holds more than its message cannot be unpickled.
    return zlib.compress(pickle.dumps(replace(workload, bad_rows=())))


@lru_cache(maxsize=1)
def unpack(packed: bytes) -> Workload:
    """The workload; again for the same bytes, the same object. For a process that only replays."""
    workload: Workload = pickle.loads(zlib.decompress(packed))
    # A replay makes next to no cycles, and what has been imported by now stays.
    tune_garbage_collection()
    return workload
