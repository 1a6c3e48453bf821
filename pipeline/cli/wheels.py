"""Which extras have a package without a wheel for some Python, as of this release.

`scripts/matrix` runs this file by its path, on a Python without any package: it imports the standard library alone.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from typing import Final

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14", "3.15")
"""Those that are tried."""
LACKING: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "cli": {"3.13t": ("zstandard",)},
    "spark": {
        "3.15": ("pandas",),  # 3 has wheels, and PySpark wants 2
        "3.13t": ("duckdb", "zstandard"),
        "3.14t": ("duckdb",),
        "3.15t": ("duckdb", "pandas"),
    },
    "connect": {
        "3.15": ("zstandard",),
        "3.13t": ("grpcio", "zstandard"),
        "3.14t": ("grpcio", "zstandard"),
        "3.15t": ("grpcio", "zstandard"),
    },
    "postgres": dict.fromkeys(("3.13t", "3.14t", "3.15t"), ("psycopg-binary",)),
    "cron": {},
    "web": {},
}
"""By extra and Python, such as 3.14 or 3.14t (free-threaded): packages that have no wheel for it."""


def own_python() -> str:
    """The running Python, as LACKING names it."""
    release = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return f"{release}t" if sysconfig.get_config_var("Py_GIL_DISABLED") else release


def newest_python(extra: str) -> str:
    """The newest Python for which all packages of an extra have wheels."""
    return [each for each in PYTHONS if each not in LACKING[extra]][-1]
