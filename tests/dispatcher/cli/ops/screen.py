"""`dispatcher top` in this process: its frames without a screen, and its screen."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("textual", reason="textual is not installed: pip install 'central-dispatcher[cli]'")

from dispatcher.cli.ops.options import address_again, address_of
from dispatcher.cli.ops.top.app import FrameWidget, Help, TopApp
from dispatcher.cli.ops.top.frame import frame_of
from dispatcher.cli.ops.top.state import Look, Sort, TopState, Wish
from dispatcher.cli.ops.top.watching import DaemonWatcher

from .fake_daemon import Answers, FakeDaemon

__all__ = ["Top", "TopApp", "app_of", "look_at", "shown", "shows_help"]


def wish_of(sort: str = "queued", **more: Any) -> Wish:
    return Wish(sort=Sort(sort), **more)


def look_at(daemon: str, **wish: Any) -> Look:
    """One look of a watcher at a daemon, given by its name or URL."""
    with closing(DaemonWatcher(lambda _: address_of(daemon, None, None))) as watcher:
        return watcher.look(wish_of(**wish))


class Top:
    """What `top` knows after one look."""

    def __init__(self, answers: Answers, filter: str = "", at_s: float = 1.0, **wish: Any) -> None:
        self.state = TopState()
        self.look(answers, at_s, **wish)
        self.state.filter = filter

    def look(self, answers: Answers, at_s: float = 3.0, **wish: Any) -> Top:
        """Look at a daemon with these answers."""
        with FakeDaemon(answers=answers) as daemon:
            self.state.seen(replace(look_at(daemon.url, **wish), at_s=at_s))
        self.state.wish = wish_of(**wish)
        return self

    @property
    def dispatcher(self) -> str | None:
        """The name of the selected dispatcher."""
        assert self.state.look is not None
        return self.state.look.dispatcher

    def frame(self, width: int = 80, height: int = 24, now_s: float = 0.0) -> list[Any]:
        """The lines, each as wide as the screen."""
        lines = frame_of(self.state, width, height, now_s)
        assert len(lines) == height
        assert {line.cell_len for line in lines} == {width}
        return lines

    def history(self, dispatcher: str = "central") -> Any:
        return self.state.histories[dispatcher]


def app_of(daemon: str | None = None) -> TopApp:
    """The screen of a daemon, given by its name or process id. Default: the only daemon that runs."""
    return TopApp(DaemonWatcher(lambda last: address_again(last, daemon, None, None)))


def shown(app: TopApp) -> str:
    """The text of the screen."""
    return app.screen_stack[0].query_one(FrameWidget).render().plain


def shows_help(app: TopApp) -> bool:
    return isinstance(app.screen, Help)
