"""Equal intervals of a run's time."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F


class TimeBuckets(NamedTuple):
    """`number` intervals of `width_ns` each, from `start_at` (Unix ns). A time outside belongs to the nearest one."""

    start_at: int
    width_ns: int
    number: int

    @staticmethod
    def over(start_at: int, end_at: int, number: int) -> TimeBuckets:
        """At most `number` intervals that include both ends, and more than half as many if the time is long enough.

        Each starts at a multiple of its width, a power of two. So the intervals of a shorter time each lie within one
        interval of a longer time that includes it, and counts need not be repeated when a run continues.
        """
        width_ns = 1
        while end_at // width_ns - start_at // width_ns >= number:
            width_ns *= 2
        first = start_at // width_ns
        return TimeBuckets(first * width_ns, width_ns, end_at // width_ns - first + 1)

    def bucket(self, at: Column) -> Column:
        """The interval that contains a time, from 0: int."""
        # Integer division: as doubles, times of a long run would round into the next bucket.
        bucket = F.call_function("div", at - self.start_at, F.lit(self.width_ns))
        return F.greatest(F.lit(0), F.least(F.lit(self.number - 1), bucket)).cast("int")

    def starts_at(self, bucket: Column) -> Column:
        """The start of an interval, Unix ns: long."""
        return bucket.cast("long") * self.width_ns + self.start_at
