"""The argument and options that select a daemon, shared by the commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dispatcher.cli.console import echo
from dispatcher.cli.ops.errors import NoAnswerError, NoDaemonError

if TYPE_CHECKING:
    import ssl

    from dispatcher.cli.ops.client import Address

NOT_ANSWERED = 1
"""Exit code if the daemon gives no valid answer."""
_MOST_TOKEN = 4096
_UNIX = "unix:"

Daemon = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|PID|URL",
        help="the daemon's name, process id, socket (unix:PATH) or URL; optional if only one is running",
        show_default=False,
    ),
]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="file with the token, for a URL")]
CaFile = Annotated[Path | None, typer.Option("--ca", help="file with the CA certificates to trust, for an https URL")]


def address_of(daemon: str | None, token_file: Path | None, ca_file: Path | None) -> Address:
    """The address of the selected daemon.

    Raises:
        NoDaemonError: no daemon matches, several do, or an option does not fit.
        OSError: a file cannot be read.
    """
    from dispatcher.cli.ops.client import Address
    from dispatcher.cli.ops.doors import choose
    from dispatcher.web.doors import find_doors

    is_socket = daemon is not None and daemon.startswith(_UNIX)
    if daemon is not None and "://" in daemon and not is_socket:
        return _address_of_url(daemon, token_file, ca_file)
    if ca_file is not None:
        raise NoDaemonError(f"--ca {ca_file}: applies to https URLs only; give the daemon's URL")
    token = _token_of(token_file)
    if daemon is not None and is_socket:
        name = daemon.removeprefix(_UNIX).removeprefix("//")
        if not name:
            raise NoDaemonError(f"{daemon}: has no path; write unix:PATH")
        return Address(label=name, socket=Path(name), token=token)
    door = choose(daemon, find_doors())
    return Address(label=f"{door.name} ({door.pid})", socket=door.path, token=token, door=door)


def address_again(last: Address | None, daemon: str | None, token_file: Path | None, ca_file: Path | None) -> Address:
    """The address after a lost connection: the same process if it still listens, else a daemon of the same name.

    Raises as `address_of`, which finds the first address.
    """
    from dispatcher.web.doors import is_answering

    if last is not None and last.door is not None:
        # By the name alone, a process that was late once would be lost if another one has its name.
        daemon = str(last.door.pid) if is_answering(last.door.path) else last.door.name
    return address_of(daemon, token_file, ca_file)


def _address_of_url(url: str, token_file: Path | None, ca_file: Path | None) -> Address:
    from ipaddress import ip_address
    from urllib.parse import urlsplit

    from dispatcher.cli.ops.client import Address

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise NoDaemonError(f"{url}: not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise NoDaemonError(
            f"{url}: not a daemon's URL; expected one like https://host:8443 or http://127.0.0.1:8080/ops"
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise NoDaemonError("a daemon's URL has no user, query or fragment; pass a token with --token-file")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise NoDaemonError(f"{url!r}: only printable ASCII characters are allowed in a URL")
    path = parts.path.rstrip("/")
    base = "/ops/v1" if not path else path if path.endswith("/v1") else f"{path}/v1"
    tls = None
    if parts.scheme == "https":
        tls = _trusting(ca_file)
    elif ca_file is not None:
        raise NoDaemonError(f"{url}: --ca applies to https URLs only")
    elif token_file is not None:
        try:
            is_here = host == "localhost" or ip_address(host).is_loopback
        except ValueError:
            is_here = False
        if not is_here:
            raise NoDaemonError(f"{url}: a token goes to another machine over https only")
    label = f"{parts.scheme}://{parts.netloc}{path}"
    return Address(label, None, host, port or (443 if tls else 80), base, tls, _token_of(token_file))


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise NoDaemonError(f"--ca {ca_file}: holds no PEM certificates ({error.reason or error})") from error


def _token_of(file: Path | None) -> str | None:
    if file is None:
        return None
    with file.open(encoding="ascii", errors="replace") as opened:
        token = opened.read(_MOST_TOKEN + 1).strip()
    if not token or len(token) > _MOST_TOKEN or not token.isprintable() or not token.isascii() or " " in token:
        raise NoDaemonError(f"--token-file {file}: not a token; expected the line that `dispatcher token new` prints")
    return token


@contextmanager
def answering() -> Iterator[None]:
    """Report a missing or invalid answer in one line, with exit code 1."""
    try:
        yield
    except NoAnswerError as error:
        from dispatcher.util.terminal import one_line

        echo(f"dispatcher: {one_line(str(error))}", err=True)
        raise typer.Exit(NOT_ANSWERED) from None
