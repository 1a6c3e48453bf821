"""The choice of a host for a function."""

from __future__ import annotations

from typing import Any

from dispatcher.errors import InvalidValueError
from pipeline.streaming.cache.cached_function import cached_function
from pipeline.streaming.calls.functions import AnyFunction, is_coroutine_function, name_of
from pipeline.streaming.calls.hosts.call_host import CallHost
from pipeline.streaming.calls.hosts.loop_host import LoopHost
from pipeline.streaming.calls.hosts.pool_host import PoolHost
from pipeline.streaming.function_wrappers import as_called
from pipeline.streaming.number_checks import require_number
from pipeline.streaming.options import DEFAULT_POOL_SIZE, AsyncOptions


def make_host(
    function: AnyFunction[Any, Any],
    *,
    pool_size: int | None = None,
    max_calls: int | None = None,
    name: str | None = None,
) -> CallHost:
    """A host for the function, not started: a loop for coroutines, else a pool of `pool_size` threads.

    `max_calls`: concurrent calls on a loop; further calls wait, and start the moment another has ended.

    Raises:
        TypeError: `function` cannot be called, or not as it is meant; see `pipeline.streaming.function_forms`.
        ValueError: `pool_size` is not positive.
    """
    for option, number in (("pool_size", pool_size), ("max_calls", max_calls)):
        if number is not None:
            require_number(option, number, least=1, whole=True)
    name = name or name_of(function)
    function = as_called(function)
    if is_coroutine_function(function):
        return LoopHost(function, name, max_calls)
    return PoolHost(function, name, pool_size or DEFAULT_POOL_SIZE)


def host_for(function: AnyFunction[Any, Any] | CallHost, options: AsyncOptions) -> CallHost:
    """The host of an operator's calls: the given one, or a new one that is not started.

    Raises:
        TypeError: as `make_host`. ValueError: it takes no batches, but there are options for them.
    """
    host = function
    if not isinstance(host, CallHost):
        if options.cache is not None:
            host = cached_function(host, options.cache, options.enabled_retry)
        host = make_host(host, pool_size=options.threads, max_calls=options.most_calls)
    if options.cache is not None and host.result_session is None:
        raise InvalidValueError(
            f"cache is given, but {host.name} is a host that runs already; make it of a cached_function"
        )
    if not host.is_batch and (options.max_batch_size is not None or options.linger_ms):
        raise InvalidValueError(
            f"max_batch_size is {options.max_batch_size} and linger_ms {options.linger_ms}, but {host.name} takes one "
            "value at a time. Give it an async_invoke_batch, or leave these out."
        )
    return host
