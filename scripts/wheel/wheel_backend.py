"""The build backend: setuptools', with which two builds of one tree are equal byte for byte under SOURCE_DATE_EPOCH."""

from __future__ import annotations

import gzip
import os
import re
import tarfile
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "description",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


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


def _pyproject() -> dict[str, Any]:
    return tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
