"""The event journal as Arrow batches. Needs no Spark, only pyarrow."""

from pipeline.journal.damage import Problem
from pipeline.journal.scan import read_batches

__all__ = ["Problem", "read_batches"]
