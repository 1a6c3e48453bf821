"""A field of an entity is one line: REST, lists and CSV have it from there."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from statemachines import resourcemanager
from statemachines.resourcemanager import QueueInfo

from ..daemon.yarn_cluster import Yarn
from ..inner import ApplicationReport, fields, queue_fields
from .inner import applications, apps, beans, columns_of, scheduler
from .served import Served

pytestmark = pytest.mark.long

HOUSE = Path(str(resourcemanager.__file__)).parent
OTHERS = {
    "web/rest/filters.py": "parameters of requests",
    "web/rest/resources.py": "types of resources",
    "web/rest/scheduler.py": "what the scheduler has done last",
    "web/rest/cluster.py": "sums of the cluster",
    "web/rest/texts.py": "requests of applications",
}
"""Files with keys that fields of entities have too."""
WRITING = "web/rest/writing"
"""What changes take, not what there is."""


def _length(app: ApplicationReport, _: fields.Around) -> int:
    return 1000 * len(app.name)


NEW = fields.Field[ApplicationReport](
    "name_length", fields.Unit.COUNT, _length, "nameLength", 99, fields.ListColumn("length", "Length of its name")
)
QUEUES = [{"name": "default", "capacity": 100}]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with_new = (*fields.APPLICATION_FIELDS, NEW)
    monkeypatch.setattr(apps, "APPLICATION_FIELDS", with_new)
    monkeypatch.setattr(applications, "COLUMNS", columns_of(with_new))
    monkeypatch.setattr(applications, "CSV", applications.csv_of(with_new))
    closed = {"kind": "capacity", "acl_administer_queue": " ", "queues": QUEUES}
    with Yarn(scheduler=closed) as yarn, Served(yarn.manager) as made:
        yarn.submit("seven77", user="ann")
        made.publish()
        yield made


def test_a_new_field_is_one_line(served: Served) -> None:
    [app] = served.ask("/apps?user.name=ann").json()["apps"]["app"]
    [row] = csv.DictReader(io.StringIO(served.ask("//cluster/apps?format=csv&user.name=ann").text))
    page = served.ask("//cluster/apps?sort=length&user.name=ann").text

    assert (app["nameLength"], row["name_length"]) == (7000, "7000")
    assert "Length of its name</a></th>" in page
    assert '<td class="">7,000</td>' in page


def test_a_new_field_is_hidden_from_those_that_may_not_view_the_application(served: Served) -> None:
    [app] = served.ask("/apps?user.name=bob").json()["apps"]["app"]
    [row] = csv.DictReader(io.StringIO(served.ask("//cluster/apps?format=csv&user.name=bob").text))
    page = served.ask("//cluster/apps?sort=length&user.name=bob").text

    assert "nameLength" not in app
    assert app["diagnostics"] == "N/A"
    assert row["name_length"] == "not shown to you"
    assert "7,000" not in page


@pytest.mark.parametrize("user", ["ann", "bob"])
@pytest.mark.parametrize("path", ["/cluster/apps", "/cluster/apps/ACCEPTED", "/cluster"])
def test_a_row_has_a_cell_for_each_column(served: Served, path: str, user: str) -> None:
    """A row of an application that the user may not view had six more, which moved its note out of the table."""
    page = served.ask(f"/{path}?user.name={user}").text

    before, _, after = page.partition('<tbody id="rows">')
    cells, titles = after.partition("</tbody>")[0].count("<td"), before.rpartition("<thead>")[2].count("<th ")
    assert cells == titles


def test_a_new_field_of_queues_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    new = fields.Field[QueueInfo](
        "name_length", fields.Unit.COUNT, lambda queue, _: len(queue.path), "nameLength", jmx=(99, "NameLength")
    )
    monkeypatch.setattr(scheduler, "QUEUE_FIELDS", (*queue_fields.QUEUE_FIELDS, new))
    monkeypatch.setattr(beans, "OF_QUEUES", beans.in_beans((*queue_fields.QUEUE_FIELDS, new)))
    with Yarn(scheduler={"kind": "capacity", "queues": QUEUES}) as yarn, Served(yarn.manager) as served:
        (queue,) = served.get("/scheduler")["scheduler"]["schedulerInfo"]["queues"]["queue"]
        attributes = served.get("//jmx", qry="Hadoop:name=QueueMetrics,q0=root,q1=default,*")["beans"][0]

    assert queue["nameLength"] == attributes["NameLength"] == len("root.default")


def test_a_key_of_rest_and_of_beans_stands_in_one_file() -> None:
    """In a second one, a new field would be two lines, and two surfaces could differ."""
    texts = {str(file.relative_to(HOUSE)): file.read_text() for file in HOUSE.rglob("*.py") if WRITING not in str(file)}
    attempts = *fields.LISTED_ATTEMPT_FIELDS, *fields.ATTEMPT_FIELDS
    queues = (
        *queue_fields.ROOT_QUEUE_FIELDS,
        *queue_fields.QUEUE_FIELDS,
        *queue_fields.PARTITION_FIELDS,
        *queue_fields.PARTITION_USE_FIELDS,
        *queue_fields.QUEUE_USER_FIELDS,
    )
    entities: list[fields.Field[Any]] = [
        *fields.APPLICATION_FIELDS,
        *fields.NODE_FIELDS,
        *attempts,
        *fields.CONTAINER_FIELDS,
    ]

    homes = {
        home: {name: files_with(name, texts) for name in keys_of(those)}
        for home, those in (("read/fields.py", entities), ("read/queue_fields.py", queues))
    }

    assert sum(map(len, homes.values())) > 100
    shared = keys_of(entities) & keys_of(queues)
    for home, files in homes.items():
        assert {name: found for name, found in files.items() if name not in shared and found != {home}} == {}
    assert {name for name in shared if files_with(name, texts) - set(homes)} == set()


def keys_of(those: Iterable[fields.Field[Any]]) -> set[str]:
    """Those with a capital, which are no words of other things."""
    return {field.rest for field in those if field.rest is not None and field.rest.lower() != field.rest}


def files_with(name: str, texts: Mapping[str, str]) -> set[str]:
    return {file for file, text in texts.items() if json.dumps(name) in text} - set(OTHERS)
