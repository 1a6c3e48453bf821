"""Stream processing on the mailbox, independent of any engine: stream tasks, and Async I/O after Flink's."""

from pipeline.streaming.cache.postgresql import PostgresResults
from pipeline.streaming.cache.results import ResultCache
from pipeline.streaming.cache.sqlite import SqliteResults
from pipeline.streaming.cache.store import UnknownCall
from pipeline.streaming.calls.call_counts import CallMetrics, register_call_metrics
from pipeline.streaming.calls.element_queues import (
    OrderedStreamElementQueue,
    ResultFuture,
    StreamElementQueue,
    UnorderedStreamElementQueue,
)
from pipeline.streaming.calls.functions import AsyncFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.choice import make_host
from pipeline.streaming.calls.limits.adaptive import AdaptiveRateLimit, AdaptiveRateLimiter
from pipeline.streaming.calls.rate_limit import RateLimit, RateLimiter
from pipeline.streaming.calls.retry import RetryStrategy
from pipeline.streaming.calls.wait_operator import AsyncWaitOperator
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.errors import (
    AsyncOperatorError,
    AsyncTimeoutError,
    CallTimes,
    CapturedError,
    CheckpointError,
    ForkedWaitError,
    InputClosedError,
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
from pipeline.streaming.task.inputs import InputStatus, IterableInput, QueueInput, StreamTaskInput
from pipeline.streaming.task.serializers import JsonSerializer, PickleSerializer
from pipeline.streaming.task.source_stream_task import MAX_WATERMARK, Source, SourceContext, SourceStreamTask
from pipeline.streaming.task.stream_task import StreamTask
from pipeline.streaming.task.task_chain import (
    AvailabilityProvider,
    OperatorContext,
    OperatorFactory,
    StreamOperator,
    StreamTaskOutput,
    async_wait_operator,
)
from pipeline.streaming.task.task_control import FinishingReason, TaskState
from pipeline.streaming.wait import WaitSettings, ordered_wait, unordered_wait, wait_in_chunks

__all__ = [
    "MAX_WATERMARK",
    "AdaptiveRateLimit",
    "AdaptiveRateLimiter",
    "AsyncFunction",
    "AsyncOperatorError",
    "AsyncOptions",
    "AsyncTimeoutError",
    "AsyncWaitOperator",
    "AvailabilityProvider",
    "CallHost",
    "CallMetrics",
    "CallTimes",
    "CapturedError",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStorage",
    "FinishingReason",
    "ForkedWaitError",
    "InputClosedError",
    "InputStatus",
    "IterableInput",
    "JsonSerializer",
    "OperatorContext",
    "OperatorFactory",
    "OrderedStreamElementQueue",
    "PickleSerializer",
    "PostgresResults",
    "QueueInput",
    "RateLimit",
    "RateLimiter",
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
    "StreamElement",
    "StreamElementQueue",
    "StreamOperator",
    "StreamRecord",
    "StreamTask",
    "StreamTaskInput",
    "StreamTaskOutput",
    "StreamingError",
    "TaskCancelledError",
    "TaskState",
    "UnknownCall",
    "UnknownOutcomeError",
    "UnorderedStreamElementQueue",
    "WaitSettings",
    "Watermark",
    "async_wait_operator",
    "make_host",
    "ordered_wait",
    "register_call_metrics",
    "unordered_wait",
    "wait_in_chunks",
]
