"""A script that waits for an async DataFrame, and works on after a Ctrl-C until its standard input ends."""

from __future__ import annotations

import sys

import counting_service
from pyspark import cloudpickle

from pipeline.spark import spark_session, unordered_wait

cloudpickle.register_pickle_by_value(counting_service)
session = spark_session("local[1]")
function = counting_service.AskService(int(sys.argv[1]))
try:
    unordered_wait(session.range(0, 50_000, 1, 1), function, "id long", timeout=60).collect()
except KeyboardInterrupt:
    assert session.range(3).count() == 3
    sys.stdin.read()
