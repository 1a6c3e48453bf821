"""Call an HTTP service for each row on Spark, with a rate limit, retries, and dead letters for rows that fail.

    .venv/bin/pip install 'aiohttp>=3.10'
    .venv/bin/python examples/http_enrichment.py
    .venv/bin/python examples/http_enrichment.py --rows 5000 --rate 300 --service-rate 300

The service is a real server on this machine's loopback address. It delays its answers, refuses calls above its rate
(429, with Retry-After), fails now and then (503), and lacks some users (404). Refused and failed calls are retried;
orders of unknown users become dead letters, next to the enriched orders.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F

from dispatcher import DispatcherError
from pipeline.spark import call_metrics, format_call_metrics, spark_session, task_failure, unordered_wait
from pipeline.streaming import AsyncFunction, RateLimit, RetryAfter, RetryStrategy

try:
    import aiohttp
except ModuleNotFoundError:
    sys.exit("http_enrichment: the package aiohttp is not installed. Run: pip install 'aiohttp>=3.10'")

USERS = 100
USER_ERROR = 2
COUNTRIES = ("AT", "CH", "DE", "FR", "IT")
TIMEOUT_S = 60.0

# ------------------------------------------------------------------------------------------------------ the client


class FindUser(AsyncFunction[Row, Row]):
    """Adds the user's name and country to an order. Each Python worker has a copy with its own session."""

    def __init__(self, url: str) -> None:
        self._url = url  # pickled to the workers, so no connection yet
        self._session: aiohttp.ClientSession

    async def open(self) -> None:
        # No limit on connections, because `concurrency` is one. `timeout` ends a call that hangs.
        self._session = aiohttp.ClientSession(self._url, connector=aiohttp.TCPConnector(limit=0))

    async def close(self) -> None:
        await self._session.close()

    async def async_invoke(self, order: Row) -> list[Row]:
        async with self._session.get(f"/users/{order.user_id}") as response:
            if response.status == HTTPStatus.TOO_MANY_REQUESTS:
                raise RetryAfter(response.headers.get("Retry-After"))
            response.raise_for_status()
            user = await response.json()
        return [Row(order_id=order.order_id, amount=order.amount, name=user["name"], country=user["country"])]


RESULT = "order_id long, amount double, name string, country string"


def is_passing(error: BaseException) -> bool:
    """Whether a retry may succeed: yes after a 503, no after a 404."""
    if isinstance(error, aiohttp.ClientResponseError):
        return error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(error, TimeoutError | aiohttp.ClientConnectionError | aiohttp.ClientPayloadError)


def with_users(orders: DataFrame, url: str, calls_per_s: float, metrics: Observation) -> DataFrame:
    """The orders with their users, in any order; a failed one has an `error` with the order as its `input`."""
    return unordered_wait(
        orders,
        FindUser(url),
        RESULT,
        timeout=TIMEOUT_S,  # for a row, from its first call, including all attempts and pauses
        concurrency=50,  # calls in flight in each task
        retry=RetryStrategy.exponential_backoff(
            5, initial_delay_ms=50, max_delay_ms=2000, multiplier=2.0, jitter=0.3, retry_on_exception=is_passing
        ),
        rate_limit=RateLimit(calls_per_s),  # of the whole job; each task gets its share
        on_error="capture",
        metrics=metrics,
        idle_timeout=5,  # seconds for which a worker keeps its session for another task
    )


# ------------------------------------------------------------------------------------------------------ the service


class UserService(ThreadingHTTPServer):
    """GET /users/NUMBER answers with JSON. Accepts `calls_per_s`, in bursts of up to a second's calls."""

    daemon_threads = True  # of connections that clients keep open
    request_queue_size = 128

    def __init__(self, calls_per_s: float, latency_s: float, fails_every: int) -> None:
        super().__init__(("127.0.0.1", 0), UserRequest)
        self.latency_s = latency_s
        self.fails_every = fails_every
        self.numbers = itertools.count(1)  # of the calls; `next` is atomic
        self._calls_per_s = calls_per_s
        self._most_at_once = max(1.0, calls_per_s)
        self._lock = threading.Lock()  # leaf lock
        self._allowed = self._most_at_once  # calls allowed at _at_s; guarded by _lock
        self._at_s = time.monotonic()  # when _allowed was updated; guarded by _lock
        self.refused = 0  # guarded by _lock

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def allows_call(self) -> bool:
        """Count a call, and return whether it is within the rate."""
        with self._lock:
            now_s = time.monotonic()
            earned = (now_s - self._at_s) * self._calls_per_s
            self._allowed, self._at_s = min(self._most_at_once, self._allowed + earned), now_s
            if self._allowed < 1:
                self.refused += 1
                return False
            self._allowed -= 1
            return True

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: object) -> None:
        """Ignore clients that close their connection; print other errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @contextmanager
    def serving(self) -> Iterator[UserService]:
        """Serves on its own threads within `with`."""
        thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="user service")
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class UserRequest(BaseHTTPRequestHandler):
    """One connection, on its own thread."""

    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True
    server: UserService

    def do_GET(self) -> None:
        number = next(self.server.numbers)
        if not self.server.allows_call():
            self._answer(HTTPStatus.TOO_MANY_REQUESTS, {"error": "too many calls"}, {"Retry-After": "1"})
            return
        time.sleep(self.server.latency_s)
        _, _, user = self.path.rpartition("/users/")
        if number % self.server.fails_every == 0:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "try again"})
        elif not user.isdecimal() or int(user) >= USERS:
            self._answer(HTTPStatus.NOT_FOUND, {"error": f"no user {user}"})
        else:
            self._answer(HTTPStatus.OK, {"name": f"user {user}", "country": COUNTRIES[int(user) % len(COUNTRIES)]})

    def _answer(self, status: HTTPStatus, body: dict[str, str], headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Logs nothing: one line per call is too much."""


# ------------------------------------------------------------------------------------------------------ the job


def make_orders(spark: SparkSession, number: int, tasks: int) -> DataFrame:
    """Orders in `tasks` partitions; a few users are unknown to the service."""
    return spark.range(0, number, 1, tasks).select(
        F.col("id").alias("order_id"),
        (F.col("id") * 37 % (USERS + 3)).alias("user_id"),
        (F.col("id") % 500 / 10).alias("amount"),
    )


def run(arguments: argparse.Namespace, output: Path, spark: SparkSession) -> None:
    observation = Observation()
    service = UserService(arguments.service_rate, arguments.latency_ms / 1000, arguments.fails_every)
    with service.serving():
        orders = make_orders(spark, arguments.rows, arguments.tasks)
        answered = with_users(orders, service.url, arguments.rate, observation)
        # Written once and then read back, because each action on `answered` would repeat all calls.
        answered.write.mode("overwrite").parquet(str(output))
    print(format_call_metrics({"find user": call_metrics(observation)}))
    print(f"Refused by the service as too fast: {service.refused:,}")
    written = spark.read.parquet(str(output))
    enriched = written.where("error IS NULL").drop("error")
    print(f"\n{enriched.count():,} enriched orders, such as")
    enriched.orderBy("order_id").show(5, truncate=False)
    dead_letters = written.where("error IS NOT NULL").select("error.input.*", "error.attempts", "error.message")
    print(f"{dead_letters.count():,} dead letters, such as")
    dead_letters.orderBy("order_id").show(3, truncate=False)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Call a local HTTP service for each row of a Spark job.")
    parser.add_argument("--rows", type=int, default=1000, help="orders to enrich (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=2, help="Spark tasks that call at once (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=400, help="calls/s of the whole job (default: %(default)s)")
    parser.add_argument(
        "--service-rate",
        type=float,
        default=200,
        help="calls/s that the service accepts; below --rate, so that it refuses some (default: %(default)s)",
    )
    parser.add_argument("--latency-ms", type=float, default=50, help="of the service (default: %(default)s)")
    parser.add_argument(
        "--fails-every", type=int, default=25, metavar="N", help="each Nth call: 503 (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="folder for the rows as Parquet (default: not kept)")
    arguments = parser.parse_args(argv)
    for name in ("rows", "tasks", "rate", "service_rate", "fails_every"):
        if not getattr(arguments, name) > 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(arguments, name)}; give a number above 0")
    if not arguments.latency_ms >= 0:
        parser.error(f"--latency-ms is {arguments.latency_ms}; give 0 or more")
    return arguments


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run with `spark`, which stays open, or with a new session. Returns the exit code."""
    arguments = parse_arguments(argv)
    try:
        # Spark logs a failure as pages of JVM frames; the relevant lines are printed below.
        quiet = {"spark.log.level": "OFF"}
        own: AbstractContextManager[SparkSession] = (
            spark_session(f"local[{arguments.tasks}]", "http enrichment", quiet)
            if spark is None
            else nullcontext(spark)
        )
        with tempfile.TemporaryDirectory() as folder, own as session:
            run(arguments, arguments.output or Path(folder) / "answered", session)
    except DispatcherError as error:
        print(f"http_enrichment: {error}", file=sys.stderr)
        return USER_ERROR
    except PySparkException as error:
        print(f"http_enrichment: {task_failure(error) or str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
