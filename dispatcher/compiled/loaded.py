"""Which build of the packages is loaded: extension modules that mypyc has made of the sources, or the sources."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path

_DISTRIBUTION = "central-dispatcher"
_PACKAGES = ("dispatcher", "statemachines", "pipeline")
_SUFFIX = EXTENSION_SUFFIXES[0]
"""How the names of extension modules for this release of Python end."""


def describe_build() -> str:
    """`compiled`, `pure Python`, or which part is compiled and why not the rest."""
    installed, loaded = _installed(), _loaded()
    if not loaded and not installed:
        return "pure Python"
    if loaded == installed:
        return "compiled"
    if not loaded:
        return f"pure Python, although {len(installed)} compiled modules are installed: other sources come before them"
    stray = sorted(loaded - installed)
    if stray:
        return (
            f"compiled in part: {len(loaded)} modules, and no installation has put {', '.join(stray[:3])} there; "
            "delete them if the sources beside them have changed"
        )
    missing = sorted(installed - loaded)
    return f"compiled in part: {len(loaded)} of {len(installed)} modules, without {', '.join(missing[:3])}"


def _installed() -> set[str]:
    """The compiled modules that the installation has brought, whether they are loaded or not."""
    try:
        paths = [path.as_posix() for path in files(_DISTRIBUTION) or ()]
    except PackageNotFoundError:
        return set()
    return {_module(path) for path in paths if path.endswith(_SUFFIX) and path.partition("/")[0] in _PACKAGES}


def _loaded() -> set[str]:
    """The compiled modules in the folders from which the packages are imported: a source beside one is not used."""
    found = set()
    for package in _PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            root = Path(folder)
            found |= {_module(path.relative_to(root.parent).as_posix()) for path in root.rglob(f"*{_SUFFIX}")}
    return found


def _module(path: str) -> str:
    return path.removesuffix(_SUFFIX).replace("/", ".")
