"""The programs in examples/ that docs/comparison.md compares, and their peers: driven alike, and counted."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import IO

import httpx
import pytest

from dispatcher import JournalWriter

from .documents import ROOT, examples_of, program_lines

pytestmark = pytest.mark.long

EXAMPLES = ROOT / "examples"
TIMEOUT_S = 120.0
NEEDED = {
    "service": "fastapi",
    "peers/service_asyncio": "fastapi",
    "peers/orders_transitions": "transitions",
    "peers/scheduler_pykka": "pykka",
}
ORDERS = ["orders", "peers/orders_transitions"]
SERVICES = ["service", "peers/service_asyncio"]
SCHEDULERS = ["scheduler", "peers/scheduler_asyncio", "peers/scheduler_pykka"]
Start = Callable[..., "Program"]


class Program:
    """A running program."""

    def __init__(self, name: str, folder: Path, *arguments: str, preexec: Callable[[], None] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), str(folder), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=preexec,
        )

    def send(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.writelines(f"{line}\n" for line in lines)
        self.process.stdin.flush()

    def says(self, count: int) -> list[str]:
        """Its next lines."""
        return [self._line(self.process.stdout) for _ in range(count)]

    def finds(self, pattern: str) -> str:
        """What the pattern's group has in the next line of its log that matches."""
        while not (found := re.search(pattern, self._line(self.process.stderr))):
            pass
        return found[1]

    def _line(self, stream: IO[str] | None) -> str:
        assert stream is not None
        line = stream.readline()
        assert line, f"the program has ended: {self.process.communicate(timeout=TIMEOUT_S)}"
        return line.rstrip("\n")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=TIMEOUT_S)

    def terminate(self) -> tuple[int, list[str]]:
        """Its exit code, and what it still says."""
        self.process.send_signal(signal.SIGTERM)
        said, _ = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, said.splitlines()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program in the test's folder, again and again; at the end, kills those that still run."""
    programs: list[Program] = []

    def run(name: str, *arguments: str) -> Program:
        if name in NEEDED:
            pytest.importorskip(NEEDED[name])
        programs.append(Program(name, tmp_path, *arguments))
        return programs[-1]

    yield run
    for program in programs:
        program.kill()


def ask(url: str, method: str = "GET") -> tuple[int, str]:
    answer = httpx.request(method, url, timeout=TIMEOUT_S)
    return answer.status_code, answer.text


@pytest.mark.parametrize("name", ORDERS)
def test_orders_are_where_they_were_before_the_kill(name: str, start: Start) -> None:
    shop = start(name)
    shop.says(1)
    shop.send("PLACED order-1")
    assert sorted(shop.says(2)) == ["accepted PLACED of order-1", "order-1 is PLACED"]
    shop.send("PAID order-1")
    assert sorted(shop.says(2)) == ["accepted PAID of order-1", "charging order-1"]
    shop.kill()

    shop = start(name)

    said = shop.says(3)
    if "order-1 was PLACED" not in said:  # rows are written within some 10 ms, so its last event comes again, too
        said += shop.says(1)
        assert "order-1 is PLACED" in said
    assert "charging order-1, perhaps once more" in said
    page = next(line for line in said if line.startswith("metrics at ")).removeprefix("metrics at ")
    assert ask(page)[0] == 200
    assert shop.says(1) == ["order-1 is PAID"]
    shop.send("DELIVERED order-1")
    assert sorted(shop.says(2)) == ["accepted DELIVERED of order-1", "order-1 is DELIVERED"]
    shop.terminate()
    assert start(name).says(1)[0].startswith("metrics at ")  # an order that has ended is forgotten


@pytest.mark.parametrize("name", ORDERS)
def test_orders_end_on_a_signal_once_the_queue_is_empty(name: str, start: Start) -> None:
    shop = start(name)
    shop.says(1)
    shop.send("PLACED order-1", "PAID order-1")
    said = shop.says(4)

    code, rest = shop.terminate()

    assert code == 128 + signal.SIGTERM
    assert "order-1 is PAID" in said + rest


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_answers_with_what_its_handler_returns_or_raises(name: str, start: Start) -> None:
    service = start(name, "0")
    url = service.finds(r"running on (http://\S+)")

    with ThreadPoolExecutor() as pool:
        paths = [f"{url}/customers/ann/orders/order-{number}?cents=5" for number in range(4)]
        answers = list(pool.map(lambda path: ask(path, "POST"), paths))

    assert answers == [(200, f'"ann has paid 5 cents for order-{number}"') for number in range(4)]
    assert ask(f"{url}/customers/bob/orders/order-9?cents=100001", "POST")[0] == 402
    assert [ask(f"{url}/{page}")[0] for page in ("livez", "readyz")] == [200, 200]
    assert re.search(r"events_accepted_total.* 5\.0", ask(f"{url}/metrics")[1])
    assert service.terminate()[0] in (0, -signal.SIGTERM)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_runs_jobs_again_and_again_and_at_a_time(name: str, start: Start, tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("0.2 often true\n", encoding="utf-8")
    scheduler = start(name)
    assert scheduler.says(2) == ["true: exit code 0"] * 2
    scheduler.send("0.1 once echo hello")

    said: list[str] = []
    while "echo hello: exit code 0" not in said:
        said += scheduler.says(1)

    assert {"accepted 0.1 once echo hello", "hello"} <= set(said)
    assert scheduler.terminate()[0] == 0


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_tries_a_command_three_times_and_keeps_it(name: str, start: Start, tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("", encoding="utf-8")
    scheduler = start(name)
    scheduler.send("0 mail false")

    assert scheduler.says(4) == ["accepted 0 mail false", *["false: exit code 1"] * 3]
    assert scheduler.terminate()[0] == 0
    kept = [*tmp_path.glob("dead-letters/*.journal"), *tmp_path.glob("jobs.db*")]
    assert any(b"exit code 1" in path.read_bytes() for path in kept)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_job_of_a_killed_scheduler_is_run_by_the_next_one(name: str, start: Start, tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("", encoding="utf-8")
    scheduler = start(name)
    scheduler.send("4 mail true")  # the kill comes before it is due, on a busy machine too
    assert scheduler.says(1) == ["accepted 4 mail true"]
    scheduler.kill()

    assert start(name).says(1) == ["true: exit code 0"]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_two_commands_of_a_queue_run_at_the_same_time_and_no_third(name: str, start: Start, tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("", encoding="utf-8")
    scheduler = start(name)
    gate = tmp_path / "gate"
    waits = f"echo begun; until test -e {gate}; do sleep 0.05; done"
    scheduler.send(f"0 mail {waits}", f"0 mail {waits}", f"0 mail {waits}", "0 other echo other")

    said: list[str] = []
    while said.count("begun") < 2 or "echo other: exit code 0" not in said:
        said += scheduler.says(1)
    assert said.count("begun") == 2
    gate.touch()

    while said.count(f"{waits}: exit code 0") < 3:
        said += scheduler.says(1)
    assert said.count("begun") == 3


@pytest.mark.parametrize("name", ["orders", "scheduler", "daemon"])
def test_a_program_whose_folder_another_one_has_says_so_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "jobs").touch()
    with closing(JournalWriter(tmp_path / "journal")):
        code, said, logged = end(Program(name, tmp_path))

    assert (code, said, logged.count("\n")) == (1, "", 1)
    assert "is being written by another process" in logged


@pytest.mark.parametrize(("name", "wrong"), [("orders", "LOST"), ("orders", "LOST order-1"), ("scheduler", "soon q x")])
def test_a_line_that_is_not_understood_is_named_and_the_next_one_is_read(
    name: str, wrong: str, start: Start, tmp_path: Path
) -> None:
    program = start(name)
    if name == "orders":
        program.says(1)
    program.send(wrong, {"orders": "PLACED order-1", "scheduler": "0 q true"}[name])

    [named] = program.says(1)

    assert wrong in named
    while not program.says(1)[0].startswith("accepted "):  # the handler thread may talk first
        pass


def test_a_scheduler_whose_disk_is_full_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("0.01 often true\n", encoding="utf-8")
    scheduler = Program("scheduler", tmp_path, preexec=limit_files)

    code, _, logged = end(scheduler)

    assert code == 1
    assert re.search(r"^scheduler: .*/journal: the journal cannot be written: File too large", logged, re.MULTILINE)
    assert "Traceback" not in logged


def limit_files() -> None:
    """In the child: no file grows beyond a few events."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


def end(program: Program) -> tuple[int, str, str]:
    """Its exit code once it has ended by itself, and what it said and logged."""
    said, logged = program.process.communicate(timeout=TIMEOUT_S)
    return program.process.returncode, said, logged


def test_the_page_about_recovery_shows_the_example() -> None:
    program = (EXAMPLES / "orders.py").read_text(encoding="utf-8").split('"""\n', 1)[1].lstrip("\n")

    assert program in examples_of(ROOT / "docs" / "recovery.md", "python notest")


def test_the_page_counts_the_lines_of_the_programs() -> None:
    rows = re.findall(
        r"^\| \[(\S+)\.py\]\(\S+\) \|.*\| (\d+) \|", (ROOT / "docs/comparison.md").read_text("utf-8"), re.MULTILINE
    )

    counted = {name: program_lines(EXAMPLES / f"{name}.py") for name in (*ORDERS, *SERVICES, *SCHEDULERS)}
    assert {name: int(lines) for name, lines in rows} == counted


@pytest.mark.parametrize(("ours", "peers"), [(ours, peers) for ours, *peers in (ORDERS, SERVICES, SCHEDULERS)])
def test_a_program_is_shorter_than_its_peers(ours: str, peers: list[str]) -> None:
    assert all(program_lines(EXAMPLES / f"{ours}.py") < program_lines(EXAMPLES / f"{peer}.py") for peer in peers)
