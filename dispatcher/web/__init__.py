"""A web server inside a daemon, on a thread of its own. Serving needs the extra `web`; importing this does not."""

from dispatcher.web.config import TLSConfig, WebConfig
from dispatcher.web.doors import find_doors
from dispatcher.web.host import WebHost
from dispatcher.web.security import Principal, require

__all__ = ["Principal", "TLSConfig", "WebConfig", "WebHost", "find_doors", "require"]
