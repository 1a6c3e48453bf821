"""Requests that no sensible client sends, made up from a seed: for every route, as bytes.

A request depends on its seed and on what the resource manager has, so one that was answered wrongly can be sent again.
The routes come from the application, and the parameters of queries are those that it has looked for.
"""

from __future__ import annotations

import base64
import json
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import pytest
from starlette.datastructures import ImmutableMultiDict, QueryParams

from .front import submission
from .routes import Address

DEEP: Final = 20_000
NUMBERS: Final = (
    *(0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), float("-inf")),
)
TEXTS: Final = (
    *("", " ", "0", "-1", "1", "100", "1001", "9" * 18, "9" * 30, "9" * 5000, "1e400", "0x10", "1_0", "+1", "1.5"),
    *("NaN", "nan", "Infinity", "-inf", "null", "None", "true", "[]", "{}", "\u0661\u0662", "\u00b2", "\ud800"),
    *("\0", "a\0b", "\r\nX: y", "\x1b[31m", "\x7f", "\u00e9", "\u202e", "\U0001f600", "\u0130", "\u212a", "\u00df"),
    *("..", ".", "/", "//", "../..", "a/b", "\\", "%", "%zz", "%00", "%2f", "%25", "'\"<>&", ",", "a,b,,c", ";"),
    *("=", "&", "+", "?", "#", "x" * 300, "\u00e9" * 2000, "@0", "@9999999999.999999999", "@99999999999"),
    *("2026-12-31T23:59:59.000+0000", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-02-30", "1969-12-31"),
    *("RUNNING", "running,KILLED", "default", "root", "root.default", "admin", "ann", "dr.who", "LIFETIME"),
    *("application_1_0001", "application_1_1\n", "application_\u0661_\u0661", f"application_{'9' * 30}_{'9' * 30}"),
    *("appattempt_0_0001_000001", "container_e9_0_1_1_1", "n1:45454", "n1:", ":45454", "[::1]:80", "n1:999999"),
)
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW", "get")
TYPES: Final = (
    *("application/json", "application/json; charset=utf-16", "APPLICATION/JSON;;", "application/xml", "text/plain"),
    *(
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "multipart/form-data",
        "*/*",
        ";",
        "json",
    ),
)
FORM: Final = "application/x-www-form-urlencoded"
ENCODINGS: Final = (
    "gzip",
    "gzip;q=0",
    "GZIP; q=1.0, *;q=0",
    "br, zstd",
    ";q=,,",
    "gzip;q=nan",
    "*",
    "identity;q=0",
    "",
)
ACCEPTS: Final = (
    *(
        "*/*",
        "text/html",
        "application/json",
        "application/xml",
        "text/event-stream",
        "",
        ";q=,,",
        "*/*;q=0",
        "a/b;q=9e9",
    ),
    *("application/openmetrics-text; version=1.0.0", "application/openmetrics-text;version=1;escaping=x", "*/*,*/*"),
)
BODIES: Final[tuple[Any, ...]] = (
    {"state": "KILLED", "diagnostics": "why"},
    {"queue": "default"},
    {"priority": 1},
    {"timeout": {"type": "LIFETIME", "expiryTime": "2026-12-31T23:59:59.000+0000"}},
    {"resource": {"memory": 1024, "vCores": 1}, "overCommitTimeout": -1},
    {"logger": "fuzzed", "level": "DEBUG", "for_s": 0.01},
    {"letters": [1, 2], "journal": "x"},
    {},
)
SUBMISSION: Final[Mapping[str, Any]] = {
    "application-name": "fuzzed",
    "queue": "default",
    "priority": 1,
    "am-container-spec": {
        "commands": {"command": "true"},
        "environment": {"entry": [{"key": "A", "value": "b"}]},
        "local-resources": {"entry": {"key": "f", "value": {"resource": "file:/f", "type": "FILE", "size": 1}}},
        "application-acls": {"entry": {"key": "VIEW_APP", "value": "ann"}},
        "credentials": {"tokens": {"entry": []}},
    },
    "max-app-attempts": 1,
    "application-type": "FUZZ",
    "application-tags": {"tag": ["a", "b"]},
    "keep-containers-across-application-attempts": False,
    "attempt-failures-validity-interval": 1,
}


class Parameters:
    """The names of the parameters that endpoints look for in queries, by the path of the route."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: defaultdict[str, set[str]] = defaultdict(set)
        self.path = ""  # of the route that is asked now
        for name in ("get", "getlist", "__getitem__", "__contains__"):
            patch.setattr(ImmutableMultiDict, name, self._heard(getattr(ImmutableMultiDict, name)))

    def _heard(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def heard(query: Any, name: Any, *more: Any, **others: Any) -> Any:
            if isinstance(query, QueryParams):
                self.names[self.path].add(name)
            return method(query, name, *more, **others)

        return heard


class Sent(NamedTuple):
    """One request."""

    method: str
    data: bytes
    is_cut: bool
    """Its body is shorter than it says: no answer is due."""


class Fuzz:
    """Makes requests to the routes of one application."""

    def __init__(
        self,
        routes: Sequence[Address],
        known: Callable[[str], str],
        names: Mapping[str, set[str]],
        host: str,
    ) -> None:
        """`known`: a value that exists, for the parameter of a path. `names`: of parameters, by path."""
        self._routes: defaultdict[str, list[Address]] = defaultdict(list)  # by path
        for each in routes:
            self._routes[each.path].append(each)
        self._paths = [path for path in self._routes for _ in range(1 + len(names.get(path, ())))]
        self._known = known
        self._names = {path: sorted(each | {"user.name"}) for path, each in names.items()}
        self._all_names = sorted({name for each in self._names.values() for name in each})
        self._host = host

    def request(self, seed: str) -> Sent:
        made = Made(random.Random(seed), self._known)
        chance = made.chance
        route = made.random.choice(self._routes[made.random.choice(self._paths)])
        method = made.random.choice(METHODS) if chance(0.15) else route.method
        target = self._path(made, route)
        if chance(0.7):
            target += b"?" + self._query(made, self._names.get(route.path, self._all_names))
        headers = [(b"Host", self._host.encode() if chance(0.97) else made.header_value())]
        headers += made.headers(self._host)
        body = made.body() if method not in ("GET", "HEAD") or chance(0.1) else b""
        framing, sent, is_cut = made.framed(body)
        lines = [b"%s: %s" % each for each in (*headers, *framing)]
        head = b"\r\n".join([b"%s %s HTTP/1.1" % (method.encode(), target), *lines, b"", b""])
        return Sent(method, head + sent, is_cut)

    def _path(self, made: Made, route: Address) -> bytes:
        path = route.filled(lambda name: f"\1{name}\2")
        parts = path.replace("\2", "\1").split("\1")
        filled = [
            quote(self._known(part), safe=":")
            if number % 2 and made.chance(0.6)
            else made.escaped()
            if number % 2
            else part
            for number, part in enumerate(parts)
        ]
        found = "".join(filled).encode("latin-1")
        if made.chance(0.03):
            return made.random.choice((found + b"/", b"/" + found, found + b"//x", found.upper(), found + b"%00", b"*"))
        return found or b"/"

    def _query(self, made: Made, names: Sequence[str]) -> bytes:
        pairs = ["user.name=ann"] if made.chance(0.3) else []
        for _ in range(made.random.choice((1, 1, 2, 3, 6))):
            name = quote(made.random.choice(names)) if made.chance(0.8) else made.random.choice((*self._all_names, ""))
            name = made.escaped() if made.chance(0.1) else name
            pairs.append(name if made.chance(0.05) else f"{name}={made.escaped()}")
        if made.chance(0.1):
            pairs *= 2
        return made.random.choice(("&", "&", "&", ";", "&&")).join(pairs).encode("latin-1")


class Made:
    """The parts of one request."""

    def __init__(self, seeded: random.Random, known: Callable[[str], str]) -> None:
        self.random = seeded
        self._known = known

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def text(self) -> str:
        random = self.random
        kind = random.randrange(10)
        if kind == 0:
            return "".join(chr(random.choice((random.randrange(128), random.randrange(0x3000)))) for _ in range(9))
        if kind == 1:  # a cursor of a list
            return base64.urlsafe_b64encode(json.dumps(self.value(2)).encode()).decode().rstrip("=")
        if kind == 2:
            return self._known(random.choice(("apps/app", "nodes/node", "dispatchers/name", "containers/container")))
        return random.choice(TEXTS)

    def escaped(self) -> str:
        """A text for an address: escaped, escaped twice, in part, or wrongly; as Latin-1, and without blanks."""
        raw = self.text().encode("utf-8", "surrogatepass") if self.chance(0.9) else self.random.randbytes(8)
        kind = self.random.randrange(12)
        if kind == 0:
            return quote(quote(raw, safe=""), safe="")
        if kind == 1:
            return quote(raw, safe="/%?&=+;,:@")
        if kind == 2:
            return bytes(each for each in raw if each > 0x20 and each not in b"#\x7f").decode("latin-1")
        if kind == 3:
            return quote(raw, safe="") + self.random.choice(("%", "%f", "%gg", "%ff", "%c3", "%u0041"))
        return quote(raw, safe="")

    def value(self, depth: int = 3) -> Any:
        kind = self.random.randrange(7 if depth else 5)
        if kind == 5:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        if kind == 6:
            return {self.text(): self.value(depth - 1) for _ in range(self.random.randrange(4))}
        return (
            self.random.choice(NUMBERS) if kind < 2 else self.text() if kind < 4 else self.random.choice((None, True))
        )

    # -- headers -------------------------------------------------------------------------------------------------------

    def header_value(self) -> bytes:
        raw = self.text().encode("utf-8", "surrogatepass") if self.chance(0.9) else self.random.randbytes(20)
        return bytes(each for each in raw if each >= 0x20 and each != 0x7F)

    def headers(self, host: str) -> list[tuple[bytes, bytes]]:
        token = self.header_value()
        odd: Mapping[bytes, Callable[[], bytes]] = {
            b"Accept": lambda: self.random.choice(ACCEPTS).encode(),
            b"Accept-Encoding": lambda: self.random.choice(ENCODINGS).encode(),
            b"Authorization": lambda: self.random.choice((b"Bearer ", b"Basic ", b"Negotiate ", b"")) + token,
            b"Cookie": lambda: (
                self.random.choice((b"hadoop.auth=", b"a=b; hadoop.auth=u=ann&p=&t=simple&e=", b"")) + token
            ),
            b"Origin": lambda: self.random.choice((f"http://{host}".encode(), b"null", b"http://evil", token)),
            b"Sec-Fetch-Site": lambda: self.random.choice((b"same-origin", b"cross-site", b"none", token)),
            b"Last-Event-ID": lambda: token,
            b"Content-Encoding": lambda: self.random.choice((b"gzip", b"identity", token)),
            b"Expect": lambda: self.random.choice((b"100-continue", token)),
            b"Range": lambda: b"bytes=-1",
            b"If-None-Match": lambda: token,
            b"Upgrade": lambda: self.random.choice((b"websocket", b"h2c", token)),
            b"X-Forwarded-For": lambda: token,
            b"X-HTTP-Method-Override": lambda: b"DELETE",
        }
        names = [name for name in odd if self.chance(0.15)]
        found = [(name, odd[name]()) for name in names]
        if self.chance(0.5):  # a form is taken from our own pages only
            found.append((b"Sec-Fetch-Site", b"same-origin"))
        if self.chance(0.05):
            found += found
        return found

    # -- bodies --------------------------------------------------------------------------------------------------------

    def body(self) -> bytes:
        kind = self.random.randrange(12)
        if kind == 0:
            return self.random.randbytes(self.random.randrange(200))
        if kind == 1:
            return self.random.choice((b"[", b'{"a":', b'{"state":', b"<a>")) * self.random.randrange(1, DEEP)
        if kind == 2:
            return b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'c'>]><app><state>KILLED</state>&b;</app>"
        if kind in (3, 4):
            names = ("queue", "priority", "letters", "", "a")
            fields = [
                f"{self.random.choice(names)}={self.escaped()}" for _ in range(self.random.choice((1, 2, 19, 500)))
            ]
            return "&".join(fields).encode("latin-1")
        content: Any = self.random.choice(BODIES)
        if kind > 8:
            content = {**submission(self._known("apps/app")), **SUBMISSION}
        for _ in range(self.random.randrange(3)):
            content = self._changed(content)
        text = json.dumps(content, ensure_ascii=self.chance(0.8))
        return text.encode(self.random.choice(("utf-8", "utf-8", "utf-8", "utf-16")), "surrogatepass")

    def submission(self, app_id: str) -> Any:
        """What submits this application, with up to three parts in place of others."""
        content: Any = {**submission(app_id), **SUBMISSION}
        for _ in range(self.random.randrange(4)):
            content = self._changed(content)
        return content

    def _changed(self, content: Any) -> Any:
        """A copy with one part in place of another, at any depth."""
        if not isinstance(content, dict) or not content or self.chance(0.2):
            return self.value()
        key = self.random.choice(list(content))
        if self.chance(0.1):
            return {each: value for each, value in content.items() if each != key}
        return {**content, (self.text() if self.chance(0.05) else key): self._changed(content[key])}

    def framed(self, body: bytes) -> tuple[list[tuple[bytes, bytes]], bytes, bool]:
        """Headers, the bytes to send, and whether they are less than the headers say."""
        is_form = body.partition(b"=")[0].isalpha()
        kind = (
            FORM
            if is_form and self.chance(0.8)
            else "application/json"
            if self.chance(0.8)
            else self.random.choice(TYPES)
        )
        found = [(b"Content-Type", kind.encode())] if body or self.chance(0.1) else []
        if self.chance(0.1):
            chunks = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            return [*found, (b"Transfer-Encoding", b"chunked")], chunks + b"0\r\n\r\n", False
        if self.chance(0.02):
            odd = self.random.choice((b"-1", b"+1", b"x", b"", b"9" * 30, b"1, 1", b"1e3"))
            return [*found, (b"Content-Length", odd)], body, True
        if body and self.chance(0.05):
            return [*found, (b"Content-Length", b"%d" % len(body))], body[: len(body) // 2], True
        if body or self.chance(0.2):
            found.append((b"Content-Length", b"%d" % len(body)))
        return found, body, False
