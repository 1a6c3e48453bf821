"""The screen of `dispatcher top`: keys, prompts and reconnecting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("textual", reason="textual is not installed: pip install 'central-dispatcher[cli]'")

from textual.pilot import Pilot
from textual.widgets import Static

from ....kit import TIMEOUT_S
from . import fake_daemon as fake
from .conftest import Start
from .screen import TopApp, app_of, shown, shows_help

pytestmark = pytest.mark.long

ANSWERS: dict[str, Callable[[], fake.Answers]] = {
    "calm": lambda: fake.calm() | {"/entities/app_17": fake.ENTITY},
    "hanging": fake.hanging,
    "nonsense": lambda: {"": fake.raw(b"nonsense\n")},
    "none": fake.answers_of,
    "another": lambda: fake.answers_of(fake.numbers("left")),
    "restarted": lambda: fake.answers_of(fake.numbers("fresh"), pid=4712, uptime_s=1.0),
    "twin": lambda: fake.answers_of(fake.numbers(), pid=4712),
}


class Screen:
    """The verbs of the scripts: `press r | shows TYPES:_5`, with `_` for spaces in what is shown."""

    def __init__(self, app: TopApp, pilot: Pilot[Any], start: Start, daemon: fake.FakeDaemon) -> None:
        self.app = app
        self._pilot = pilot
        self._start = start
        self._daemon = daemon
        self._asked = 0

    async def play(self, script: str) -> None:
        for step in script.split("|"):
            verb, *words = step.split()
            await getattr(self, verb)(*words)

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self._pilot.pause()

    async def type(self, text: str) -> None:
        await self.press(*text)

    async def shows(self, *texts: str) -> None:
        """Wait until each text is on a line."""
        await self.until(lambda: all(any(text in line for line in self.lines) for text in texts), texts)

    async def lacks(self, text: str) -> None:
        await self.until(lambda: not any(text in line for line in self.lines), text)

    async def first(self, event_type: str) -> None:
        """It is the first of the types now."""
        title = next(at for at, line in enumerate(self.lines) if "_TYPES" in line)
        assert self.lines[title + 1].startswith(f"_{event_type}"), self.lines

    async def asked(self, text: str) -> None:
        """Wait until the daemon is asked so from now on."""
        self._daemon.asked.clear()
        await self.until(lambda: any(text in path for path in list(self._daemon.asked)), text)

    async def count(self) -> None:
        self._asked = len(self._daemon.asked)

    async def few(self) -> None:
        """Since the count, the daemon was asked for no more than one look, which may have been in flight."""
        assert len(self._daemon.asked) <= self._asked + 5

    async def answers(self, name: str) -> None:
        self._daemon.answers = ANSWERS[name]()

    async def ends(self) -> None:
        self._daemon.end()

    async def starts(self, name: str, pid: str, answers: str) -> None:
        self._start(name, int(pid), ANSWERS[answers]())

    async def help(self, is_open: str) -> None:
        assert shows_help(self.app) is (is_open == "open")

    async def fits(self) -> None:
        """The help is on the screen, from its first line to its last."""
        help = self.app.screen.query_one(Static).region
        assert self.app.screen.region.contains_region(help), help

    async def connected(self) -> None:
        assert self.app.state.lost is None

    async def resize(self, width: str, height: str) -> None:
        await self._pilot.resize_terminal(int(width), int(height))
        await self._pilot.pause()

    @property
    def lines(self) -> list[str]:
        """With `_` for each space."""
        return shown(self.app).replace(" ", "_").splitlines()

    async def until(self, holds: Callable[[], object], what: object) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline_s, "\n".join([f"{what} is not shown:", *self.lines])
            await self._pilot.pause()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, but leave the process idle in between: after each key the pilot waits until it is idle."""
    monkeypatch.setattr("dispatcher.cli.ops.top.watching.INTERVAL_S", 0.3)


def show(
    start: Start, script: str, answers: str = "calm", size: tuple[int, int] = (80, 24), daemon: str | None = None
) -> TopApp:
    """Play a script on the screen of a daemon, by default of the only one that there is."""
    app = app_of(daemon)
    fake_daemon = start("rm", 4711, ANSWERS[answers]())

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            screen = Screen(app, pilot, start, fake_daemon)
            await screen.until(lambda: app.state.look is not None, "a look")
            await screen.play(script)

    asyncio.run(run())
    return app


SCRIPTS = {
    "keys sort the types, here and at the daemon": "press r | first NodeEventType.UPDATE | asked sort=rate& | press t "
    "| first NodeEventType.UPDATE | asked sort=time& | press f | first AppEventType.KILL | asked sort=failed& | press "
    "q | first NodeEventType.UPDATE | asked sort=queued&",
    "a filter works as it is typed, stays with Enter and goes with Escape; then keys are keys again": "press slash | "
    "type kill | shows TYPES_'kill':_1/5 | press enter t | asked sort=time& | shows TYPES_'kill':_1/5 | press escape "
    "| shows TYPES:_5 | press slash q escape | shows TYPES:_5 | asked sort=time&",
    "an entity is asked for, shown and closed": "press e | type app_17 | press enter | shows "
    "ENTITY_app_17_(rmapp):_RUNNING #612__NEW_->_SUBMITTED_on_START | press escape | lacks ENTITY | shows "
    "LAST_FAILURES",
    "an entity that nobody knows is no lost connection": "press e | type app_99 | press enter | shows "
    "/entities/app_99:_nothing_has_this_path | connected",
    "a pause keeps the frame until it ends": "press p | count | answers hanging | shows PAUSED,_was_ready | press r "
    "down up | shows PAUSED,_was_ready | few | press p | shows stuck_(scheduler,_61.2_s) | asked sort=rate&",
    "the help opens, and any key closes it and does nothing else": "press question_mark | help open | press x | help "
    "closed | press question_mark | press escape | help closed | press question_mark | press t | help closed | asked "
    "sort=queued&",
    "arrows choose the dispatcher": "shows >_central | press down | shows >_scheduler | press k | shows >_central "
    "NodeEventType.UPDATE",
    "the screen follows the dispatcher that needs attention, until one is chosen": "shows >_central | answers hanging "
    "| shows >_scheduler | press up | shows >_central RUNNING_on_central:_nothing",
    "a restarted daemon of the same name is found again": "ends | shows _s:_rm_(4711):_no_process_is_listening_there "
    "central | starts rm 4712 restarted | starts other 4713 calm | shows fresh pid_4712",
    "nonsense in between is told, and then forgotten": "answers nonsense | shows reconnecting not_an_answer_of | "
    "answers calm | lacks reconnecting",
    "a dispatcher that goes is replaced by one that is there": "press down | answers another | shows "
    "NodeEventType.UPDATE left",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_on_the_screen(script: str, start: Start) -> None:
    show(start, script)


def test_a_daemon_that_was_late_once_is_found_again_beside_another_of_its_name(start: Start) -> None:
    """It was looked for by its name alone, which two daemons had: `top` reconnected without end."""
    start("rm", 4712, ANSWERS["twin"]())

    show(
        start,
        "answers nonsense | shows reconnecting | answers calm | lacks reconnecting | shows pid_4711",
        daemon="4711",
    )


def test_a_daemon_without_dispatchers_has_a_frame(start: Start) -> None:
    show(start, "shows no_dispatcher | press down up q e x enter", "none")


def test_the_help_fits_the_least_terminal(start: Start) -> None:
    """Its first and last lines were outside."""
    show(start, "press question_mark | fits", size=(60, 16))


@pytest.mark.parametrize(("script", "code"), [("press slash ctrl+c", 130), ("press ctrl+q", 0)])
def test_control_c_ends_with_130_and_control_q_with_0(script: str, code: int, start: Start) -> None:
    assert show(start, script).return_code == code


@pytest.mark.parametrize("size", [(80, 24), (1, 1)])
def test_any_size_of_the_terminal_has_a_frame(size: tuple[int, int], start: Start) -> None:
    """From its start on, and after each change."""
    sizes = ("60 16", "80 24", "200 60", "20 5", "80 24", "1 1", "80 24")

    show(start, " | ".join(f"resize {each}" for each in sizes), "hanging", size)
