"""What the services raise. All of it is the caller's to answer, but for a submission that the cluster refuses.

DispatcherError
  NotFoundError                            nothing has this id: it never was, or it is no longer kept
    ApplicationNotFoundError
    ApplicationAttemptNotFoundError
    ContainerNotFoundError                 the resource manager keeps those that have not ended
    NodeNotFoundError                      administrators change those that are in service
    QueueNotFoundError
  InvalidRequestError                      the request can never be served, or not in the state that things are in
  ApplicationRejectedError                 the application came to its end before it was stored
  UnknownAttemptError                      the attempt is none, or has ended: its master should exit
  ApplicationMasterNotRegisteredError      the master, or the resource manager, has begun anew: it should register
  InvalidApplicationMasterRequestError     the master called out of turn
    InvalidContainerReleaseError           it gave back what is not its own
  NodeRefusedError                         the host may have no nodes: the node should shut down
"""

from __future__ import annotations

from dispatcher.errors import DispatcherError


class NotFoundError(DispatcherError):
    """Nothing has this id: it never was, or it is no longer kept."""

    what = "entity"

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"{self.what} {id} is not known: it never was, or it is no longer kept")


class ApplicationNotFoundError(NotFoundError):
    what = "application"


class ApplicationAttemptNotFoundError(NotFoundError):
    what = "attempt"


class ContainerNotFoundError(NotFoundError):
    what = "container"


class NodeNotFoundError(NotFoundError):
    what = "active node"


class QueueNotFoundError(NotFoundError):
    what = "queue"


class InvalidRequestError(DispatcherError):
    """A request can never be served, or not in the state that things are in."""


class ApplicationRejectedError(DispatcherError):
    """An application came to its end before it was stored."""

    def __init__(self, application_id: str, diagnostics: str) -> None:
        self.application_id = application_id
        self.diagnostics = diagnostics
        super().__init__(f"{application_id} was not taken: {diagnostics or 'no reason was given'}")


class UnknownAttemptError(DispatcherError):
    """A master called for an attempt that has ended, or never was: the master should exit."""


class ApplicationMasterNotRegisteredError(DispatcherError):
    """A master called before it registered, or the resource manager was restarted since: it should register."""


class InvalidApplicationMasterRequestError(DispatcherError):
    """A master called out of turn."""


class InvalidContainerReleaseError(InvalidApplicationMasterRequestError):
    """A master gave back a container that is not its own. Nothing of the call was done."""


class NodeRefusedError(DispatcherError):
    """A node wants to register whose host is excluded, or not included: it should shut down."""

    def __init__(self, host: str) -> None:
        self.host = host
        super().__init__(f"{host} may have no node: it is excluded, or not included. Recommission it first.")
