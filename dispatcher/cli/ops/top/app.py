"""The screen of `top`: keys, prompts and the frame, with Textual."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

from dispatcher.cli.ops.errors import DoorError
from dispatcher.cli.ops.top.frame import frame_of
from dispatcher.cli.ops.top.state import Look, Sort, TopState
from dispatcher.cli.ops.top.watching import DaemonWatcher, Poller

HELP: Final = """\
q      sort event types by events queued
r      by rate: handled per second, over 10 s
t      by share of the handler thread's time, over 10 s
f      by failures since the start
       (equal ones by time, then by rate)
/      filter event types; Enter keeps, Esc clears it
e      show an entity's history; Esc closes it
↑ ↓    select another dispatcher (also k and j)
p      pause; p again resumes
Ctrl+Q quit; Ctrl+C too, with exit code 130

MEAN: mean time in the handler
WAIT: mean time in the queue
Press any key to close."""
"""With its border it fits the least terminal that a frame needs."""


class TopApp(App[int]):
    """Shows a watcher's looks. The exit code is 0, or 130 after Ctrl+C."""

    TITLE = "dispatcher top"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    CSS = """
    Screen { layout: vertical; overflow: hidden; background: #101317; }
    FrameWidget { height: 1fr; width: 1fr; }
    #prompt { dock: bottom; height: 1; border: none; padding: 0 1; background: #26303f; display: none; }
    #prompt.asking { display: block; }
    Help { align: center middle; background: #101317 60%; }
    Help Static { width: auto; height: auto; padding: 0 1; border: round #8fb8ff; background: #101317; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "sort('queued')", "by queued"),
        Binding("r", "sort('rate')", "by rate"),
        Binding("t", "sort('time')", "by time"),
        Binding("f", "sort('failed')", "by failures"),
        Binding("slash", "filter", "filter"),
        Binding("e", "entity", "entity"),
        Binding("p", "pause", "pause"),
        Binding("question_mark", "help", "help"),
        Binding("down,j", "select(1)", "next"),
        Binding("up,k", "select(-1)", "previous"),
        Binding("escape", "close", "close", priority=True),
        Binding("ctrl+c", "interrupt", "quit", priority=True),
    ]

    class Looked(Message):
        """The poller has a new look, or the reason why there is none."""

        def __init__(self, found: Look | Exception) -> None:
            self.found = found
            super().__init__()

    def __init__(self, watcher: DaemonWatcher, first: Look | None = None) -> None:
        super().__init__()
        self.state: TopState = TopState()
        if first is not None:
            self.state.seen(first)
        # Called by the poller's thread; everything else here runs on the app's event loop.
        self._poller = Poller(watcher, lambda found: self.post_message(self.Looked(found)))
        self._asks_entity = False  # whether the prompt is for an entity or for the filter

    def compose(self) -> ComposeResult:
        yield FrameWidget()
        yield Input(id="prompt", select_on_focus=False, disabled=True)

    def on_mount(self) -> None:
        self._poller.start(self.state.wish)
        self.set_interval(1.0, self._count_seconds)

    def on_unmount(self) -> None:
        self._poller.stop()

    def on_top_app_looked(self, message: Looked) -> None:
        found = message.found
        if self.state.is_paused:
            return
        if isinstance(found, Look):
            self.state.seen(self._as_wished(found))
        elif isinstance(found, DoorError | OSError):
            self.state.missed(str(found), time.monotonic())
        else:
            raise found
        self._show()

    def _as_wished(self, look: Look) -> Look:
        """The look, without the details of another dispatcher than the one selected since it began."""
        wanted = self.state.wish.dispatcher
        if wanted is None or wanted == look.dispatcher:
            return look
        return look.of_another(wanted) if any(each.name == wanted for each in look.summary.dispatchers) else look

    # -- keys ----------------------------------------------------------------------------------------------------------

    def action_sort(self, sort: str) -> None:
        self._wish_for(sort=Sort(sort))

    def action_select(self, step: int) -> None:
        self.state.select(step)
        self._wish_for()

    def action_pause(self) -> None:
        self.state.is_paused = not self.state.is_paused
        self._wish_for()

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_filter(self) -> None:
        self._prompt("part of an event type's name", self.state.filter, asks_entity=False)

    def action_entity(self) -> None:
        what = "entity id, such as app_17, or app_17 machine=rmapp"
        self._prompt(what, self.state.wish.entity or "", asks_entity=True)

    def action_close(self) -> None:
        """Escape closes what opened last: the help, the prompt, the entity or the filter."""
        if isinstance(self.screen, Help):
            self.pop_screen()
        elif self._prompt_input.has_class("asking"):
            if not self._asks_entity:
                self.state.filter = ""
            self._end_prompt()
        elif self.state.wish.entity is not None:
            self._wish_for(entity=None)
        else:
            self.state.filter = ""
            self._wish_for(wants_all_types=False)

    def action_interrupt(self) -> None:
        self.exit(130, return_code=130)

    def on_input_changed(self, message: Input.Changed) -> None:
        if not self._asks_entity and self._prompt_input.has_class("asking"):
            self.state.filter = message.value
            self._show()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        if self._asks_entity:
            self.state.wish = replace(self.state.wish, entity=message.value.strip() or None)
            if self.state.look is not None:
                self.state.look = replace(self.state.look, entity=None)
        self._end_prompt()

    def _prompt(self, what: str, value: str, *, asks_entity: bool) -> None:
        self._asks_entity = asks_entity
        prompt = self._prompt_input
        prompt.placeholder = what
        prompt.value = value
        prompt.cursor_position = len(value)
        prompt.disabled = False
        prompt.add_class("asking")
        prompt.focus()

    def _end_prompt(self) -> None:
        self._prompt_input.remove_class("asking")
        self._prompt_input.disabled = True  # so that it never takes the keys
        self.set_focus(None)
        self._wish_for(wants_all_types=bool(self.state.filter))

    @property
    def _prompt_input(self) -> Input:
        return self.query_one("#prompt", Input)

    # -- the frame -----------------------------------------------------------------------------------------------------

    def _wish_for(self, **changes: object) -> None:
        self.state.wish = replace(self.state.wish, **changes)  # type: ignore[arg-type]
        self._poller.ask(self.state.wish, is_paused=self.state.is_paused)
        self._show()

    def _count_seconds(self) -> None:
        if self.state.lost is not None:
            self._show()

    def _show(self) -> None:
        for screen in self.screen_stack[:1]:  # none once the app ends
            for frame in screen.query(FrameWidget):
                frame.refresh()


class FrameWidget(Widget):
    """Draws the app's state in the whole terminal."""

    app: TopApp

    def render(self) -> Text:
        lines = frame_of(self.app.state, self.size.width, self.size.height, time.monotonic())
        return Text("\n", no_wrap=True, end="").join(lines)


class Help(ModalScreen[None]):
    """Explains the keys."""

    def compose(self) -> ComposeResult:
        yield Static(HELP, markup=False)

    def on_key(self, event: Key) -> None:
        event.stop()  # it only closes the help
        self.dismiss()
