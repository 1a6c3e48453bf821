"""Serialization of a workload for Spark's workers: packed once, and unpacked once in each Python process."""

from __future__ import annotations

import pickle
import zlib
from dataclasses import replace
from functools import lru_cache

from dispatcher.util.garbage import tune_garbage_collection
from statemachines.simulation.workload import Workload


def pack(workload: Workload) -> bytes:
    """Serialize the workload, without its bad rows, for `unpack` in a process with the same packages."""
    # The bad rows are errors with attributes beyond their message, which cannot be unpickled.
    return zlib.compress(pickle.dumps(replace(workload, bad_rows=())))


@lru_cache(maxsize=1)
def unpack(packed: bytes) -> Workload:
    """Deserialize the workload, cached for repeated calls. Only for a process that does nothing but replay."""
    workload: Workload = pickle.loads(zlib.decompress(packed))
    # A replay makes few reference cycles, and the modules imported by now stay.
    tune_garbage_collection()
    return workload
