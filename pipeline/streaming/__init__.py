"""Stream processing on the mailbox, independent of any engine: stream tasks, and Async I/O after Flink's."""

from dispatcher.util.rate_limit import RateLimit
from pipeline.streaming.cache.postgresql import PostgresResults
from pipeline.streaming.cache.results import ResultCache
from pipeline.streaming.cache.sqlite import SqliteResults
from pipeline.streaming.calls.call_counts import CallMetrics, register_call_metrics
from pipeline.streaming.calls.element_queues import (
    OrderedStreamElementQueue,
    ResultFuture,
    UnorderedStreamElementQueue,
)
from pipeline.streaming.calls.functions import AsyncFunction
from pipeline.streaming.calls.limits.adaptive import AdaptiveRateLimit
from pipeline.streaming.calls.retry import RetryStrategy
from pipeline.streaming.calls.wait_operator import AsyncWaitOperator
from pipeline.streaming.elements import StreamRecord, Watermark
from pipeline.streaming.errors import (
    AsyncOperatorError,
    AsyncTimeoutError,
    CapturedError,
    CheckpointError,
    ForkedWaitError,
    InputClosedError,
    OperatorStateError,
    ResultCacheAwayError,
    ResultCacheError,
    RetryAfter,
    SourceInterruptedError,
    StreamingError,
    TaskCancelledError,
    UnknownOutcomeError,
)
from pipeline.streaming.options import AsyncOptions
from pipeline.streaming.task.checkpoints import (
    Checkpoint,
    CheckpointStorage,
    Recovery,
)
from pipeline.streaming.task.inputs import IterableInput, QueueInput, StreamTaskInput
from pipeline.streaming.task.serializers import JsonSerializer, PickleSerializer
from pipeline.streaming.task.source_stream_task import MAX_WATERMARK, Source, SourceContext, SourceStreamTask
from pipeline.streaming.task.stream_task import StreamTask
from pipeline.streaming.task.task_chain import StreamOperator, StreamTaskOutput, async_wait_operator
from pipeline.streaming.wait import ordered_wait, unordered_wait

__all__ = [
    "MAX_WATERMARK",
    "AdaptiveRateLimit",
    "AsyncFunction",
    "AsyncOperatorError",
    "AsyncOptions",
    "AsyncTimeoutError",
    "AsyncWaitOperator",
    "CallMetrics",
    "CapturedError",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStorage",
    "ForkedWaitError",
    "InputClosedError",
    "IterableInput",
    "JsonSerializer",
    "OperatorStateError",
    "OrderedStreamElementQueue",
    "PickleSerializer",
    "PostgresResults",
    "QueueInput",
    "RateLimit",
    "Recovery",
    "ResultCache",
    "ResultCacheAwayError",
    "ResultCacheError",
    "ResultFuture",
    "RetryAfter",
    "RetryStrategy",
    "Source",
    "SourceContext",
    "SourceInterruptedError",
    "SourceStreamTask",
    "SqliteResults",
    "StreamOperator",
    "StreamRecord",
    "StreamTask",
    "StreamTaskInput",
    "StreamTaskOutput",
    "StreamingError",
    "TaskCancelledError",
    "UnknownOutcomeError",
    "UnorderedStreamElementQueue",
    "Watermark",
    "async_wait_operator",
    "ordered_wait",
    "register_call_metrics",
    "unordered_wait",
]
