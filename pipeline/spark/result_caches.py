"""Caches of results that outlive the job, under a DataFrame's calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from pipeline.spark.shipping import is_remote, runs_on_executors
from pipeline.streaming.cache.cached_function import cached_function
from pipeline.streaming.cache.postgresql import PostgresResults
from pipeline.streaming.cache.results import KeyOf, ResultCache
from pipeline.streaming.cache.sqlite import SqliteResults
from pipeline.streaming.calls.functions import AnyFunction
from pipeline.streaming.calls.retry import RetryStrategy

__all__ = ["PostgresResults", "SqliteResults", "cache_of_arguments", "cache_of_rows", "with_cache"]

log: logging.Logger = logging.getLogger(__name__)


def cache_of_rows(df: DataFrame, cache: ResultCache | None, function: AnyFunction[Any, Any]) -> ResultCache | None:
    """The cache for a function that gets the rows of `df`, with the function's name, which no worker can tell.

    Raises:
        ValueError: it does not fit the function.
    """
    if cache is None:
        return None
    named = replace(cache, name=cache.function_name(function))
    if isinstance(cache, SqliteResults) and runs_on_executors(df.sparkSession) and not is_remote(df.sparkSession):
        log.warning(
            "%s is for one machine: executors on others each have a file of their own under that path. On a cluster "
            "use PostgresResults.",
            cache.where,
        )
    return named


def cache_of_arguments(
    cache: ResultCache, function: AnyFunction[Any, Any], key_of: Callable[[KeyOf | None], Callable[[Any], Any] | None]
) -> ResultCache:
    """The cache for a function that gets a row's arguments as a tuple: `key_of` takes its `key` to one of that."""
    return replace(cache, key=key_of(cache.key), name=cache.function_name(function))


def with_cache(
    cache: ResultCache | None, checked: Callable[..., Any], retry: RetryStrategy | None, schema: T.StructType
) -> Any:
    """`checked`, a function, with its calls through `cache`, which has a name, and keeps results of each schema."""
    if cache is None:
        return checked
    return cached_function(checked, cache, retry, form=schema.json())
