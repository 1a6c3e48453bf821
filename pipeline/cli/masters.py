"""Where Spark may run. Importing this does not import pyspark."""

from __future__ import annotations

import re
from typing import Final

from dispatcher.errors import ConfigError

_MASTER: Final = re.compile(
    r"local(\[(\*|[1-9][0-9]{0,3})(, ?[0-9]{1,9})?\])?"
    r"|local-cluster\[[0-9]{1,9}, ?[0-9]{1,9}, ?[0-9]{1,9}\]"
    r"|spark://[^\s/,:]+:[0-9]{1,5}(,[^\s/,:]+:[0-9]{1,5})*"
    r"|yarn"
    r"|k8s://[^\s]+"
    r"|sc://[^\s/:;]+(:[0-9]{1,5})?(/.*)?"
)


def check_master(master: str) -> str:
    """The master, if Spark could know it; it is not asked. For use as a callback of Typer.

    Raises:
        ConfigError: Spark knows no such master: it would say so with a Java stack after seconds, or after the replay.
    """
    if _MASTER.fullmatch(master) is None:
        raise ConfigError(
            f"--master {master!r}: not a place where Spark runs; give local[*], local[4], spark://host:7077, yarn, "
            "k8s://host:port or sc://host"
        )
    return master
