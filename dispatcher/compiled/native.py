"""What a class tells mypyc, which compiles some modules in an optional build. It has no effect in pure Python.

mypyc reads the decorator in the source, so an installation needs no mypy_extensions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_):
        return lambda cls: cls
