"""Factories of the operators that tasks are made of."""

from __future__ import annotations

from typing import Any, Unpack

from pipeline.streaming.calls.call_counts import CallMetrics
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.wait_operator import AsyncWaitOperator
from pipeline.streaming.options import OperatorOptions, takes_options
from pipeline.streaming.task.task_chain import OperatorContext, OperatorFactory


@takes_options(OperatorOptions)
def async_wait_operator(
    function: AnyFunction[Any, Any] | CallHost,
    *,
    timeout_ms: int,
    metrics: CallMetrics | None = None,
    name: str | None = None,
    **options: Unpack[OperatorOptions],
) -> OperatorFactory:
    """An AsyncWaitOperator for a StreamTask: `StreamTask(input, [async_wait_operator(f, timeout_ms=1000)], output)`.

    The task provides the mailbox, the timers and the output, and a `name` if none is given.
    """

    def make(context: OperatorContext) -> AsyncWaitOperator:
        return AsyncWaitOperator(
            function,
            timeout_ms=timeout_ms,
            mailbox_executor=context.mailbox_executor,
            processing_time_service=context.processing_time_service,
            output=context.output,
            output_availability=context.output_availability,
            metrics=metrics,
            name=name or f"{context.task_name} async wait {context.position}",
            **options,
        )

    return make
