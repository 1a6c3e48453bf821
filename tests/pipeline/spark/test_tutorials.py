"""The tutorials and the how-to pages for Spark do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ...documents import PAGES, examples_of, module_for, run_examples
from ...test_examples import imported
from ...test_tutorials import SHORT_PAGES, name_of
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


@pytest.mark.parametrize(
    "page", [page for page in SHORT_PAGES if page not in PAGES and examples_of(page, "python spark")], ids=name_of
)
def test_the_examples_of_a_page_run(page: Path, spark: SparkSession) -> None:
    module = module_for(page)
    module.__dict__["spark"] = spark

    with imported(module):
        run_examples(page, "python spark", module)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in TUTORIALS if page.stem in ON_SPARK], ids=name_of)
def test_a_tutorial_does_what_it_says(page: Path, tmp_path: Path) -> None:
    follow(page, tmp_path)
