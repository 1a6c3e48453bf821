"""Why a daemon cannot be looked at.

DispatcherError
  DoorError
    NoDaemonError        no such daemon, or its door cannot be opened
    RefusedError         the daemon wants a token or another certificate
    NoAnswerError        it is there, but its answer is late, incomplete or nonsense
      NotThereError      it knows nothing by that name
"""

from __future__ import annotations

from dispatcher.errors import DispatcherError


class DoorError(DispatcherError):
    """A daemon cannot be looked at."""


class NoDaemonError(DoorError):
    """No such daemon, or its door cannot be opened."""


class RefusedError(DoorError):
    """The daemon, or this side's check of its certificate, refuses."""


class NoAnswerError(DoorError):
    """The daemon is there, but its answer is late, incomplete or nonsense."""


class ErrorAnswerError(NoAnswerError):
    """The daemon answers with an error: it is busy, for example."""


class NotThereError(ErrorAnswerError):
    """The daemon answers, and knows nothing by that name."""
