"""examples/redis_consumer.py with a real Redis: `kill -9` of either loses no message, and only some come twice."""

from __future__ import annotations

import shutil
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from .documents import ROOT, examples_of
from .kit import until
from .test_programs import EXAMPLES, TIMEOUT_S, Program

pytestmark = pytest.mark.long

STREAM, GROUP = "payments", "bookkeepers"
ROOM = 100
"""As in the example."""
CLAIM_AFTER_MS = 60_000
"""As in the example."""


class Broker:
    """A Redis on a free port, which can be killed and started again."""

    def __init__(self, folder: Path, appendonly: str) -> None:
        redis = pytest.importorskip("redis", minversion="8", reason="redis 8 is not installed: scripts/test does")
        program = shutil.which("redis-server") or pytest.skip("no redis-server on the PATH (apt: redis-server)")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": appendonly}
        options |= {"appendfsync": "always"}
        self._command = [program, *(text for name, value in options.items() for text in (f"--{name}", str(value)))]
        self.url = f"redis://127.0.0.1:{port}"
        wait = redis.retry.Retry(redis.backoff.ConstantBackoff(0.01), retries=-1)
        self.client = redis.Redis.from_url(self.url, decode_responses=True, protocol=2, retry=wait)
        self.start()

    def start(self) -> None:
        """Return when it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        assert self.client.ping()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def send(self, count: int, account: str = "ann") -> list[str]:
        """Add payments, and return their ids, which are in their order."""
        return [self.client.xadd(STREAM, {"account": account, "cents": 1}) for _ in range(count)]

    def pending(self) -> int:
        return int(self.client.xpending(STREAM, GROUP)["pending"])

    def await_read(self, count: int) -> None:
        """Return when consumers have read so many. A kill of the broker comes too late to keep these from them."""
        until(lambda: self.pending() == count, f"{count} messages are read")
        self.client.ping()  # answered after what was sent before

    def consumers(self) -> dict[str, int]:
        """For how many milliseconds each has read nothing."""
        is_there = self.client.exists(STREAM) and self.client.xinfo_groups(STREAM)
        return {each["name"]: each["idle"] for each in self.client.xinfo_consumers(STREAM, GROUP)} if is_there else {}


class Shop:
    """A broker, its consumers, and their ledger."""

    def __init__(self, folder: Path, appendonly: str = "yes") -> None:
        self.broker = Broker(folder, appendonly)
        self._ledger = folder / "ledger.db"
        self._consumers: list[Program] = []

    def start(self, name: str) -> Program:
        """Start a consumer, and return when it reads."""
        consumer = Program("redis_consumer", self.broker.url, STREAM, name, str(self._ledger))  # type: ignore[arg-type]
        self._consumers.append(consumer)
        until(lambda: name in self.broker.consumers(), f"{name} reads")
        return consumer

    @contextmanager
    def closed_ledger(self) -> Iterator[None]:
        """Meanwhile handlers wait."""
        with closing(sqlite3.connect(self._ledger, isolation_level=None)) as database:
            database.execute("BEGIN EXCLUSIVE")
            yield

    def booked(self) -> list[str]:
        with closing(sqlite3.connect(self._ledger)) as database:
            return [entry for (entry,) in database.execute("SELECT entry FROM payments ORDER BY rowid")]

    def is_settled(self) -> bool:
        """Whether each entry has been acknowledged."""
        return self.broker.pending() == 0 and self.broker.client.xlen(STREAM) == 0

    def end(self) -> None:
        for consumer in self._consumers:
            consumer.kill()
        self.broker.kill()
        self.broker.client.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.end()


def lines(entries: list[str], outcome: str) -> list[str]:
    return [f"{entry} {outcome}" for entry in entries]


def test_a_consumer_reads_what_it_has_room_for_and_keeps_the_order_of_an_account(shop: Shop) -> None:
    consumer = shop.start("consumer-1")
    with shop.closed_ledger():
        of_ann, of_bob = shop.broker.send(ROOM, "ann"), shop.broker.send(20, "bob")
        shop.broker.await_read(ROOM)
        until(
            lambda: shop.broker.consumers()["consumer-1"] > 700, "it does not even try to read"
        )  # it does each 500 ms
        assert shop.broker.pending() == ROOM

    said = consumer.says(ROOM + 20)

    assert [line for line in said if line in lines(of_ann, "booked")] == lines(of_ann, "booked")
    assert [line for line in said if line in lines(of_bob, "booked")] == lines(of_bob, "booked")


def test_what_the_broker_kept_is_acknowledged_after_its_kill_and_does_not_come_twice(shop: Shop) -> None:
    consumer = shop.start("consumer-1")
    with shop.closed_ledger():
        read, unread = shop.broker.send(ROOM), shop.broker.send(1)
        shop.broker.await_read(ROOM)
        shop.broker.kill()
    assert consumer.says(ROOM) == lines(read, "booked")

    shop.broker.start()

    assert consumer.says(1) == lines(unread, "booked")
    until(shop.is_settled)
    assert consumer.terminate() == (0, [])


def test_what_is_booked_and_not_acknowledged_at_the_kill_of_a_consumer_comes_twice_and_counts_once(shop: Shop) -> None:
    consumer = shop.start("consumer-1")
    with shop.closed_ledger():
        entries = shop.broker.send(3)
        shop.broker.await_read(3)
        shop.broker.kill()  # so it cannot acknowledge
    consumer.says(3)
    consumer.kill()
    shop.broker.start()
    shop.broker.client.xclaim(
        STREAM, GROUP, "consumer-1", 0, entries, idle=CLAIM_AFTER_MS, justid=True
    )  # a minute later
    new = shop.broker.send(1)

    another = shop.start("consumer-2")

    assert another.says(4) == lines(entries, "was booked before") + lines(new, "booked")
    until(shop.is_settled)
    assert shop.booked() == entries + new


def test_what_is_read_and_not_booked_at_the_kill_of_a_consumer_is_booked_by_its_next_run(shop: Shop) -> None:
    consumer = shop.start("consumer-1")
    with shop.closed_ledger():
        entries = shop.broker.send(3)
        shop.broker.await_read(3)
        consumer.kill()

    again = shop.start("consumer-1")

    assert again.says(3) == lines(entries, "booked")
    until(shop.is_settled)


def test_a_stop_acknowledges_what_was_read_and_leaves_the_group(shop: Shop) -> None:
    consumer = shop.start("consumer-1")
    with shop.closed_ledger():
        entries = shop.broker.send(3)
        shop.broker.await_read(3)
        consumer.process.send_signal(signal.SIGTERM)

    assert consumer.terminate() == (0, lines(entries, "booked"))
    assert shop.is_settled()
    assert shop.broker.consumers() == {}


def test_a_message_that_cannot_be_handled_goes_to_a_stream_of_failed_ones(shop: Shop) -> None:
    entry = shop.broker.client.xadd(STREAM, {"account": "ann", "cents": "many"})

    shop.start("consumer-1")

    until(lambda: shop.broker.client.exists(f"{STREAM}:failed") and shop.is_settled())
    [(_, failed)] = shop.broker.client.xrange(f"{STREAM}:failed")
    assert (failed["entry"], failed["cents"]) == (entry, "many")
    assert failed["error"].startswith("ValueError")


def test_a_broker_without_a_file_loses_what_was_not_read_and_the_consumer_goes_on(tmp_path: Path) -> None:
    shop = Shop(tmp_path, appendonly="no")
    consumer = shop.start("consumer-1")
    with shop.closed_ledger():
        read = shop.broker.send(ROOM)
        shop.broker.send(1)
        shop.broker.await_read(ROOM)
        shop.broker.kill()
        shop.broker.start()
    assert consumer.says(ROOM) == lines(read, "booked")

    new = shop.broker.send(1)

    assert consumer.says(1) == lines(new, "booked")
    shop.end()


def test_the_page_shows_the_example() -> None:
    program = (EXAMPLES / "redis_consumer.py").read_text(encoding="utf-8").split('"""\n', 1)[1].lstrip("\n")

    assert program in examples_of(ROOT / "docs" / "how-to" / "behind-a-broker.md", "python notest")
