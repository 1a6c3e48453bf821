"""Why a command gets no answer from a daemon.

DispatcherError
  DoorError
    NoDaemonError        no such daemon, or its door cannot be opened
    RefusedError         the daemon denies access, or its certificate is not trusted
    NoAnswerError        its answer is late, incomplete or invalid
      ErrorAnswerError   it answers with an HTTP error
        NotThereError    it answers 404
"""

from __future__ import annotations

from dispatcher.errors import DispatcherError


class DoorError(DispatcherError):
    """Base of the errors of `dispatcher ps|status|top|stack`."""


class NoDaemonError(DoorError):
    """No such daemon, or its door cannot be opened."""


class RefusedError(DoorError):
    """The daemon denies access, or its certificate is not trusted."""


class NoAnswerError(DoorError):
    """The daemon's answer is late, incomplete or invalid."""


class ErrorAnswerError(NoAnswerError):
    """The daemon answers with an HTTP error, such as 429 while it is busy."""


class NotThereError(ErrorAnswerError):
    """The daemon answers 404: it has nothing by that name."""
