"""`dispatcher changes`, `dispatcher nodes` and `dispatcher queues`: an administrator's changes of a running daemon.

They use the daemon's REST API over its Unix socket or a URL. The other commands use its ops API.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import BaseModel

from dispatcher.cli.console import aligned, echo, echo_json, time_text
from dispatcher.cli.ops.options import CaFile, Daemon, TokenFile, address_of, answering
from dispatcher.errors import ConfigError

if TYPE_CHECKING:
    from dispatcher.cli.ops.client import Client

_BASE: Final = "/ws/v1/cluster"
_NOTHING: Final = "-"

nodes: typer.Typer = typer.Typer(
    no_args_is_help=True, help="Change nodes and hosts of a running resource manager. Changes survive its restart."
)
queues: typer.Typer = typer.Typer(
    no_args_is_help=True, help="Change queues of a running resource manager. Changes survive its restart."
)

To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="NAME|PID|URL",
        help="the daemon's name, process id, socket (unix:PATH) or URL; optional if only one is running",
    ),
]
Hosts = Annotated[list[str], typer.Argument(metavar="HOST...", help="names of hosts, without ports")]
Node = Annotated[str, typer.Argument(metavar="NODE", help="the node's id, host:port")]
QueueNames = Annotated[list[str], typer.Argument(metavar="QUEUE...", help="paths, such as root.etl")]


class NodeSetting(Enum):
    """A setting of a node that an administrator can change."""

    capacity = "capacity"
    label = "label"


class _ListedChange(BaseModel):
    """One entry of /changes."""

    queue: str = ""
    node: str = ""
    key: str
    value: Any
    configured: Any = None
    since: int | None
    user: str | None
    problem: str = ""


class _ChangeLists(BaseModel):
    queue: list[_ListedChange]
    node: list[_ListedChange]


class _ChangesAnswer(BaseModel):
    changes: _ChangeLists


# -- seeing them -------------------------------------------------------------------------------------------------------


def changes(
    daemon: Daemon = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one line of JSON")] = False,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """List what administrators have changed of queues, nodes and hosts: since when, by whom, and what is configured."""
    with _asking(daemon, token_file, ca) as client:
        found = client.get_json("changes")
        if as_json:
            echo_json(json.dumps(found))
        else:
            _show(_validated(found))


def _validated(answer: Any) -> _ChangeLists:
    from pydantic import ValidationError

    from dispatcher.cli.ops.errors import NoAnswerError

    try:
        return _ChangesAnswer.model_validate(answer).changes
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise NoAnswerError(f"not an answer of a resource manager: {first['msg']}") from error


def _show(found: _ChangeLists) -> None:
    if not (found.queue or found.node):
        echo("no changes: the configuration counts")
        return
    rows = [[each.queue, each.key, *_texts(each)] for each in found.queue]
    rows += [[each.node or "all hosts", each.key, *_texts(each)] for each in found.node]
    for line in aligned(["NAME", "WHAT", "NOW", "CONFIGURED", "BY", "SINCE"], rows):
        echo(line)
    for each in found.queue:
        if each.problem:
            echo(f"{each.queue}, {each.key}: not in effect: {each.problem}", err=True)


def _texts(change: _ListedChange) -> list[str]:
    now = "not in effect" if change.problem else _text(change.value)
    by = _NOTHING if change.user is None else change.user or "the program"
    return [now, _text(change.configured), by, time_text(change.since * 1_000_000) if change.since else _NOTHING]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value.get('memory')} MB, {value.get('vCores')} vcores"
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return _NOTHING if value is None else str(value) or "default"


# -- nodes -------------------------------------------------------------------------------------------------------------


@nodes.command()
def decommission(
    hosts: Hosts,
    graceful: Annotated[
        bool, typer.Option("--graceful", help="wait until their applications have ended; default: at once")
    ] = False,
    timeout: Annotated[
        int | None,
        typer.Option(metavar="SECONDS", help="with --graceful: the longest wait; default: decommission_timeout_s"),
    ] = None,
    to: To = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Take the nodes of these hosts out of service until they are recommissioned."""
    content: dict[str, Any] = {"hosts": hosts, "graceful": graceful}
    if timeout is not None:
        content["timeout"] = timeout
    _change(to, token_file, ca, "POST", ("hosts", "decommission"), content)


@nodes.command()
def recommission(hosts: Hosts, to: To = None, token_file: TokenFile = None, ca: CaFile = None) -> None:
    """Admit decommissioned hosts again."""
    _change(to, token_file, ca, "POST", ("hosts", "recommission"), {"hosts": hosts})


@nodes.command()
def include(
    hosts: Annotated[list[str] | None, typer.Argument(metavar="[HOST]...", help="names of hosts")] = None,
    all_hosts: Annotated[bool, typer.Option("--all", help="all hosts that are not decommissioned")] = False,
    to: To = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Admit the nodes of these hosts only. The nodes of all others shut down."""
    if bool(hosts) is all_hosts:
        raise ConfigError("name the hosts, or give --all")
    _change(to, token_file, ca, "PUT", ("hosts", "included"), {"hosts": hosts or []})


@nodes.command()
def resize(
    node: Node,
    memory: Annotated[int, typer.Option(metavar="MB", help="memory for containers")],
    vcores: Annotated[int, typer.Option(metavar="NUMBER", help="virtual cores for containers")],
    to: To = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Give a node another capacity. Its containers run on, even if they exceed it."""
    content = {"resource": {"memory": memory, "vCores": vcores}}
    _change(to, token_file, ca, "POST", ("nodes", node, "resource"), content)


@nodes.command()
def label(
    node: Node,
    name: Annotated[str, typer.Argument(metavar="[LABEL]", help="the partition; default: the default one")] = "",
    to: To = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Move a node into a partition. Its containers run on."""
    _change(to, token_file, ca, "POST", ("nodes", node, "replace-labels"), {}, labels=name)


@nodes.command("give-up")
def give_up_node(
    node: Node,
    setting: Annotated[NodeSetting, typer.Argument(help="what to give up")],
    to: To = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Give a node back the capacity or the label that it registers with."""
    _change(to, token_file, ca, "DELETE", ("nodes", node, "changes", setting.value), None)


# -- queues ------------------------------------------------------------------------------------------------------------


@queues.command()
def change(
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="QUEUE:KEY=VALUE", help="change a key, such as root.etl:capacity=60"),
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="QUEUE:KEY=VALUE", help="add a queue, with this key; repeat it for more keys"),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="QUEUE", help="remove a stopped queue without applications")
    ] = None,
    to: To = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Change, add and remove queues in one request, all or nothing. Repeat the options for more of them.

    Keys are those of the configuration or YARN's. The capacities of siblings must add up to 100 afterwards.
    """
    content = {"update-queue": _settings(set_), "add-queue": _settings(add), "remove-queue": remove or []}
    _change(to, token_file, ca, "PUT", ("scheduler-conf",), content)


@queues.command()
def stop(names: QueueNames, to: To = None, token_file: TokenFile = None, ca: CaFile = None) -> None:
    """Let queues, and those below them, reject new applications. Running applications continue."""
    content = {"update-queue": _settings([f"{name}:state=STOPPED" for name in names])}
    _change(to, token_file, ca, "PUT", ("scheduler-conf",), content)


@queues.command()
def start(names: QueueNames, to: To = None, token_file: TokenFile = None, ca: CaFile = None) -> None:
    """Let stopped queues accept applications again."""
    content = {"update-queue": _settings([f"{name}:state=RUNNING" for name in names])}
    _change(to, token_file, ca, "PUT", ("scheduler-conf",), content)


@queues.command("give-up")
def give_up_queues(
    names: Annotated[list[str] | None, typer.Argument(metavar="[QUEUE]...", help="paths, such as root.etl")] = None,
    all_queues: Annotated[bool, typer.Option("--all", help="all changes of queues")] = False,
    to: To = None,
    token_file: TokenFile = None,
    ca: CaFile = None,
) -> None:
    """Give up the changes of these queues: the configuration counts again."""
    if bool(names) is all_queues:
        raise ConfigError("name the queues, or give --all")
    _change(to, token_file, ca, "DELETE", ("scheduler-conf",), None, queue=names or [])


def _settings(given: Sequence[str] | None) -> list[dict[str, Any]]:
    """`QUEUE:KEY=VALUE`, as the REST API takes it. Raises ConfigError."""
    by_queue: dict[str, list[dict[str, str]]] = {}
    for each in given or ():
        name, has_key, setting = each.partition(":")
        key, has_value, value = setting.partition("=")
        if not (name and has_key and key and has_value):
            raise ConfigError(f"{each}: expected QUEUE:KEY=VALUE, such as root.etl:capacity=60")
        by_queue.setdefault(name, []).append({"key": key, "value": value})
    return [{"queue-name": name, "params": {"entry": entries}} for name, entries in by_queue.items()]


# -- requests ----------------------------------------------------------------------------------------------------------


@contextmanager
def _asking(daemon: str | None, token_file: Path | None, ca: Path | None) -> Iterator[Client]:
    from dispatcher.cli.ops.client import Client

    with answering():
        address = replace(address_of(daemon, token_file, ca), base=_BASE)
        with Client(address, _LONGEST_S) as client:
            yield client


_LONGEST_S: Final = 30.0
"""A change waits for the handler thread, and for the state store."""


def _change(
    daemon: str | None,
    token_file: Path | None,
    ca: Path | None,
    method: str,
    path: tuple[str, ...],
    content: object,
    **query: object,
) -> None:
    """Make the change, and list all changes."""
    with _asking(daemon, token_file, ca) as client:
        client.send(method, *path, content=content, **query)
        _show(_validated(client.get_json("changes")))
