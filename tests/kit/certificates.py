"""A certificate authority of a test."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

NEEDS_OPENSSL = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl is not installed: apt-get install openssl"
)


def openssl(*arguments: object) -> None:
    done = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Authority:
    """A CA in a folder, and what it signs: NAME.pem and NAME.key."""

    folder: Path

    @property
    def cert(self) -> Path:
        return self.folder / "ca.pem"

    def make(self) -> Authority:
        self.folder.mkdir()
        self._make("ca", "Test CA", "basicConstraints=critical,CA:TRUE", "keyUsage=keyCertSign")
        return self

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def sign(self, name: str) -> tuple[Path, Path]:
        """A certificate whose CN is `name`, for 127.0.0.1, and its key."""
        extensions = ["subjectAltName=IP:127.0.0.1", "basicConstraints=CA:FALSE"]
        return self._make(name, name, *extensions, signer=["-CA", self.cert, "-CAkey", self.key("ca")])

    def _make(self, name: str, subject: str, *extensions: str, signer: list[object] | None = None) -> tuple[Path, Path]:
        cert, key = self.folder / f"{name}.pem", self.key(name)
        options = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 2]
        added = [each for extension in extensions for each in ("-addext", extension)]
        openssl("req", *options, *added, *(signer or []), "-subj", f"/CN={subject}", "-keyout", key, "-out", cert)
        return cert, key
