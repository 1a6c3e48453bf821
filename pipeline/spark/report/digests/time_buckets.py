"""Equal parts of the time that a run took."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F


class TimeBuckets(NamedTuple):
    """`number` parts of `width_ns` each, from `start_at` on (Unix ns). A time outside counts for the nearest part."""

    start_at: int
    width_ns: int
    number: int

    @staticmethod
    def over(start_at: int, end_at: int, number: int) -> TimeBuckets:
        """At most so many parts, in which both ends are, and more than half of that if the time is long enough.

        They begin at multiples of their width, which is a power of two: so the parts of any time within another lie
        each in one of its parts, and what is counted by them need not be counted anew when a run goes on.
        """
        width_ns = 1
        while end_at // width_ns - start_at // width_ns >= number:
            width_ns *= 2
        first = start_at // width_ns
        return TimeBuckets(first * width_ns, width_ns, end_at // width_ns - first + 1)

    def bucket(self, at: Column) -> Column:
        """Of a time the part that it is in, from 0: int."""
        # A whole-number division: as doubles, times of a long run would round into the next bucket.
        bucket = F.call_function("div", at - self.start_at, F.lit(self.width_ns))
        return F.greatest(F.lit(0), F.least(F.lit(self.number - 1), bucket)).cast("int")

    def starts_at(self, bucket: Column) -> Column:
        """Of a part its beginning, Unix ns: long."""
        return bucket.cast("long") * self.width_ns + self.start_at
