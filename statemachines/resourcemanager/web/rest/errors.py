"""What a client is told of an error. The loop's thread."""

from __future__ import annotations

import logging
import secrets
from typing import Final

from starlette.requests import Request

from dispatcher.errors import RejectedExecutionError
from dispatcher.ops.json_answers import Refusal
from dispatcher.util.foreign import tell
from dispatcher.util.terminal import one_line
from statemachines.resourcemanager.records.errors import (
    AccessDeniedError,
    ApplicationRejectedError,
    InvalidRequestError,
    NotFoundError,
)
from statemachines.resourcemanager.web.rest.rest_answers import RestError
from statemachines.resourcemanager.web.users import UserError

log = logging.getLogger(__name__)

SOON: Final = {"Retry-After": "1"}
"""The header of an error that may be over in a second."""


def rest_error(request: Request, error: Exception) -> RestError:
    """The error as an answer. Of a fault of ours, the client gets a number to find it by in the log, and no more."""
    if isinstance(error, RestError):
        return error
    message = str(error)
    if isinstance(error, UserError):
        return RestError(error.status, message)
    if isinstance(error, AccessDeniedError):
        return RestError(403, message)
    if isinstance(error, NotFoundError):
        return RestError(404, message)
    if isinstance(error, InvalidRequestError | ApplicationRejectedError):
        return RestError(400, message)
    if isinstance(error, RejectedExecutionError | TimeoutError):
        return RestError(503, message, SOON)
    if isinstance(error, Refusal):
        return RestError(error.status, error.reason, SOON)
    number = secrets.token_hex(6)
    path = one_line(request.scope["path"], 200)
    tell(log, logging.ERROR, "fault %s: %s %s", number, request.method, path, error=error)
    return RestError(500, f"internal error; the resource manager's log has it as fault {number}")
