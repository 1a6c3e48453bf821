"""The tutorials for Spark do what they say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ...documents import examples_of, module_for
from ...test_examples import imported
from ...test_tutorials import name_of
from ...tutorials import ON_SPARK, TUTORIALS, follow, follow_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON_SPARK_HERE = [page for page in TUTORIALS if examples_of(page, "python spark")]


@pytest.mark.parametrize("page", ON_SPARK_HERE, ids=name_of)
def test_a_tutorial_prints_what_it_says(page: Path, spark: SparkSession) -> None:
    module = module_for(page)
    module.__dict__["spark"] = spark

    with imported(module):
        follow_here(page, module)


@pytest.fixture
def commands(spark: SparkSession, connect_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a command `dispatcher` that runs on the Spark of the test run, where it would start one."""
    pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")
    folder = tmp_path_factory.mktemp("commands")
    own = f'exec "{Path(sys.executable).with_name("dispatcher")}" "$@"'
    script = f'#!/bin/sh\ncase "$1" in report | sweep) {own} --master "{connect_url}" ;; esac\n{own}\n'
    (folder / "dispatcher").write_text(script)
    (folder / "dispatcher").chmod(0o755)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in TUTORIALS if page.stem in ON_SPARK], ids=name_of)
def test_a_tutorial_does_what_it_says(page: Path, commands: Path, tmp_path: Path) -> None:
    follow(page, tmp_path, commands)
