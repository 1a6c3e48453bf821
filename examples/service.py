"""A FastAPI service: a payment for each order, the orders of a customer one after another, 50 customers at a time.

    .venv/bin/pip install '.[web]' fastapi
    .venv/bin/python examples/service.py runs/service 8000
    curl -X POST localhost:8000/customers/ann/orders/order-1?cents=500     # also GET /livez, /readyz, /metrics

Ctrl-C or SIGTERM ends it once its queue is empty. A payment that `kill -9` cuts off is made at the next start.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from dispatcher import (
    AsyncDispatcher,
    DispatcherConfig,
    DispatcherError,
    HealthAnswer,
    JournalConfig,
    JournalWriter,
    aio,
    health,
    register_metrics,
)

OrderEventType = Enum("OrderEventType", ["PLACED"])


@dataclass
class OrderEvent:
    type: OrderEventType
    entity: str  # the order's id
    lock_key: str  # the customer
    cents: int


async def pay(event: OrderEvent) -> str:
    await asyncio.sleep(0.05)  # your payment service, which charges an order once, however often it is asked
    if event.cents > 100_000:
        raise ValueError(f"{event.lock_key} has no {event.cents} cents")
    return f"{event.lock_key} has paid {event.cents} cents for {event.entity}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    journal = JournalWriter(Path(sys.argv[1]) / "journal", JournalConfig(durability="sync", write_ahead=True))
    config = DispatcherConfig(queue_capacity=10_000, queue_full_policy="reject", drain_timeout_s=20)
    orders = AsyncDispatcher(config, name="orders", journal=journal, loop=asyncio.get_running_loop())
    orders.register(OrderEventType, aio.AsyncioHandler(pay, capacity=50), events=OrderEvent)
    register_metrics(orders)
    with health.watching(orders):
        async with orders:
            app.state.orders = orders
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/customers/{customer}/orders/{order}")
async def place(customer: str, order: str, cents: int, request: Request) -> str:
    event = OrderEvent(OrderEventType.PLACED, order, customer, cents)
    try:
        return str(await aio.ask(request.app.state.orders, event, timeout=10))
    except DispatcherError as error:  # the queue is full, the service stops, or the disk is full
        raise HTTPException(503, str(error)) from error
    except TimeoutError as error:
        raise HTTPException(504, "the payment service takes too long") from error
    except ValueError as error:
        raise HTTPException(402, str(error)) from error


def page(answer: HealthAnswer) -> Response:
    return Response(answer.to_json(), 200 if answer.is_ok else 503, media_type="application/json")


@app.get("/livez")
def livez() -> Response:
    return page(health.live())


@app.get("/readyz")
def readyz() -> Response:
    return page(health.ready())


@app.get("/metrics")
def metrics() -> Response:
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[2]), timeout_graceful_shutdown=5)
