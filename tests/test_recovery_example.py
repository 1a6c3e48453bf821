"""examples/orders.py, as docs/recovery.md tells it: killed while it works, it comes back with its orders."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dispatcher.journal import TRANSITIONS, read_rows

from .dispatcher.waiting import until
from .documents import ROOT, examples_of

pytestmark = pytest.mark.long

EXAMPLE = ROOT / "examples" / "orders.py"
TIMEOUT_S = 120


class Shop:
    """The running example."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(EXAMPLE), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.writelines(f"{line}\n" for line in lines)
        self.process.stdin.flush()

    def says(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip("\n") for _ in range(count)]

    def kill(self) -> None:
        with self.process:
            self.process.kill()

    def end(self) -> list[str]:
        """Close its input, as Ctrl-D does, and return what it still says."""
        out, _ = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == 0
        return out.splitlines()


@pytest.fixture
def open_shop(tmp_path: Path) -> Iterator[Callable[[], Shop]]:
    """Starts the example, again and again; at the end, kills those that still run."""
    shops: list[Shop] = []
    yield lambda: shops.append(Shop(tmp_path)) or shops[-1]
    for shop in shops:
        shop.kill()


def test_the_example_comes_back_with_its_orders(open_shop: Callable[[], Shop], tmp_path: Path) -> None:
    shop = open_shop()
    shop.send("PLACED order-1", "PLACED order-2")
    shop.says(4)
    until(lambda: len(list(read_rows(tmp_path / "journal", TRANSITIONS))) == 2)
    shop.send("PAID order-1")
    assert sorted(shop.says(2)) == ["accepted PAID of order-1", "charging order-1"]
    shop.kill()

    shop = open_shop()

    assert shop.says(2) == ["order-1 was PLACED", "order-2 was PLACED"]
    assert shop.says(2) == ["charging order-1, perhaps once more", "order-1 is PAID"]
    shop.send("DELIVERED order-1")
    assert sorted(shop.end()) == ["accepted DELIVERED of order-1", "order-1 is DELIVERED"]
    assert open_shop().end() == ["order-2 was PLACED"]


def test_the_page_shows_the_example() -> None:
    program = EXAMPLE.read_text(encoding="utf-8").split('"""\n', 1)[1].lstrip("\n")

    assert program in examples_of(ROOT / "docs" / "recovery.md", "python notest")
