"""Without what these tests need besides the core, there is nothing to collect here."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("httpx", "jinja2", "starlette", "uvicorn"))) else ["*.py"]
