"""A daemon that accepts events of a durable class and of one that is not, and is killed before it has handled any."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from ...kit.journals import Job, Posted
from .test_not_durable import running, tick


def main(journal: Path) -> None:
    with running(journal, lambda event: threading.Event().wait()) as dispatcher:
        for number in range(0, 4, 2):
            dispatcher.post(Posted(Job.STARTED, number))
            dispatcher.post(tick(number + 1))
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
