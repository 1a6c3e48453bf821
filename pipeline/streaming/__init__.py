"""Stream processing on the mailbox, independent of any engine."""

from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.queues import (
    OrderedStreamElementQueue,
    ResultFuture,
    StreamElementQueue,
    UnorderedStreamElementQueue,
)

__all__ = [
    "OrderedStreamElementQueue",
    "ResultFuture",
    "StreamElement",
    "StreamElementQueue",
    "StreamRecord",
    "UnorderedStreamElementQueue",
    "Watermark",
]
