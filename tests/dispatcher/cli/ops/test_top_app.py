"""The screen of `dispatcher top`: keys, prompts, reconnecting, and pictures of five states."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual", reason="textual is not installed: pip install 'central-dispatcher[cli]'")

from textual.pilot import Pilot
from textual.widgets import Static

from dispatcher.cli.ops.options import address_again
from dispatcher.cli.ops.top import watching
from dispatcher.cli.ops.top.app import FrameWidget, Help, TopApp
from dispatcher.cli.ops.top.frame import LEAST_HEIGHT, LEAST_WIDTH
from dispatcher.cli.ops.top.state import Sort
from dispatcher.cli.ops.top.watching import DaemonWatcher

from . import fake_daemon as fake
from .conftest import Start

pytestmark = pytest.mark.long

TIMEOUT_S = 60.0
Scenario = Callable[["Screen"], Awaitable[None]]


class Screen:
    """The app as a test sees it."""

    def __init__(self, app: TopApp, pilot: Pilot[Any]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def lines(self) -> list[str]:
        return self.app.screen_stack[0].query_one(FrameWidget).render().plain.splitlines()

    def line(self, text: str) -> str:
        return next((line for line in self.lines if text in line), "")

    async def until(self, holds: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline_s, "\n".join(self.lines)
            await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "INTERVAL_S", 0.05)


def show(scenario: Scenario, size: tuple[int, int] = (80, 24), daemon: str | None = None) -> TopApp:
    """Run a scenario on the screen of a daemon, by default of the only one that there is."""
    app = TopApp(DaemonWatcher(lambda last: address_again(last, daemon, None, None)))

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            screen = Screen(app, pilot)
            await screen.until(lambda: app.state.look is not None)
            await scenario(screen)

    asyncio.run(run())
    return app


# -- keys --------------------------------------------------------------------------------------------------------------


def test_keys_sort_the_types_here_and_at_the_daemon(start: Start) -> None:
    daemon = start()

    async def scenario(screen: Screen) -> None:
        for key, sort in (("r", Sort.RATE), ("t", Sort.TIME), ("f", Sort.FAILED), ("q", Sort.QUEUED)):
            await screen.press(key)

            assert screen.app.state.wish.sort is sort
            first = "AppEventType.KILL" if key == "f" else "NodeEventType.UPDATE"
            assert screen.lines[screen.lines.index(screen.line(" TYPES")) + 1].startswith(f" {first}")
            daemon.asked.clear()
            asked = f"sort={sort.value}&"
            await screen.until(lambda asked=asked: any(asked in path for path in list(daemon.asked)))

    show(scenario)


def test_a_filter_works_as_it_is_typed_stays_with_enter_and_goes_with_escape(start: Start) -> None:
    start()

    async def scenario(screen: Screen) -> None:
        await screen.press("slash", *"KILL")
        assert "TYPES 'KILL': 1/5" in screen.line(" TYPES")
        await screen.press("enter", "t")  # keys are keys again
        assert screen.app.state.wish.sort is Sort.TIME
        assert "TYPES 'KILL': 1/5" in screen.line(" TYPES")
        await screen.press("escape")
        assert "TYPES: 5" in screen.line(" TYPES")
        await screen.press("slash", "q", "escape")
        assert screen.app.state.filter == ""
        assert screen.app.state.wish.sort is Sort.TIME

    show(scenario)


def test_an_entity_is_asked_for_shown_and_closed(start: Start) -> None:
    daemon = start()
    daemon.answers["/entities/app_17"] = fake.ENTITY

    async def scenario(screen: Screen) -> None:
        await screen.press("e", *"app_17", "enter")
        await screen.until(lambda: screen.line("ENTITY app_17 (rmapp): RUNNING"))
        assert screen.line("#612  NEW -> SUBMITTED on START")
        await screen.press("escape")
        assert not screen.line("ENTITY")
        assert screen.line("LAST FAILURES")

    show(scenario)


def test_an_entity_that_nobody_knows_is_no_lost_connection(start: Start) -> None:
    start()

    async def scenario(screen: Screen) -> None:
        await screen.press("e", *"app_99", "enter")
        await screen.until(lambda: screen.line("/entities/app_99: nothing has this path"))
        assert screen.app.state.lost is None

    show(scenario)


def test_a_pause_keeps_the_frame_until_it_ends(start: Start) -> None:
    daemon = start()

    async def scenario(screen: Screen) -> None:
        await screen.press("p")
        daemon.answers = fake.hanging()
        asked = len(daemon.asked)
        await screen.until(lambda: screen.line("PAUSED, was ready"))
        await screen.press("r", "down", "up")
        assert screen.app.state.wish.sort is Sort.RATE
        assert screen.line("PAUSED, was ready")
        assert len(daemon.asked) <= asked + 5  # one look may have been in flight
        await screen.press("p")
        await screen.until(lambda: screen.line("stuck (scheduler, 61.2 s)"))

    show(scenario)


def test_the_help_opens_and_any_key_closes_it(start: Start) -> None:
    start()

    async def scenario(screen: Screen) -> None:
        for closing in ("x", "escape", "q"):
            await screen.press("question_mark")
            assert isinstance(screen.app.screen, Help)
            await screen.press(closing)
            assert not isinstance(screen.app.screen, Help)
        assert screen.app.state.wish.sort is Sort.QUEUED

    show(scenario)


def test_the_help_fits_the_least_terminal(start: Start) -> None:
    """Its first and last lines were outside."""
    start()

    async def scenario(screen: Screen) -> None:
        await screen.press("question_mark")
        help = screen.app.screen.query_one(Static).region
        assert screen.app.screen.region.contains_region(help), help

    show(scenario, (LEAST_WIDTH, LEAST_HEIGHT))


def test_arrows_choose_the_dispatcher(start: Start) -> None:
    daemon = start()
    daemon.answers["/dispatchers/scheduler/types"] = fake.page(fake.type_numbers("Only", "HERE"))

    async def scenario(screen: Screen) -> None:
        assert screen.line("> central")
        await screen.press("down")
        assert screen.line("> scheduler")
        await screen.until(lambda: screen.line("Only.HERE"))
        await screen.press("k")
        await screen.until(lambda: screen.line("> central") and screen.line("NodeEventType.UPDATE"))

    show(scenario)


def test_the_screen_follows_the_dispatcher_that_needs_attention_until_one_is_chosen(start: Start) -> None:
    daemon = start()

    async def scenario(screen: Screen) -> None:
        assert screen.line("> central")
        daemon.answers = fake.hanging()
        await screen.until(lambda: screen.line("> scheduler"))
        await screen.press("up")
        await screen.until(lambda: screen.line("> central") and screen.line("RUNNING on central: nothing"))

    show(scenario)


def test_control_c_ends_with_130_and_control_q_with_0(start: Start) -> None:
    start()

    async def interrupt(screen: Screen) -> None:
        await screen.press("slash", "ctrl+c")

    async def leave(screen: Screen) -> None:
        await screen.press("ctrl+q")

    assert show(interrupt).return_code == 130
    assert show(leave).return_code == 0


@pytest.mark.parametrize("size", [(80, 24), (1, 1)])
def test_any_size_of_the_terminal_has_a_frame(size: tuple[int, int], start: Start) -> None:
    """From its start on, and after each change."""
    start(answers=fake.hanging())

    async def scenario(screen: Screen) -> None:
        for width, height in ((60, 16), (80, 24), (200, 60), (20, 5), (80, 24), (1, 1), (80, 24)):
            await screen.pilot.resize_terminal(width, height)
            await screen.pilot.pause()

    show(scenario, size)


# -- reconnecting ------------------------------------------------------------------------------------------------------


def test_a_restarted_daemon_of_the_same_name_is_found_again(start: Start) -> None:
    daemon = start("rm", 4711)

    async def scenario(screen: Screen) -> None:
        daemon.end()
        await screen.until(lambda: screen.line(" s: rm (4711): no process is listening there"))
        assert screen.line("central")  # as it was
        start("rm", 4712, fake.answers_of(fake.numbers("fresh"), pid=4712, uptime_s=1.0))
        start("other", 4713)
        await screen.until(lambda: screen.line("fresh"))
        assert screen.line("pid 4712")
        assert screen.app.state.restarts == 1
        assert list(screen.app.state.histories) == ["fresh"]

    show(scenario)


def test_a_daemon_that_was_late_once_is_found_again_beside_another_of_its_name(start: Start) -> None:
    """It was looked for by its name alone, which two daemons had: `top` reconnected without end."""
    daemon = start("rm", 4711)
    start("rm", 4712, fake.answers_of(fake.numbers(), pid=4712))

    async def scenario(screen: Screen) -> None:
        sound, daemon.answers = daemon.answers, {"": fake.raw(b"nonsense\n")}
        await screen.until(lambda: screen.line("reconnecting"))
        daemon.answers = sound
        await screen.until(lambda: not screen.line("reconnecting"))
        assert screen.line("pid 4711")

    show(scenario, daemon="4711")


def test_nonsense_in_between_is_told_and_then_forgotten(start: Start) -> None:
    daemon = start()

    async def scenario(screen: Screen) -> None:
        sound, daemon.answers = daemon.answers, {"": fake.raw(b"nonsense\n")}
        await screen.until(lambda: screen.line("reconnecting") and "not an answer of" in screen.lines[0])
        daemon.answers = sound
        await screen.until(lambda: not screen.line("reconnecting"))

    show(scenario)


def test_a_dispatcher_that_goes_is_replaced_by_one_that_is_there(start: Start) -> None:
    daemon = start()

    async def scenario(screen: Screen) -> None:
        await screen.press("down")
        daemon.answers = fake.answers_of(fake.numbers("left"))
        await screen.until(lambda: screen.line("NodeEventType.UPDATE") and screen.line("left"))

    show(scenario)


def test_a_daemon_without_dispatchers_has_a_frame(start: Start) -> None:
    start(answers=fake.answers_of())

    async def scenario(screen: Screen) -> None:
        assert screen.line("no dispatcher")
        await screen.press("down", "up", "q", "e", "x", "enter")

    show(scenario)


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "answers", "text"),
    [
        ("idle", fake.calm, "ready"),
        ("flood", fake.flooded, "96,412"),
        ("hanging", fake.hanging, "self._lock.acquire()"),
        ("failures", fake.failing, "No space left on device"),
        ("reconnecting", fake.hanging, "reconnecting"),
    ],
)
def test_a_picture_of_each_state_is_among_the_artifacts(
    state: str, answers: Callable[[], fake.Answers], text: str, start: Start, tmp_path: Path
) -> None:
    daemon = start(answers=answers())
    picture = tmp_path / f"top-{state}.svg"

    async def scenario(screen: Screen) -> None:
        if state == "reconnecting":
            daemon.end()
            await screen.until(lambda: screen.line("reconnecting"))
        await screen.press("r", "t", "q")
        picture.write_text(screen.app.export_screenshot(title=f"dispatcher top: {state}"), encoding="utf-8")
        assert screen.line(text)

    show(scenario)
    drawn = picture.read_text(encoding="utf-8").replace("&#160;", " ")
    assert drawn.startswith("<svg")
    assert text in drawn
