"""What a class tells mypyc, which compiles some modules in an optional build. It has no effect in pure Python.

mypyc reads the decorator in the source, so an installation needs no mypy_extensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING


def let_others_run() -> None:
    """Let other threads and signal handlers run, if they wait.

    Python lets them when an interpreted function begins, and this one is never compiled. A compiled loop that calls
    functions in C only would keep the GIL for as long as it runs.
    """


if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_):
        return lambda cls: cls
