"""Java for Spark: which one it is, and whether Spark can run on it. Importing this does not import pyspark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from dispatcher.errors import DispatcherError

MINIMUM_JAVA: Final = 17
_JAVA_TIMEOUT_S: Final = 30.0
_JAVA_ADVICE: Final = f"Install Java {MINIMUM_JAVA} or newer, or point JAVA_HOME at one."


class SparkUnavailableError(DispatcherError):
    """Raised when PySpark or a suitable Java is missing. You can show its one-line message to users."""


def require_java() -> int:
    """The major version of Spark's Java: in JAVA_HOME if that is set, else on the PATH.

    Blocks on `java -version`, unless the file `release` of a JDK says it: a JVM more would delay each command.

    Raises:
        SparkUnavailableError: Java is missing, does not run, or is older than Spark 4 needs.
    """
    java = _find_java()
    version = _released(Path(java)) or _reported(java)
    if version < MINIMUM_JAVA:
        raise SparkUnavailableError(
            f"Spark cannot run: {java} is Java {version}, Spark 4 needs {MINIMUM_JAVA}. {_JAVA_ADVICE}"
        )
    return version


def _released(java: Path) -> int | None:
    """The major version of the JDK or JRE that `java` is in; None: it does not say."""
    try:
        text = java.resolve().parent.parent.joinpath("release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return None if found is None else int(found[1])


def _reported(java: str) -> int:
    """The major version that `java -version` prints."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkUnavailableError(f"Spark cannot run: {java} -version failed ({error}). {_JAVA_ADVICE}") from error
    # Java 8 and older report 1.8; the version is on stderr, after any line that JAVA_TOOL_OPTIONS causes.
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None:
        raise SparkUnavailableError(f"Spark cannot run: {java} -version printed no version. {_JAVA_ADVICE}")
    return int(found[1])


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    found = shutil.which(java)
    if found is None:
        wrong_home = f"JAVA_HOME is {home}, but {java} is not an executable file"
        why = wrong_home if home else "no Java in JAVA_HOME or on the PATH"
        raise SparkUnavailableError(f"Spark cannot run: {why}. {_JAVA_ADVICE}")
    return found
