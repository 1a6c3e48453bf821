"""The errors of the services. All but ApplicationRejectedError and ChangeNotStoredError are the caller's fault.

DispatcherError
  NotFoundError                            the id is unknown or no longer kept
    ApplicationNotFoundError
    ApplicationAttemptNotFoundError
    ContainerNotFoundError                 only live containers are kept
    NodeNotFoundError                      only active nodes can be changed
    QueueNotFoundError
  InvalidRequestError                      the request is never valid, or not in the current state
    InvalidResourceRequestError            a container would be larger than the maximum allocation
  AccessDeniedError                        the caller may not do this
  ApplicationRejectedError                 the application ended before it was stored
    ApplicationNotStoredError              the state store could not take it, so nothing was submitted: submit it again
  UnknownAttemptError                      the attempt is unknown or has ended: its master should exit
  ApplicationMasterNotRegisteredError      the master or the resource manager was restarted: the master should register
  InvalidApplicationMasterRequestError     the master called out of turn
    InvalidContainerReleaseError           the master released a container of another attempt
  ChangeNotStoredError                 the state store could not keep it: make the change again
  NodeRefusedError                         the host may have no nodes: the node should shut down
"""

from __future__ import annotations

from dispatcher.errors import DispatcherError
from statemachines.resourcemanager.records.resource import MaximumAllocation, Resource


class NotFoundError(DispatcherError):
    """Raised when the id is unknown or no longer kept."""

    what = "entity"

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"{self.what} {id} does not exist or is no longer kept")


class ApplicationNotFoundError(NotFoundError):
    """Raised when there's no such application."""

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
    """Raised when the request is never valid, or not in the current state."""


class InvalidResourceRequestError(InvalidRequestError):
    """Raised when a container would exceed the maximum allocation of the cluster or the queue. Nothing was done."""

    def __init__(self, queue: str, resource: Resource, maximum: MaximumAllocation) -> None:
        self.queue = queue
        self.resource = resource
        self.maximum = maximum
        super().__init__(
            f"a container of {resource} is larger than the maximum allocation in queue {queue}, {maximum}: ask for "
            "less, raise maximum_allocation_mb or maximum_allocation_vcores, or add a larger node"
        )


class AccessDeniedError(DispatcherError):
    """Raised when you may not do this. Nothing was done. `user` is the caller."""

    def __init__(self, user: str, message: str) -> None:
        self.user = user
        super().__init__(message)


class ApplicationRejectedError(DispatcherError):
    """Raised when an application ended before it was stored."""

    def __init__(self, application_id: str, diagnostics: str) -> None:
        self.application_id = application_id
        self.diagnostics = diagnostics
        super().__init__(f"{application_id} was rejected: {diagnostics or 'no reason was given'}")


class ApplicationNotStoredError(ApplicationRejectedError):
    """Raised when the state store can't take an application, for example because its disk is full.

    The application doesn't exist. You can submit it again later, under the same id.
    """


class UnknownAttemptError(DispatcherError):
    """Raised when a master calls for an unknown or ended attempt. The master should exit."""


class ApplicationMasterNotRegisteredError(DispatcherError):
    """Raised when a master must register: it hasn't yet, or the resource manager was restarted."""


class InvalidApplicationMasterRequestError(DispatcherError):
    """Raised when a master calls out of turn."""


class InvalidContainerReleaseError(InvalidApplicationMasterRequestError):
    """A master released a container of another attempt. Nothing of the call was done."""


class ChangeNotStoredError(DispatcherError):
    """Raised when the state store can't keep an administrator's change, for example because its disk is full.

    The change holds until the resource manager stops. `entity` is the node, `hosts` or `queues`.
    """

    def __init__(self, entity: str, error: Exception) -> None:
        self.entity = entity
        super().__init__(
            f"the change of {entity} holds only until the resource manager stops, since it could not be stored: "
            f"{error}. Mend the state store, and make the change again"
        )


class NodeRefusedError(DispatcherError):
    """A node tried to register whose host is excluded or not included: it should shut down."""

    def __init__(self, host: str) -> None:
        self.host = host
        super().__init__(f"{host} may have no node: it is excluded or not included. Recommission it first.")
