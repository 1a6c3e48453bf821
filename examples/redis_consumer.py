"""Payments from a Redis stream: in order for each account, acknowledged once booked, over `kill -9` of either side.

    .venv/bin/pip install 'redis>=8'
    redis-server --appendonly yes --appendfsync always    # version 7 or newer
    .venv/bin/python examples/redis_consumer.py redis://localhost payments consumer-1 runs/ledger.db
    redis-cli XADD payments '*' account ann cents 250

A payment that can't be booked goes to the stream `payments:failed`. Ctrl-C or SIGTERM ends the program after it has
booked and acknowledged what it has read.
"""

import asyncio
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry as Reconnect
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import RedisError, ResponseError

from dispatcher import DispatcherConfig, EventDiscardedError, EventRefusedError, MultiDispatcher, Retry, aio

GROUP = "bookkeepers"
ROOM = 100  # entries read and not acknowledged
CLAIM_AFTER_MS = 60_000  # far longer than ROOM entries take: then other consumers may claim them
STOP_S = 10.0
Entries = list[tuple[str, dict[str, str]]]  # ids and fields
PaymentType = Enum("PaymentType", ["MADE"])


@dataclass
class Payment:
    type: PaymentType
    entry: str  # its id, the same each time it comes
    lock_key: str  # the account
    cents: int


def book(payment: Payment) -> None:
    row = payment.entry, payment.lock_key, payment.cents
    with closing(sqlite3.connect(ledger, timeout=30)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS payments (entry PRIMARY KEY, account, cents)")
        is_new = database.execute("INSERT OR IGNORE INTO payments VALUES (?, ?, ?)", row).rowcount
    print(f"{payment.entry} {'booked' if is_new else 'was booked before'}\n", end="", flush=True)


async def handle(entry: str, fields: dict[str, str]) -> None:
    failure = None
    try:
        await aio.ask(payments, Payment(PaymentType.MADE, entry, fields["account"], int(fields["cents"])))
    except (EventRefusedError, EventDiscardedError):
        raise  # the dispatcher has failed: the program ends, and the entry stays pending
    except Exception as error:
        failure = error
    async with few_at_once, acks.pipeline() as transaction:
        if failure is not None:
            transaction.xadd(f"{stream}:failed", {**fields, "entry": entry, "error": repr(failure)})
        transaction.xack(stream, GROUP, entry)
        transaction.xdel(stream, entry)
        await transaction.execute()
    del held[entry]


async def room() -> int:
    while len(held) >= ROOM:
        await asyncio.wait(held.values(), return_when=asyncio.FIRST_COMPLETED)
    return ROOM - len(held)


async def read(after: str) -> Entries:
    found = await reads.xreadgroup(GROUP, name, {stream: after}, count=await room(), block=500)
    return found[0][1] if found else []


async def batches() -> AsyncIterator[Entries]:
    with suppress(ResponseError):  # the group exists
        await reads.xgroup_create(stream, GROUP, id="0", mkstream=True)
    after, left_after = "0", "0"
    while own := await read(after):  # pending for this name: of an earlier run, or of a connection that broke
        yield own
        after = own[-1][0]
    while True:
        found = await reads.xautoclaim(stream, GROUP, name, CLAIM_AFTER_MS, left_after, count=await room())
        left_after = found[0]
        yield found[1]  # pending for consumers that have died
        yield await read(">")


async def main() -> None:
    is_stopping, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop() -> None:
        is_stopping.set()
        limit.reschedule(loop.time() + STOP_S)

    async with reads, acks, payments:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as handling:  # its end waits for all answers
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop)
            batch, delay_s = batches(), 0.05
            while not is_stopping.is_set():
                try:
                    entries = await anext(batch)
                    delay_s = 0.05
                except RedisError as error:
                    print(f"redis: {error}", file=sys.stderr)
                    await asyncio.sleep(delay_s)
                    entries, batch, delay_s = [], batches(), min(2 * delay_s, 5)
                for entry, fields in entries:
                    if entry not in held:
                        held[entry] = handling.create_task(handle(entry, fields))
        if not await reads.xpending_range(stream, GROUP, "-", "+", 1, name):  # they would be lost
            await reads.xgroup_delconsumer(stream, GROUP, name)


url, stream, name, ledger = sys.argv[1:]
Path(ledger).parent.mkdir(parents=True, exist_ok=True)
options: dict[str, Any] = {"decode_responses": True, "protocol": 2, "socket_timeout": 5}
reads: Any = Redis.from_url(url, retry=Reconnect(NoBackoff(), 0), **options)
acks: Any = Redis.from_url(url, retry=Reconnect(ExponentialBackoff(cap=1, base=0.05), -1), **options)  # without end
held: dict[str, asyncio.Task[None]] = {}  # what is read and not acknowledged, by entry
few_at_once = asyncio.Semaphore(10)  # and so as many connections
payments = MultiDispatcher(DispatcherConfig(queue_capacity=ROOM, drain_timeout_s=5), name="payments", partitions=4)
payments.register(PaymentType, book, on_error=Retry(attempts=3, delay_s=0.2, ordered_by_key=True))
try:
    asyncio.run(main())
except (TimeoutError, RedisError):
    sys.exit("redis_consumer: Redis or a handler did not answer in time; what is not acknowledged comes again")
