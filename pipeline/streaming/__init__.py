"""Stream processing on the mailbox, independent of any engine: stream tasks, and Async I/O after Flink's."""

from pipeline.streaming.async_wait import AsyncWaitOperator
from pipeline.streaming.call_host import CallHost
from pipeline.streaming.call_metrics import CallMetrics, register_call_metrics
from pipeline.streaming.checkpoint_format import CheckpointError, PickleSerializer
from pipeline.streaming.checkpoints import Checkpoint, CheckpointStorage, Recovery
from pipeline.streaming.elements import StreamElement, StreamRecord, Watermark
from pipeline.streaming.failures import AsyncOperatorError, AsyncTimeoutError, CapturedError, RetryAfter
from pipeline.streaming.functions import AsyncFunction
from pipeline.streaming.hosts import make_host
from pipeline.streaming.inputs import InputStatus, IterableInput, QueueInput, StreamTaskInput
from pipeline.streaming.queues import (
    OrderedStreamElementQueue,
    ResultFuture,
    StreamElementQueue,
    UnorderedStreamElementQueue,
)
from pipeline.streaming.rate_limit import RateLimit, RateLimiter
from pipeline.streaming.retry import RetryStrategy
from pipeline.streaming.source_stream_task import SourceStreamTask
from pipeline.streaming.stream_task import StreamTask, TaskCancelledError
from pipeline.streaming.task_chain import OperatorContext, StreamOperator, StreamTaskOutput
from pipeline.streaming.wait import WaitSettings, ordered_wait, unordered_wait, wait_in_chunks

__all__ = [
    "AsyncFunction",
    "AsyncOperatorError",
    "AsyncTimeoutError",
    "AsyncWaitOperator",
    "CallHost",
    "CallMetrics",
    "CapturedError",
    "Checkpoint",
    "CheckpointError",
    "CheckpointStorage",
    "InputStatus",
    "IterableInput",
    "OperatorContext",
    "OrderedStreamElementQueue",
    "PickleSerializer",
    "QueueInput",
    "RateLimit",
    "RateLimiter",
    "Recovery",
    "ResultFuture",
    "RetryAfter",
    "RetryStrategy",
    "SourceStreamTask",
    "StreamElement",
    "StreamElementQueue",
    "StreamOperator",
    "StreamRecord",
    "StreamTask",
    "StreamTaskInput",
    "StreamTaskOutput",
    "TaskCancelledError",
    "UnorderedStreamElementQueue",
    "WaitSettings",
    "Watermark",
    "make_host",
    "ordered_wait",
    "register_call_metrics",
    "unordered_wait",
    "wait_in_chunks",
]
