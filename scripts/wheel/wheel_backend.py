"""The build backend: setuptools', which compiles modules with mypyc if the environment has DISPATCHER_COMPILE=1.

The modules are those of [tool.central-dispatcher.compiled] in pyproject.toml. Without the variable the build is pure
Python and needs setuptools only. With SOURCE_DATE_EPOCH, two builds of one tree are equal byte for byte.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "description",
    "extensions",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "is_compiled",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

VARIABLE = "DISPATCHER_COMPILE"
COMPILER = ("mypy>=2.4,<3", "types-PyYAML")
WEAK_REFERENCES = r"\(\*\(\(PyObject \*\*\)\(\(char \*\)self \+ sizeof\(PyObject \*\) \+ sizeof\(\w+\)\)\)\);"
"""In mypyc's C: the place of an object's weak references, which only classes for Python 3.11 have."""


def description() -> dict[str, Any]:
    """README and addresses for the metadata: a package index shows README without the files that it links to."""
    url = str(_pyproject()["tool"]["central-dispatcher"]["url"]).rstrip("/")
    return {
        "long_description": absolute_links(Path("README.md").read_text(encoding="utf-8"), url),
        "long_description_content_type": "text/markdown",
        "project_urls": {
            "Source": url,
            "Documentation": f"{url}/blob/main/docs/index.md",
            "Changelog": f"{url}/blob/main/CHANGELOG.md",
            "Issues": f"{url}/issues",
        },
    }


def absolute_links(text: str, url: str) -> str:
    """The Markdown with links into the repository at `url` instead of relative ones."""
    text = re.sub(r"(!\[[^\]]*\]\()(?!\w+:|#)", rf"\g<1>{url}/raw/main/", text)
    return re.sub(r"(\]\()(?!\w+:|#)", rf"\g<1>{url}/blob/main/", text)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    name = build_meta.build_sdist(sdist_directory, config_settings)
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch is not None:
        _repack(Path(sdist_directory, name), int(epoch))
    return name


def _repack(path: Path, epoch_s: int) -> None:
    """Give the archive's members and its own header one time and no owner, and sort the members."""
    with tarfile.open(path) as archive:
        members = [
            (member, archive.extractfile(member) if member.isreg() else None)
            for member in sorted(archive.getmembers(), key=lambda member: member.name)
        ]
        with (
            path.with_suffix(".new").open("wb") as file,
            gzip.GzipFile("", "wb", mtime=epoch_s, fileobj=file) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as repacked,
        ):
            for member, content in members:
                member.mtime, member.uid, member.gid, member.uname, member.gname = epoch_s, 0, 0, "", ""
                member.pax_headers = {}
                repacked.addfile(member, content)
    path.with_suffix(".new").replace(path)


def is_compiled() -> bool:
    """Whether the environment asks for a compiled wheel."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise SystemExit(f"{VARIABLE}={value}: expected 1, or 0 for pure Python, which is the default")
    return value == "1"


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    if not is_compiled():
        return build_meta.get_requires_for_build_wheel(config_settings)
    check_compiler()  # first: setuptools leaves files in the tree
    # mypy reads the types of what the modules import.
    needed_by_mypy = [*COMPILER, *_pyproject()["project"]["dependencies"]]
    return [*build_meta.get_requires_for_build_wheel(config_settings), *needed_by_mypy]


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    if is_compiled():
        check_compiler()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    _refuse_editable()
    return build_meta.get_requires_for_build_editable(config_settings)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    _refuse_editable()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)


def _refuse_editable() -> None:
    """Extension modules beside the sources would hide every later change of these."""
    if is_compiled():
        raise SystemExit(
            f"{VARIABLE}=1: an editable install is pure Python, because compiled modules would hide changes of the "
            f"sources. Unset {VARIABLE}, or leave out --editable."
        )


def check_compiler() -> None:
    """End the build with one line if it lacks a C compiler or Python's headers."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    lacks = None
    if shutil.which(command) is None:
        lacks = f"the C compiler {command}, which was not found (Debian: apt-get install gcc libc6-dev, or set CC)"
    elif not Path(sysconfig.get_path("include"), "Python.h").exists():
        lacks = "the headers of this Python, which were not found (Debian: apt-get install python3-dev)"
    if lacks is not None:
        raise SystemExit(f"{VARIABLE}=1 needs {lacks}. Without {VARIABLE} the wheel is pure Python and needs neither.")


def extensions(folder: str) -> list[Any]:
    """The extension modules; their C sources are written to `folder`."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        needed = " ".join(f"'{requirement}'" for requirement in COMPILER)
        raise SystemExit(f"{VARIABLE}=1 needs mypy where builds are not isolated: pip install {needed}") from None
    modules = _pyproject()["tool"]["central-dispatcher"]["compiled"]["modules"]
    options = [
        f"--python-version={sys.version_info.major}.{sys.version_info.minor}",
        f"--cache-dir={folder}/cache",
        # What these modules import only for its types may need packages that the build has not.
        "--follow-imports=silent",
        "--ignore-missing-imports",
    ]
    sources = [f"{module.replace('.', '/')}.py" for module in modules]
    compiled: list[Any] = mypycify(
        [*options, *sources], opt_level="2", debug_level="0", target_dir=folder, group_name="central_dispatcher"
    )
    for source in Path(folder).glob("*.c"):
        text = source.read_text(encoding="utf-8")
        source.write_text(with_weak_references(text), encoding="utf-8")
    return compiled


def with_weak_references(source: str) -> str:
    """mypyc's C, in which a freed object first clears the weak references to it.

    mypyc takes the head of their list for an attribute that the object owns: the collector visits it, and the object's
    end frees a reference that others still hold. Python then crashes at the next look at it.
    """
    source = re.sub("Py_VISIT" + WEAK_REFERENCES, "", source)
    # The collector also clears objects that are still referred to; it has cleared their weak references itself.
    clear = "if (Py_REFCNT(self) == 0) PyObject_ClearWeakRefs((PyObject *)self);"
    source, count = re.subn("Py_CLEAR" + WEAK_REFERENCES, clear, source)
    if ".tp_weaklistoffset" in source and not count:
        raise SystemExit("this release of mypy writes weak references differently; use another, or a pure build")
    return source


def _pyproject() -> dict[str, Any]:
    return tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
