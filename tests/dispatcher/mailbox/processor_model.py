"""The rules of C4 of the reference in one thread, and the instructions of its mail and its default action, as data."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import count

from dispatcher.mailbox import MAX_PRIORITY, MIN_PRIORITY, MailboxClosedError, MailboxState, MailOptions

from .mailbox_model import MailboxModel, effective, original

# -- what is done ----------------------------------------------------------------------------------------------------


class Do(Enum):
    FAIL = "raise an error"
    SUSPEND_LOOP = "suspend the loop"
    RESUME = "resume the newest suspension"
    RESUME_OLDEST = "resume a suspension that may be over"
    REPORT = "report an error to the loop"


@dataclass(frozen=True)
class TryYield:
    priority: int
    ignore_deferrable: bool


@dataclass(frozen=True)
class Send:
    """Execute or submit something; the mail logs its name, then runs its action."""

    priority: int
    options: MailOptions
    submitted: bool
    does: tuple[Deed, ...]


Deed = Do | TryYield | Send


@dataclass(frozen=True)
class Turn:
    """Of the default action; it may end with suspending itself."""

    does: tuple[Deed, ...]
    suspends: bool = False


class Failure(Exception):
    """Of a mail, of the default action, or reported."""


# -- the model ---------------------------------------------------------------------------------------------------------


class Letter:
    def __init__(
        self,
        name: str,
        priority: int,
        options: MailOptions,
        run: Callable[[], None],
        *,
        submitted: bool = False,
    ) -> None:
        self.name = name
        self.original_priority = priority
        self.priority = MIN_PRIORITY if options.is_deferrable else priority
        self.is_urgent = options.is_urgent
        self.submitted = submitted
        self.run = run


class SuspensionModel:
    """With a timer, whose marks are logged."""


class ProcessorModel:
    """C4, word by word. Its log has the mail that ran, the turns, the waits, the timer's marks and what was refused."""

    def __init__(self) -> None:
        self.box: MailboxModel[Letter] = MailboxModel()
        self.rest: list[Letter] = []  # behind mail that failed in a drain
        self.state = MailboxState.OPEN
        self.loop_running = True
        self.suspended = False
        self.suspension: SuspensionModel | None = None
        self.suspensions: list[SuspensionModel] = []
        self.mails_run = 0
        self.turns: deque[Turn] = deque()
        self.arrivals: deque[list[Deed]] = deque()
        self.log: list[str] = []
        self.accepted: list[str] = []
        self.cancelled: list[str] = []
        self.names = map(str, count())

    # what anybody does

    def do(self, what: Deed, *, owner: bool) -> None:
        match what:
            case Send():
                self.send(what, owner=owner)
            case TryYield(priority, ignore_deferrable):
                letter = self.box.take(priority, original if ignore_deferrable else effective)
                if letter is not None:
                    letter.run()
            case Do.FAIL:
                raise Failure("failed")
            case Do.SUSPEND_LOOP:
                self.control(self.suspend, owner=owner)
            case Do.RESUME | Do.RESUME_OLDEST if self.suspensions:
                suspension = self.suspensions[-1 if what is Do.RESUME else 0]
                if owner:
                    self.resume(suspension)
                else:
                    self.control(lambda: self.resume(suspension), owner=owner)
            case Do.REPORT if self.state is MailboxState.OPEN:
                self.control(self.fail, owner=owner)
            case Do.REPORT:
                self.log.append("no report")

    def send(self, what: Send, *, owner: bool) -> None:
        name = next(self.names)
        if self.state is not MailboxState.OPEN:
            self.log.append(f"refused {name}")
            return

        def run() -> None:
            self.log.append(name)
            try:
                for each in what.does:
                    self.do(each, owner=True)
            except Failure:
                if not what.submitted:
                    raise

        self.accepted.append(name)
        self.box.put(Letter(name, what.priority, what.options, run, submitted=what.submitted), owner=owner)

    def control(self, run: Callable[[], None], *, owner: bool) -> None:
        if self.state is MailboxState.OPEN:
            self.box.put(Letter("control", MAX_PRIORITY, MailOptions.URGENT, run), owner=owner)

    def suspend(self) -> None:
        self.suspended = True

    def complete(self) -> None:
        self.loop_running = False
        self.suspended = True

    def resume(self, suspension: SuspensionModel) -> None:
        if self.suspension is suspension:
            self.suspension = None

    def fail(self) -> None:
        raise Failure("reported")

    # the loop

    def begin(self) -> None:
        if self.state is not MailboxState.OPEN:
            raise MailboxClosedError(self.state, "run the mailbox loop")
        self.suspended = not self.loop_running

    def run_loop(self) -> None:
        self.begin()
        while not self.suspended:
            self.process_mail()
            if not self.suspended:
                self.turn()

    def run_step(self) -> bool:
        self.begin()
        if not self.suspended:
            if self.run_batched_mail():
                return True
            if self.suspension is None:
                self.turn()
                return True
        return False

    def run_single_loop(self) -> bool:
        self.begin()
        ran = not self.suspended and self.run_batched_mail()
        if not self.suspended and self.suspension is None:
            self.turn()
            return True
        return ran

    def process_mail(self) -> None:
        self.box.pull(urgent_only=False)
        if self.box.batch:
            suspension = self.timer_end()
            while not self.suspended and (letter := self.box.take_from_batch()) is not None:
                self.run(letter)
            self.timer_start(suspension)
        while self.suspension is not None and not self.suspended:
            letter = self.box.take(MIN_PRIORITY)
            while letter is None:
                self.log.append("waits")
                for each in self.next_arrival():
                    self.do(each, owner=False)
                letter = self.box.take_after_wait(MIN_PRIORITY)
            suspension = self.timer_end()
            self.run(letter)
            self.timer_start(suspension)

    def next_arrival(self) -> list[Deed]:
        return self.arrivals.popleft() if self.arrivals else [Do.SUSPEND_LOOP]

    def run_batched_mail(self) -> bool:
        self.box.pull(urgent_only=False)
        letter = self.box.take_from_batch()
        if letter is None:
            return False
        suspension = self.timer_end()
        self.run(letter)
        self.timer_start(suspension)
        return True

    def run(self, letter: Letter) -> None:
        self.mails_run += 1
        letter.run()

    def timer_end(self) -> SuspensionModel | None:
        if self.suspension is not None:
            self.log.append("timer ends")
        return self.suspension

    def timer_start(self, suspension: SuspensionModel | None) -> None:
        if suspension is not None and self.suspension is suspension:
            self.log.append("timer starts")

    def turn(self) -> None:
        self.log.append("action")
        turn = self.turns.popleft() if self.turns else Turn((Do.SUSPEND_LOOP,))
        for each in turn.does:
            self.do(each, owner=True)
        if turn.suspends:
            self.suspension = SuspensionModel()
            self.suspensions.append(self.suspension)

    # the end

    def prepare_close(self) -> None:
        if self.state is MailboxState.OPEN:
            self.state = MailboxState.QUIESCED

    def drain(self) -> None:
        left = self.take_rest()
        try:
            while left:
                self.run(left.pop(0))
        finally:
            self.rest = left

    def close(self) -> None:
        self.cancelled += [each.name for each in self.take_rest() if each.submitted]
        self.state = MailboxState.CLOSED

    def take_rest(self) -> list[Letter]:
        rest, self.rest = self.rest, []
        return [*rest, *self.box.drain()]
