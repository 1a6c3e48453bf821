"""`dispatcher journal redeliver --to`: dead letters that a running daemon posts again."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, JournalWriter, MultiDispatcher
from dispatcher.ops import OpsConfig, OpsDoor
from dispatcher.web import WebConfig

from ...kit.commands import Ended, run_here
from .letters import WAIT_S, Order, OrderEvent, Other, OtherEvent, fail, leave_partitioned_letters
from .ops import fake_daemon as fake

pytestmark = pytest.mark.long


class Shop:
    """A handler that fails until `is_mended`, and waits for `may_go_on`."""

    def __init__(self) -> None:
        self.is_mended = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_redelivering: Callable[[], bool] = lambda: False  # of the dispatcher
        self.handled: list[tuple[str, bool]] = []  # the handler threads append

    def handle(self, event: OrderEvent) -> None:
        if not self.is_mended:
            fail(event)
        assert self.may_go_on.wait(WAIT_S)
        self.handled.append((event.entity, self.is_redelivering()))


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    yield shop
    shop.may_go_on.set()


@pytest.fixture
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of this process's door; its path has to be short."""
    folder = tmp_path_factory.mktemp("d")
    folder.chmod(0o700)
    socket = folder / "daemon.sock"
    with OpsDoor(OpsConfig(control=True), WebConfig(socket_path=socket), name="daemon"):
        yield socket


def started(shop: Shop, letters: Path, **options: Any) -> AsyncDispatcher:
    dispatcher = AsyncDispatcher(name="shop", dead_letters=letters, **options)
    dispatcher.register(Order, shop, events=OrderEvent)
    dispatcher.register(Other, fail, durable=False)
    shop.is_redelivering = dispatcher.is_redelivering
    return dispatcher


def orders(dispatcher: AsyncDispatcher | MultiDispatcher, *entities: str) -> None:
    for entity in entities:
        assert dispatcher.post(OrderEvent(Order.PLACED, entity))
    assert dispatcher.await_drained(WAIT_S)


def redeliver(letters: Path, door: Path, *args: object) -> Ended:
    return run_here("journal", "redeliver", letters, *args, "--to", f"unix:{door}")


def left_in(letters: Path) -> str:
    return run_here("journal", "failed", letters, "--json").out


@pytest.mark.parametrize("write_ahead", [False, True])
def test_chosen_letters_are_handled_and_leave_the_folder(
    tmp_path: Path, door: Path, shop: Shop, write_ahead: bool
) -> None:
    letters = tmp_path / "letters"
    journal = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True)) if write_ahead else None
    with started(shop, letters, journal=journal) as dispatcher:
        orders(dispatcher, "o1", "o2", "o3")
        shop.is_mended = True

        done = redeliver(letters, door, "--entity", "o2")

        assert (done.code, done.out, done.err) == (0, "1 event posted, 0 rejected, 0 left\n", "")
        assert dispatcher.await_drained(WAIT_S)
        assert shop.handled == [("o2", True)]
        assert redeliver(letters, door).out == "2 events posted, 0 rejected, 0 left\n"
        assert redeliver(letters, door).err == f"{letters}: nothing to redeliver\n"
        assert dispatcher.await_drained(WAIT_S)
    assert shop.handled == [("o2", True), ("o1", True), ("o3", True)]
    assert left_in(letters) == ""


def test_an_event_that_fails_again_is_a_letter_again(tmp_path: Path, door: Path, shop: Shop) -> None:
    with started(shop, tmp_path) as dispatcher:
        orders(dispatcher, "o1")

        assert redeliver(tmp_path, door).code == 0

        assert dispatcher.await_drained(WAIT_S)
    assert left_in(tmp_path).count('"number": 2') == 1
    assert left_in(tmp_path).count("\n") == 1


def test_letters_of_several_partitions_go_to_their_dispatchers(tmp_path: Path, door: Path, shop: Shop) -> None:
    dispatcher = MultiDispatcher(name="shop", partitions=3, dead_letters=tmp_path)
    dispatcher.register(Order, shop, events=OrderEvent)
    wanted = [f"o{number}" for number in range(20)]
    with dispatcher:
        orders(dispatcher, *wanted)
        shop.is_mended = True

        done = redeliver(tmp_path, door)

        assert (done.code, done.out) == (0, "20 events posted, 0 rejected, 0 left\n")
        assert dispatcher.await_drained(WAIT_S)
    assert sorted(entity for entity, _ in shop.handled) == sorted(wanted)
    assert left_in(tmp_path) == ""


def test_with_another_number_of_partitions_letters_go_to_the_ones_that_have_their_keys(
    tmp_path: Path, door: Path, shop: Shop
) -> None:
    wanted = [f"o{number}" for number in range(20)]
    leave_partitioned_letters(tmp_path, *wanted, partitions=3)
    handled: list[tuple[str, str]] = []
    dispatcher = MultiDispatcher(name="shop", partitions=5, dead_letters=tmp_path)
    dispatcher.register(Order, lambda event: handled.append((event.entity, current_thread().name)), events=OrderEvent)
    with dispatcher:
        done = redeliver(tmp_path, door)

        assert (done.code, done.out) == (0, "20 events posted, 0 rejected, 0 left\n")
        assert dispatcher.await_drained(WAIT_S)
    names = {entity: dispatcher.partition_of(OrderEvent(Order.PLACED, entity)).name for entity in wanted}
    assert sorted(handled) == sorted(names.items())


def test_letters_of_dispatchers_that_the_daemon_no_longer_has_are_named_and_the_others_are_posted(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept: list[str] = []

    def redelivered(handler: BaseHTTPRequestHandler) -> None:
        name = handler.path.split("/")[4]
        wanted = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))["letters"]
        if name in kept:
            fake.reply(handler, 200, {"posted": wanted, "refused": [], "change": 1})
        else:
            fake.reply(handler, 404, {"error": f"no dispatcher {name}"})

    leave_partitioned_letters(tmp_path, *(f"o{number}" for number in range(20)), partitions=3)
    left = Counter(json.loads(line)["dispatcher"] for line in left_in(tmp_path).splitlines())
    [(gone, count)] = left.most_common(1)  # which one has how many differs from process to process
    place = gone.removeprefix("shop-")
    door = tmp_path_factory.mktemp("d") / "daemon.sock"

    with fake.FakeDaemon(door, {"": redelivered}):
        none = redeliver(tmp_path, door)
        kept += [name for name in left if name != gone]
        some = redeliver(tmp_path, door)

    assert (none.code, none.out, none.err.count("\n")) == (1, "", 1)
    assert (some.code, some.out) == (1, f"{20 - count} events posted, {count} rejected, 0 left\n")
    reason = f"{door}: no dispatcher {gone}"
    assert some.err.startswith(f"{place}/1: {reason}\n{place}/2: {reason}\n")


def test_one_that_cannot_be_posted_is_named_and_the_others_are_posted(tmp_path: Path, door: Path, shop: Shop) -> None:
    def key_of(event: OrderEvent) -> None:
        if shop.is_mended and event.entity == "o2":
            raise KeyError("no key")

    dispatcher = AsyncDispatcher(name="shop", dead_letters=tmp_path)
    dispatcher.register(Order, shop, events=OrderEvent, coalesce_by=key_of)
    with dispatcher:
        orders(dispatcher, "o1", "o2", "o3")
        shop.is_mended = True

        done = redeliver(tmp_path, door)

        assert (done.code, done.out) == (1, "2 events posted, 1 rejected, 0 left\n")
        assert done.err == "2: KeyError: 'no key'\n"
        assert dispatcher.await_drained(WAIT_S)
    assert [entity for entity, _ in shop.handled] == ["o1", "o3"]


def test_what_finds_no_room_stays(tmp_path: Path, door: Path, shop: Shop) -> None:
    with started(shop, tmp_path, config=DispatcherConfig(queue_capacity=2)) as dispatcher:
        for entity in ("o1", "o2", "o3", "o4", "o5"):
            orders(dispatcher, entity)
        shop.is_mended = True
        shop.may_go_on.clear()

        done = redeliver(tmp_path, door)

        posted = int(done.out.split()[0])
        assert 2 <= posted <= 3  # one may be in the handler's hands
        assert (done.code, done.out) == (1, f"{posted} events posted, 0 rejected, {5 - posted} left: no room\n")
        assert left_in(tmp_path).count("\n") == 5 - posted
        shop.may_go_on.set()
        assert dispatcher.await_drained(WAIT_S)
    assert [entity for entity, _ in shop.handled] == [f"o{number + 1}" for number in range(posted)]


def test_letters_of_another_folder_are_refused(tmp_path: Path, door: Path, shop: Shop) -> None:
    """Their numbers would choose others."""
    with started(shop, tmp_path / "other") as dispatcher:
        orders(dispatcher, "o1")
    shutil.copytree(tmp_path / "other", tmp_path / "copy")
    with started(shop, tmp_path / "letters") as dispatcher:
        orders(dispatcher, "o2")

        done = redeliver(tmp_path / "copy", door)

    assert done.code == 1
    assert "HTTP 409: shop: its dead letters are in another folder" in done.err
    assert left_in(tmp_path / "letters").count("\n") == 1


def test_a_class_that_is_not_declared_any_longer_is_refused(tmp_path: Path, door: Path, shop: Shop) -> None:
    with started(shop, tmp_path) as dispatcher:
        orders(dispatcher, "o1")
    dispatcher = AsyncDispatcher(name="shop", dead_letters=tmp_path)
    with dispatcher:
        done = redeliver(tmp_path, door)

    assert (done.code, done.out) == (1, "0 events posted, 1 rejected, 0 left\n")
    assert done.err.startswith("1: ")
    assert "not declared" in done.err


def test_one_whose_class_was_not_declared_is_named_and_stays(tmp_path: Path, door: Path, shop: Shop) -> None:
    with started(shop, tmp_path) as dispatcher:
        assert dispatcher.post(OtherEvent(Other.PLACED))
        assert dispatcher.await_drained(WAIT_S)

        done = redeliver(tmp_path, door)

    assert done.code == 1
    assert "1 Other.PLACED stays: its class was not declared when it failed\n" in done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "give either --to, for a daemon that runs, or --with, for one that does not"),
        (("--to", "nobody", "--with", "a:b"), "give either --to"),
        (("--to", "nobody"), "no daemon 'nobody'"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, shop: Shop, args: tuple[str, ...], said: str) -> None:
    with started(shop, tmp_path) as dispatcher:
        orders(dispatcher, "o1")

        done = run_here("journal", "redeliver", tmp_path, *args)

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert said in done.err


def test_a_daemon_whose_controls_are_off_refuses(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, shop: Shop
) -> None:
    folder = tmp_path_factory.mktemp("d")
    folder.chmod(0o700)
    socket = folder / "daemon.sock"
    with OpsDoor(OpsConfig(), WebConfig(socket_path=socket), name="daemon"), started(shop, tmp_path) as dispatcher:
        orders(dispatcher, "o1")

        done = redeliver(tmp_path, socket)

    assert done.code == 2
    assert "controls are switched off; set ops.control: true" in done.err
    assert left_in(tmp_path).count("\n") == 1
