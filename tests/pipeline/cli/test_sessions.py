"""Where Spark may run."""

from __future__ import annotations

import pytest

from dispatcher import ConfigError
from pipeline.cli.sessions import check_master

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[4]",
        "local[*,2]",
        "local-cluster[2,1,1024]",
        "spark://host:7077",
        "spark://one:7077,two:7077",
        "yarn",
        "k8s://https://host:443",
        "sc://localhost",
        "sc://host:15002/;use_ssl=true",
    ],
)
def test_a_master_of_any_kind_is_taken(master: str) -> None:
    assert check_master(master) == master


@pytest.mark.parametrize(
    "master",
    [
        "",
        "nonsense",
        "local[0]",
        "local[",
        "local[x]",
        "local[99999]",
        "spark://",
        "spark://host",
        "sc://",
        "http://host",
        "yarn\n",
    ],
)
def test_what_is_no_master_is_refused_with_those_that_are(master: str) -> None:
    with pytest.raises(
        ConfigError, match=r"not a place where Spark runs; give local\[\*\], local\[4\], spark://host:7077"
    ):
        check_master(master)
