"""A web server inside a daemon, on a thread of its own. Serving needs the extra `web`; importing this does not."""

from typing import TYPE_CHECKING

from dispatcher.util.lazy import lazy_names
from dispatcher.web.config import TLSConfig, WebConfig
from dispatcher.web.doors import find_doors
from dispatcher.web.host import WebHost
from dispatcher.web.security import Principal, describe_write, require

if TYPE_CHECKING:
    from dispatcher.web.events import event_bytes, event_stream
    from dispatcher.web.pages import environment
    from dispatcher.web.waiting import in_pieces, within

__all__ = [
    "Principal",
    "TLSConfig",
    "WebConfig",
    "WebHost",
    "describe_write",
    "environment",
    "event_bytes",
    "event_stream",
    "find_doors",
    "in_pieces",
    "require",
    "within",
]

__getattr__ = lazy_names(__name__)
