"""`dispatcher journal redeliver --to`: dead letters that a running daemon posts again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import current_thread

import pytest

pytest.importorskip("uvicorn", reason="the extra web is not installed")

from dispatcher import AsyncDispatcher, DispatcherConfig, JournalConfig, JournalWriter, MultiDispatcher
from dispatcher.ops import OpsConfig, OpsDoor
from dispatcher.web import WebConfig

from ...kit.commands import Ended, run_here
from ..ops.shop import running_shop
from .letters import WAIT_S, Order, OrderEvent, Other, OtherEvent, leave_letters, leave_partitioned_letters
from .ops import fake_daemon as fake

pytestmark = pytest.mark.long


@contextmanager
def opened(control: bool) -> Iterator[Path]:
    """The socket of this process's door; its path has to be short."""
    with TemporaryDirectory(prefix="d-") as folder:
        socket = Path(folder, "daemon.sock")
        with OpsDoor(OpsConfig(control=control), WebConfig(socket_path=socket), name="daemon"):
            yield socket


@pytest.fixture
def door() -> Iterator[Path]:
    with opened(control=True) as socket:
        yield socket


def redeliver(letters: Path, door: Path, *args: object) -> Ended:
    return run_here("journal", "redeliver", letters, *args, "--to", f"unix:{door}")


def left_in(letters: Path) -> str:
    return run_here("journal", "failed", letters, "--json").out


@pytest.mark.parametrize("write_ahead", [False, True])
def test_chosen_letters_are_handled_and_leave_the_folder(tmp_path: Path, door: Path, write_ahead: bool) -> None:
    letters = tmp_path / "letters"
    journal = JournalWriter(tmp_path / "journal", JournalConfig(write_ahead=True)) if write_ahead else None
    with running_shop(letters, journal=journal) as shop:
        shop.place("o1", "o2", "o3")
        shop.is_mended = True

        done = redeliver(letters, door, "--entity", "o2")

        assert (done.code, done.out, done.err) == (0, "1 event posted, 0 rejected, 0 left\n", "")
        assert shop.dispatcher.await_drained(WAIT_S)
        assert shop.handled == ["o2"]
        assert redeliver(letters, door).out == "2 events posted, 0 rejected, 0 left\n"
        assert redeliver(letters, door).err == f"{letters}: nothing to redeliver\n"
        assert shop.dispatcher.await_drained(WAIT_S)
        assert (shop.handled, shop.letters()) == (["o2", "o1", "o3"], [])


def test_with_another_number_of_partitions_letters_go_to_the_ones_that_have_their_keys(
    tmp_path: Path, door: Path
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


def test_one_that_cannot_be_posted_is_named_and_the_others_are_posted(tmp_path: Path, door: Path) -> None:
    def key_of(event: OrderEvent) -> None:
        if event.entity == "o2":
            raise KeyError("no key")

    leave_letters(tmp_path, *(OrderEvent(Order.PLACED, entity) for entity in ("o1", "o2", "o3")))
    handled: list[str] = []
    dispatcher = AsyncDispatcher(name="shop", dead_letters=tmp_path)
    dispatcher.register(Order, lambda event: handled.append(event.entity), events=OrderEvent, coalesce_by=key_of)
    with dispatcher:
        done = redeliver(tmp_path, door)
        assert dispatcher.await_drained(WAIT_S)

    assert (done.code, done.out, done.err) == (1, "2 events posted, 1 rejected, 0 left\n", "2: KeyError: 'no key'\n")
    assert (handled, left_in(tmp_path).count("\n")) == (["o1", "o3"], 1)


def test_what_finds_no_room_stays(tmp_path: Path, door: Path) -> None:
    with running_shop(tmp_path, config=DispatcherConfig(queue_capacity=2)) as shop:
        for entity in ("o1", "o2", "o3", "o4", "o5"):
            shop.place(entity)
        shop.is_mended = True
        shop.gate.clear()

        done = redeliver(tmp_path, door)

        posted = int(done.out.split()[0])
        assert 2 <= posted <= 3  # one may be in the handler's hands
        assert (done.code, done.out) == (1, f"{posted} events posted, 0 rejected, {5 - posted} left: no room\n")
        assert len(shop.letters()) == 5 - posted
        shop.gate.set()
        assert shop.dispatcher.await_drained(WAIT_S)
        assert shop.handled == [f"o{number + 1}" for number in range(posted)]


def test_one_whose_class_was_not_declared_is_named_and_stays(tmp_path: Path, door: Path) -> None:
    with running_shop(tmp_path) as shop:
        assert shop.dispatcher.post(OtherEvent(Other.PLACED))
        assert shop.dispatcher.await_drained(WAIT_S)

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
def test_a_mistake_is_one_line(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    leave_letters(tmp_path, OrderEvent(Order.PLACED, "o1"))

    done = run_here("journal", "redeliver", tmp_path, *args)

    assert (done.code, done.err.count("\n")) == (2, 1)
    assert said in done.err


def test_a_daemon_whose_controls_are_off_refuses(tmp_path: Path) -> None:
    with opened(control=False) as socket, running_shop(tmp_path) as shop:
        shop.place("o1")

        done = redeliver(tmp_path, socket)

        assert (done.code, shop.letters()) == (2, ["o1"])
    assert "controls are switched off; set ops.control: true" in done.err
