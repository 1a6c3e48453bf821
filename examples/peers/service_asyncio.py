"""The same as ../service.py, with asyncio and SQLite.

.venv/bin/python examples/peers/service_asyncio.py runs/service 8000
"""

import asyncio
import contextlib
import json
import logging
import sqlite3
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest

T = TypeVar("T")
CAPACITY = 10_000
AT_THE_SAME_TIME = 50
DRAIN_TIMEOUT_S = 20.0
TABLE = "CREATE TABLE IF NOT EXISTS events (seq INTEGER PRIMARY KEY AUTOINCREMENT, event TEXT NOT NULL, outcome TEXT)"

log = logging.getLogger("service")
accepted = Counter("orders_events_accepted", "Events that are in the database.")
rejected = Counter("orders_events_rejected", "Events that were refused.", ["reason"])
ended = Counter("orders_events_ended", "Events by their outcome.", ["outcome"])
size = Gauge("orders_queue_size", "Events that wait or run.")
took = Histogram("orders_seconds", "How long a payment took.")


@dataclass
class OrderEvent:
    order: str
    customer: str
    cents: int


class RefusedError(Exception):
    pass


async def pay(event: OrderEvent) -> str:
    await asyncio.sleep(0.05)
    if event.cents > 100_000:
        raise ValueError(f"{event.customer} has no {event.cents} cents")
    return f"{event.customer} has paid {event.cents} cents for {event.order}"


class Orders:
    """Payments: a queue and a task for each customer that has orders. The loop's thread, but for the database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database_thread = ThreadPoolExecutor(1)
        self.waiting: dict[str, deque[tuple[int, OrderEvent, asyncio.Future[str]]]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.slots = asyncio.Semaphore(AT_THE_SAME_TIME)
        self.size = 0
        self.is_draining = False
        self.has_failed = False
        size.set_function(lambda: self.size)

    async def start(self) -> None:
        for seq, event in await self.in_database(self.open):
            self.size += 1
            self.enqueue(seq, OrderEvent(**json.loads(event)))

    def open(self) -> list[tuple[int, str]]:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.database = sqlite3.connect(self.folder / "events.db")
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.execute(TABLE)
        return self.database.execute("SELECT seq, event FROM events WHERE outcome IS NULL ORDER BY seq").fetchall()

    async def in_database(self, function: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self.database_thread, function)
        except sqlite3.Error:
            self.has_failed = True
            raise

    def insert(self, event: OrderEvent) -> int:
        with self.database:
            seq = self.database.execute("INSERT INTO events (event) VALUES (?)", (json.dumps(asdict(event)),)).lastrowid
        assert seq is not None
        return seq

    def end(self, seq: int, outcome: str) -> None:
        with self.database:
            self.database.execute("UPDATE events SET outcome = ? WHERE seq = ?", (outcome, seq))

    async def ask(self, event: OrderEvent, timeout: float) -> str:
        reason = "draining" if self.is_draining else "full" if self.size >= CAPACITY else ""
        if reason:
            rejected.labels(reason).inc()
            raise RefusedError(reason)
        self.size += 1
        async with asyncio.timeout(timeout):
            try:  # the database's one thread and the loop keep the order of the requests
                seq = await asyncio.shield(self.in_database(lambda: self.insert(event)))
            except BaseException:
                self.size -= 1
                raise
            accepted.inc()
            return await self.enqueue(seq, event)

    def enqueue(self, seq: int, event: OrderEvent) -> asyncio.Future[str]:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if event.customer in self.waiting:
            self.waiting[event.customer].append((seq, event, answer))
        else:
            self.waiting[event.customer] = deque([(seq, event, answer)])
            task = asyncio.create_task(self.work(event.customer))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return answer

    async def work(self, customer: str) -> None:
        queue = self.waiting[customer]
        while queue:
            async with self.slots:
                seq, event, answer = queue.popleft()
                try:
                    await self.handle(seq, event, answer)
                except sqlite3.Error:
                    log.exception("the database cannot be written")
                finally:
                    self.size -= 1
        del self.waiting[customer]

    async def handle(self, seq: int, event: OrderEvent, answer: asyncio.Future[str]) -> None:
        receipt, error, outcome = "", None, "discarded"
        if not answer.cancelled():
            try:
                with took.time():
                    receipt = await pay(event)
                outcome = "handled"
            except Exception as raised:
                log.exception("%s failed", event)
                error, outcome = raised, "failed"
        await self.in_database(lambda: self.end(seq, outcome))
        ended.labels(outcome).inc()
        if not answer.done() and error is not None:
            answer.set_exception(error)
            answer.exception()  # nobody may wait for the answer of a payment that is made again
        elif not answer.done():
            answer.set_result(receipt)

    async def stop(self) -> None:
        self.is_draining = True
        if self.tasks:
            _, late = await asyncio.wait(self.tasks, timeout=DRAIN_TIMEOUT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        with contextlib.suppress(sqlite3.Error):
            await self.in_database(lambda: self.database.close())
        self.database_thread.shutdown()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.orders = orders = Orders(Path(sys.argv[1]))
    await orders.start()
    yield
    await orders.stop()


app = FastAPI(lifespan=lifespan)


@app.post("/customers/{customer}/orders/{order}")
async def place(customer: str, order: str, cents: int, request: Request) -> str:
    orders: Orders = request.app.state.orders
    try:
        return await orders.ask(OrderEvent(order, customer, cents), timeout=10)
    except (RefusedError, sqlite3.Error) as error:
        raise HTTPException(503, str(error)) from error
    except TimeoutError as error:
        raise HTTPException(504, "the payment service takes too long") from error
    except ValueError as error:
        raise HTTPException(402, str(error)) from error


@app.get("/livez")
async def livez() -> Response:
    return Response("ok")


@app.get("/readyz")
async def readyz(request: Request) -> Response:
    orders: Orders = request.app.state.orders
    is_ready = not orders.is_draining and not orders.has_failed and orders.size < CAPACITY
    return Response("ok" if is_ready else "not ready", 200 if is_ready else 503)


@app.get("/metrics")
def metrics() -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[2]), timeout_graceful_shutdown=5)
