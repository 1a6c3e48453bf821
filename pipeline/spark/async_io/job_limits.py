"""The share of a job's rate limit that each of its tasks gets.

Workers do not know of each other, so a limit for the job is divided by the number of tasks that may run at once, when
the query is built: the cores for tasks, or the partitions of a batch query if they are fewer. Where that number cannot
be known, it is an upper bound, so that the job stays below its limit rather than above it:

- Fewer tasks run than the share is for: at the end of a stage, where adaptive execution coalesces partitions, or where
  other jobs use the cores. The job then makes fewer calls than its limit allows.
- The partitions of a stream, and of a query over Spark Connect, are not known here: the cores decide.
- Only with dynamic allocation without a `maxExecutors`, and on a cluster whose configuration names no number of
  executors, may more tasks run later than now. The log then warns.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from dispatcher.util.figures import counted
from dispatcher.util.rate_limit import RateLimit
from pipeline.spark.executors import registered_cores
from pipeline.spark.shipping import is_remote
from pipeline.streaming.calls.limits.adaptive import ADAPTIVE, AdaptiveRateLimit
from pipeline.streaming.options import RateLimitOption

log: logging.Logger = logging.getLogger(__name__)

_LOCAL: Final = re.compile(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_ONE_CORE_MASTERS: Final = ("yarn", "k8s:")
"""Their executors have one core unless the configuration says otherwise."""
_MOST_EXECUTORS: Final = 2**31 - 1
"""What Spark takes for a missing `maxExecutors`."""


@dataclass(frozen=True, slots=True)
class TasksAtOnce:
    """How many tasks of a query may run at once, and why; `may_grow`: more may run later."""

    count: int
    reason: str
    may_grow: bool = False


def share_of_task(
    rate_limit: RateLimitOption | None, spark: SparkSession, df: DataFrame | None, operator: str
) -> RateLimitOption | None:
    """What each worker gets of `rate_limit`: a limit of the scope "job" is divided, others stay as they are.

    Says in a line of the log what each task gets, and why. May run a small job, to count the cores. `df`: the rows to
    call for; None if they are not known, as for a column.
    """
    limit = AdaptiveRateLimit() if rate_limit == ADAPTIVE else rate_limit
    if not isinstance(limit, RateLimit | AdaptiveRateLimit) or limit.scope != "job":
        return rate_limit
    tasks = tasks_at_once(spark, df)
    share = limit.split(tasks.count)
    _log(operator, limit, share, tasks)
    return share


def tasks_at_once(spark: SparkSession, df: DataFrame | None) -> TasksAtOnce:
    """The number of tasks over the rows of `df` that may run at once."""
    settings = dict(spark.conf.getAll)
    slots = slots_of(settings, lambda: registered_cores(spark))
    partitions = None if df is None or df.isStreaming or is_remote(spark) else _partitions(df)
    if partitions is not None and (partitions < slots.count or slots.may_grow):
        return TasksAtOnce(max(1, partitions), counted(partitions, "partition"))
    return slots


def slots_of(settings: Mapping[str, str], count_cores: Any) -> TasksAtOnce:
    """The tasks for which the session has cores. `count_cores` counts those that are there now."""
    cpus = max(1, int(settings.get("spark.task.cpus") or 1))
    per_task = f" over spark.task.cpus {cpus}" if cpus > 1 else ""
    master = settings.get("spark.master") or ""
    if (local := _LOCAL.fullmatch(master)) is not None:
        cores = count_cores() if local[1] == "*" else int(local[1] or 1)
        return TasksAtOnce(max(1, cores // cpus), f"{cores} cores of {master}{per_task}")
    if (cluster := _LOCAL_CLUSTER.fullmatch(master)) is not None:
        executors, cores = int(cluster[1]), int(cluster[2])
        return TasksAtOnce(max(1, executors * (cores // cpus)), f"{executors} executors of {cores} cores{per_task}")
    return _slots_of_cluster(settings, master, cpus, per_task, count_cores)


def _slots_of_cluster(
    settings: Mapping[str, str], master: str, cpus: int, per_task: str, count_cores: Any
) -> TasksAtOnce:
    bounds: list[TasksAtOnce] = []
    cores = _number(settings, "spark.executor.cores") or (1 if master.startswith(_ONE_CORE_MASTERS) else None)
    is_dynamic = (settings.get("spark.dynamicAllocation.enabled") or "").lower() == "true"
    name = "spark.dynamicAllocation.maxExecutors" if is_dynamic else "spark.executor.instances"
    executors = _number(settings, name)
    if executors is not None and executors < _MOST_EXECUTORS and cores is not None:
        reason = f"{executors} executors ({name}) of {cores} cores{per_task}"
        bounds.append(TasksAtOnce(max(1, executors * (cores // cpus)), reason))
    if (most := _number(settings, "spark.cores.max")) is not None:
        bounds.append(TasksAtOnce(max(1, most // cpus), f"{most} cores (spark.cores.max){per_task}"))
    if bounds:
        return min(bounds, key=lambda tasks: tasks.count)
    found = count_cores()
    return TasksAtOnce(max(1, found // cpus), f"{found} cores of the executors there are now{per_task}", may_grow=True)


def _partitions(df: DataFrame) -> int | None:
    """The partitions of a batch query, or more if adaptive execution will coalesce them; None: unknown. Runs no job."""
    try:
        plan = df._jdf.queryExecution().executedPlan()
        if (count := int(plan.outputPartitioning().numPartitions())) > 0:
            return count
        # A scan: its partitions are counted without a job, while an exchange would run one.
        if any(word in plan.toString() for word in ("Exchange", "Subquery", "InMemoryRelation")):
            return None
        return int(plan.execute().getNumPartitions())
    except Exception as error:  # of another Spark, whose plans are not like these: the cores decide
        log.debug("the partitions are not known: %s", error)
        return None


def _number(settings: Mapping[str, str], name: str) -> int | None:
    value = settings.get(name)
    return int(value) if value is not None and value.strip().isdigit() else None


def _log(
    operator: str, limit: RateLimit | AdaptiveRateLimit, share: RateLimit | AdaptiveRateLimit, tasks: TasksAtOnce
) -> None:
    if isinstance(limit, RateLimit) and isinstance(share, RateLimit):
        what = f"rate limit {limit.calls_per_s:g}/s of the job: {share.calls_per_s:g}/s"
    elif isinstance(limit, AdaptiveRateLimit) and isinstance(share, AdaptiveRateLimit):
        most = "" if share.max_calls_per_s is None else f", at most {share.max_calls_per_s:g}/s,"
        what = f"adaptive rate limit of the job: from {share.initial_calls_per_s:g}/s{most}"
    log.info("%s: %s for each of %s tasks at once (%s)", operator, what, tasks.count, tasks.reason)
    if tasks.may_grow and not (isinstance(limit, AdaptiveRateLimit) and limit.max_calls_per_s is None):
        log.warning(
            "%s: the rate limit is exceeded if executors join: their number is not known. Set "
            "spark.dynamicAllocation.maxExecutors or spark.executor.instances, or divide the limit yourself: "
            "%s(...).split(tasks at once)",
            operator,
            type(limit).__name__,
        )
