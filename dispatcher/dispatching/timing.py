"""What a dispatcher does at a time: the posts of its schedule, the next attempts of failed events."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.dispatching.retries import Retries
from dispatcher.dispatching.times import BatchProgress
from dispatcher.mailbox.task_mailbox import TaskMailbox
from dispatcher.mailbox.time_service import ProcessingTimeService
from dispatcher.queue.alarm import Alarm
from dispatcher.queue.inbox import Inbox
from dispatcher.queue.overdue import Overdue
from dispatcher.queue.schedule import Schedule


class Timing:
    """The schedule and the retries of one dispatcher, and the alarm that fires both. None of the fields changes."""

    def __init__(
        self,
        inbox: Inbox,
        mailbox: TaskMailbox,
        progress: BatchProgress,
        time_service: Callable[[], ProcessingTimeService],
    ) -> None:
        alarm = Alarm(inbox, time_service)
        self.alarm: Alarm = alarm
        overdue = Overdue(inbox, alarm, mailbox.is_mailbox_thread)
        self.overdue: Overdue = overdue
        self.schedule: Schedule = Schedule(inbox, alarm, overdue)
        self.retries: Retries = Retries(inbox, mailbox, progress, self.schedule, alarm, overdue)
        alarm.sources = [overdue, self.schedule, self.retries]
        mailbox.parking.alarm = alarm

    def start(self) -> None:
        """From now on, what is due is posted. The thread that starts the dispatcher."""
        self.schedule.start()
        self.alarm.start()

    def end(self) -> None:
        """Post no more, and report what is left. Repeating it is harmless."""
        self.alarm.end()
        self.schedule.end()

    def after_fork(self) -> None:
        """In a child process: it is posted in the parent."""
        self.alarm.after_fork()
        self.schedule.after_fork()
