"""Factories of the operators that tasks are made of."""

from __future__ import annotations

from typing import Any

from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.wait_operator import AsyncWaitOperator
from pipeline.streaming.task.task_chain import OperatorContext, OperatorFactory


def async_wait_operator(
    function: AnyFunction[Any, Any] | CallHost, *, timeout_ms: int, **settings: Any
) -> OperatorFactory:
    """An AsyncWaitOperator for a StreamTask: `StreamTask(input, [async_wait_operator(f, timeout_ms=1000)], output)`.

    `settings` are those of AsyncWaitOperator, but for the mailbox, the timers and the output, which the task gives it.
    """

    def make(context: OperatorContext) -> AsyncWaitOperator:
        return AsyncWaitOperator(
            function,
            timeout_ms=timeout_ms,
            mailbox_executor=context.mailbox_executor,
            processing_time_service=context.processing_time_service,
            output=context.output,
            output_availability=context.output_availability,
            **{"name": f"{context.task_name} async wait {context.position}", **settings},
        )

    return make
