"""`dispatcher ps|status|stack|top --once` against daemons with a door."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ....kit.certificates import NEEDS_OPENSSL, Authority
from ....kit.lines import assert_lines
from . import fake_daemon as fake
from .conftest import Run, Start
from .test_frame import HOSTILE

pytestmark = pytest.mark.long

COMMANDS = (("status",), ("stack",), ("top", "--once"))
DEGRADED = {
    "status": "degraded",
    "reasons": [],
    "warnings": [
        {
            "warning": "queue_grows",
            "dispatcher": "central",
            "detail": "4,800 events in the queue",
            "since": fake.NOW_MS,
        }
    ],
}


def flooded() -> fake.Answers:
    many = {"size": 12_000, "capacity": None, "policy": "block", "oldest_wait_s": 3.0}
    busy = fake.numbers("ResourceManager", queue=many, failure_rate={"1s": 3.0, "10s": 2.5, "60s": 1.0})
    return fake.answers_of(busy, fake.numbers("ResourceManager-scheduler"))


def many_letters() -> fake.Answers:
    return fake.answers_of(fake.numbers(failed=3, retrying=1200, dead_letters={"count": 3, "lost": 1}))


def checked() -> fake.Answers:
    return fake.answers_of(fake.numbers(), health={"status": "check:db", "reasons": [{"reason": "check:db"}]})


def degraded() -> fake.Answers:
    return fake.answers_of(fake.numbers(), health=DEGRADED)


def half_gone() -> fake.Answers:
    answers = fake.calm()
    del answers["/dispatchers/scheduler/running"]
    return answers


class Said(NamedTuple):
    command: str
    answers: Callable[[], fake.Answers]
    lines: str = ""
    """Of the output."""
    code: int = 0
    error: str = ""
    """The one line on standard error."""


HANDLER = (
    "+|rm/nodes.py:41 in handle: self._heartbeat(event.node)| / "
    "+|rm/nodes.py:77 in _heartbeat: self._store.save(node)| / +|store/sqlite.py:130 in save: with self._connection:|"
)
ACQUIRE = "+|store/sqlite.py:58 in __enter__: self._lock.acquire()|"
SAYS = {
    "ps has a row for a stuck daemon": Said(
        "ps",
        fake.hanging,
        "|NAME PID STATUS UPTIME DISPATCHERS FLOODER QUEUED RATE FAILED FAIL/s SCHEDULED| / +|rm 4711 stuck 3 "
        "d 4 h central, scheduler node_17 1,204 11/s 0 0/s 0|",
    ),
    "ps names a few of many dispatchers: with hundreds, the row had thousands of columns": Said(
        "ps",
        lambda: fake.answers_of(*(fake.numbers(f"d{number}") for number in range(300))),
        " d0, d1, d2, d3, d4, and 295 more ",
    ),
    "ps says that a daemon is degraded": Said("ps", degraded, "|rm 4711 degraded "),
    "status of a ready daemon": Said(
        "status",
        fake.calm,
        "|resourcemanager: pid 4711, up 3 d 4 h, cpu 13 m 32 s, memory 121 MB, 14 threads| / +|ready| / +|| / "
        "+|central: AsyncDispatcher STARTED, drained| / +|queue 0| / +|rate 12/s; 11/s in 10 s, 11/s in 60 s| "
        "/ +|events 41,201 accepted, 41,201 handled, 0 failed| / +|running nothing|",
    ),
    "status counts what is retrying and the dead letters": Said(
        "status",
        many_letters,
        "|events 41,201 accepted, 41,201 handled, 3 failed, 1,200 retrying, 3 dead letters, 1 of them lost|",
    ),
    "status shows who floods, and failures a second": Said(
        "status",
        flooded,
        "|queue 12,000, the oldest for 3.0 s, most for node_17: 12,000| / |failing 3/s; 2.5/s in 10 s, 1/s in 60 s|",
    ),
    "status of a stuck daemon shows the last frames of its handler": Said(
        "status rm",
        fake.hanging,
        "|not ready: stuck (scheduler, 61.2 s)| / |running NodeEventType.UPDATE of node_17 for 61.2 s| / "
        f"{HANDLER} / {ACQUIRE}",
        code=1,
    ),
    "status shows the last failure, and why a dispatcher failed": Said(
        "status",
        fake.failing,
        "|not ready: failed (writer)| / AppEventType.KILL of app_1: InvalidStateTransitionError: RMApp app_1: "
        "no transition / |failed JournalError: /var/lib/rm/journal: No space left on device|",
        code=1,
    ),
    "status takes the daemon's own word for it": Said("status", checked, "+|not ready: check:db|", code=1),
    "status tells signs of trouble of a daemon that is ready": Said(
        "status", degraded, "+|ready, degraded: queue_grows (central: 4,800 events in the queue)|"
    ),
    "status shows a dispatcher that ends between two answers as it was": Said(
        "status", half_gone, "|scheduler: AsyncDispatcher STARTED"
    ),
    "stack prints each stack once with its count": Said(
        "stack --dispatcher scheduler",
        fake.hanging,
        "|scheduler: runs NodeEventType.UPDATE of node_17, for 61.2 s; 20 samples| / +|17 of 20| / "
        f"+|(3 frames of the dispatcher)| / {HANDLER} / {ACQUIRE} / "
        f"+|3 of 20| / +|(3 frames of the dispatcher)| / {HANDLER}",
    ),
    "stack of an idle dispatcher": Said(
        "stack",
        lambda: fake.answers_of(fake.numbers()),
        "|central: runs nothing; 20 samples| / +|20 of 20| / +|idle|",
    ),
    "stack --folded prints what flame graphs take": Said(
        "stack --folded -d scheduler",
        fake.hanging,
        "|scheduler;python3.13/threading.py:_bootstrap;mailbox/processor.py:run; /  17| / + 3|",
    ),
    "stack names the dispatchers that there are": Said(
        "stack -d other",
        fake.calm,
        code=2,
        error="dispatcher: rm (4711): no dispatcher 'other'; it has central, scheduler",
    ),
    "top --once prints a frame as text": Said(
        "top --once",
        fake.hanging,
        "stuck (scheduler, 61.2 s)| / RUNNING for 61.2 s: NodeEventType.UPDATE of node_17",
    ),
    "top --json is for a single look": Said(
        "top --json", fake.calm, code=2, error="dispatcher: --json prints a single look: add --once"
    ),
    "top without a terminal refers to --once": Said(
        "top",
        fake.calm,
        code=2,
        error="dispatcher: top needs a terminal as standard input and standard error; --once prints a single frame",
    ),
}


@pytest.mark.parametrize("said", SAYS.values(), ids=SAYS)
def test_a_command_says(said: Said, run: Run, start: Start) -> None:
    start(answers=said.answers())

    ended = run(*said.command.split())

    assert (ended.code, ended.err) == (said.code, f"{said.error}\n" if said.error else ""), ended
    assert_lines(ended.out.splitlines(), said.lines)


# -- ps ----------------------------------------------------------------------------------------------------------------


def test_ps_lists_the_daemons_of_this_host(run: Run, start: Start) -> None:
    start("rm", 4711, fake.hanging())
    start("web", 4712, fake.calm())

    assert_lines(run("ps").out.splitlines(), "|rm 4711 stuck / +|web 4712 ok ")


def test_ps_without_a_daemon_says_so(run: Run, folder: Path) -> None:
    ended = run("ps")

    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"no running daemon found for this user; a daemon opens its socket in {folder}\n"


@pytest.mark.usefixtures("impatient")
def test_ps_lists_daemons_that_do_not_answer_and_names_sockets_that_were_left(
    run: Run, start: Start, folder: Path
) -> None:
    release = threading.Event()
    start("late", 1, {"": lambda handler: release.wait(30)})
    start("odd", 2, {"": fake.raw(b"nonsense\n")})
    start("dead", 3).end()
    try:
        ended = run("ps")
    finally:
        release.set()

    assert ended.code == 0
    assert [line.split()[:4] for line in ended.out.splitlines()[1:]] == [
        ["late", "1", "no", "answer"],
        ["odd", "2", "no", "answer"],
    ]
    assert sorted(line.partition(": ")[0] for line in ended.err.splitlines()) == [
        str(folder / "dead-3.sock"),
        str(folder / "late-1.sock"),
        str(folder / "odd-2.sock"),
    ]


def test_ps_on_80_columns_shows_a_whole_name_and_who_floods(
    run: Run, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name, which the other commands take, was cut to that of its dispatcher."""
    monkeypatch.setattr("dispatcher.cli.console._MOST_WIDTH", 80)
    start("ResourceManager", 4711, flooded())

    title, row = run("ps").out.splitlines()

    assert len(title) <= 80
    assert row.startswith("ResourceManager  4711  ok ")
    assert row.split()[-5:] == ["node_17", "12,000", "23/s", "0", "2.5/s"]


def test_ps_prints_json_for_programs(run: Run, start: Start, folder: Path) -> None:
    start("rm", 4711, fake.hanging())

    [line] = run("ps", "--json").out.splitlines()

    assert json.loads(line) == {
        "name": "rm",
        "pid": 4711,
        "socket": str(folder / "rm-4711.sock"),
        "status": "stuck",
        "uptime_s": 273600.0,
        "dispatchers": ["central", "scheduler"],
        "queued": 1204,
        "flooder": {"entity": "node_17", "queued": 1204},
        "rate_10s": 11.4,
        "failed": 0,
        "failed_rate_10s": 0.0,
        "scheduled": 0,
    }


# -- JSON, and exit codes ------------------------------------------------------------------------------------------


def test_the_warnings_of_a_degraded_daemon_are_in_its_status(run: Run, start: Start) -> None:
    start(answers=degraded())

    assert json.loads(run("status", "--json").out)["warnings"] == DEGRADED["warnings"]


def test_status_as_json_has_what_runs_and_the_last_failure(run: Run, start: Start) -> None:
    start(answers=fake.failing() | {"/dispatchers/central/running": {**fake.running(), "stack": fake.stack()}})

    central, writer = json.loads(run("status", "--json").out)["dispatchers"]

    assert central["running"]["stack"][-1]["function"] == "__enter__"
    assert central["last_failure"]["error_class"] == "InvalidStateTransitionError"
    assert writer["failure"].startswith("JournalError")


def test_quiet_status_says_it_by_the_exit_code_alone(run: Run, start: Start, folder: Path) -> None:
    start("calm", 1, fake.calm())
    start("stuck", 2, fake.hanging())
    start("odd", 3, {"": fake.raw(b"nonsense\n")})

    ended = [run("status", "--quiet", name) for name in ("calm", "stuck", "odd", "absent", "unix:/nowhere")]

    assert [(each.code, each.out, each.err) for each in ended] == [(code, "", "") for code in (0, 1, 1, 2, 2)]


def test_stacks_are_sampled_within_a_second(run: Run, start: Start) -> None:
    daemon = start(answers=fake.hanging())

    run("stack", "--dispatcher", "scheduler")

    assert daemon.asked[-1] == "/ops/v1/dispatchers/scheduler/running?samples=20&interval_ms=50"


def test_a_frame_of_top_has_the_size_of_a_terminal(run: Run, start: Start) -> None:
    start(answers=fake.hanging())

    lines = run("top", "--once").out.splitlines()

    assert (len(lines), max(map(len, lines))) == (23, 80)


def test_top_once_prints_a_look_as_json(run: Run, start: Start) -> None:
    start(answers=fake.hanging())

    ended = run("top", "--once", "--json")

    assert ended.code == 0
    assert ended.out.count("\n") == 1
    found = json.loads(ended.out)
    assert (found["status"], found["dispatcher"]) == ("stuck", "scheduler")
    assert [each["name"] for each in found["dispatchers"]] == ["central", "scheduler"]
    assert found["types"][0]["event_type"] == "UPDATE"
    assert found["running"]["stack"][-1]["function"] == "__enter__"
    assert found["failures"] == []
    assert found["queued_by_entity"] == {"items": [{"entity": "node_17", "queued": 1204}], "approximate": False}


# -- mistakes and broken daemons ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_a_daemon_says_is_printed_escaped(command: tuple[str, ...], run: Run, start: Start) -> None:
    failure = fake.failure(message=HOSTILE, entity=HOSTILE, error_class=HOSTILE)
    hostile = fake.numbers(
        HOSTILE, kind=HOSTILE, failed=1, failure=HOSTILE, running=fake.running(entity=HOSTILE), state=HOSTILE
    )
    answers = fake.answers_of(hostile, name=HOSTILE)
    base = f"/dispatchers/{HOSTILE}"
    answers[f"{base}/failures"] = fake.page(failure)
    frame = {"file": HOSTILE, "line": 1, "function": HOSTILE, "code": HOSTILE}
    answers[f"{base}/running?"] = {"stacks": [{"count": 20, "stack": [frame]}], "samples": 20, "idle": 0}
    answers[f"{base}/running"]["stack"] = [frame]
    start(answers=answers)

    for more in ((), ("--json",), ("--folded",)):
        ended = run(*command, *more)
        assert all(line.isprintable() for line in (ended.out + ended.err).splitlines()), ended
    assert r"\x1b[2J" in run(*command).out


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_an_answer_that_is_late_or_nonsense_is_one_line_and_exit_code_1(
    command: tuple[str, ...], run: Run, start: Start
) -> None:
    release = threading.Event()
    start("late", 1, {"": lambda handler: release.wait(30)})
    start("odd", 2, {"": fake.raw(b"nonsense\n")})
    start("half", 3, {"/process": fake.process(), "/dispatchers": fake.raw(b"")})
    try:
        ended = [run(*command, name) for name in ("late", "odd", "half")]
    finally:
        release.set()

    for each, name in zip(ended, ("late (1)", "odd (2)", "half (3)"), strict=True):
        assert (each.code, each.out) == (1, "")
        assert each.err.startswith(f"dispatcher: {name}: ")
        assert each.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("am",), "no daemon 'am': running are rm (4711), web (12); give a name, a process id, unix:PATH or a URL"),
        (("http://",), "http://: not a daemon's URL; "),
        (("ftp://host",), "ftp://host: not a daemon's URL; "),
        (("http://[::1",), "http://[::1: not a URL: "),
        (("http://host:99999",), "http://host:99999: not a URL: "),
        (("http://me:secret@host",), "a daemon's URL has no user, query or fragment; "),
        (("http://host/?token=1",), "a daemon's URL has no user, query or fragment; "),
        (("http://h\u00f6st/",), "'http://h\u00f6st/': only printable ASCII characters are allowed in a URL"),
        (("unix:",), "unix:: has no path; write unix:PATH"),
        (("unix:///nowhere/a.sock", "--ca", "x.pem"), "--ca x.pem: applies to https URLs only"),
        (("unix:///nowhere/a.sock",), ": /nowhere/a.sock: no process is listening there; "),
        (("unix:/nowhere/a.sock",), "/nowhere/a.sock: no process is listening there; "),
        (("unix:" + "x" * 500,), "AF_UNIX path too long"),
        (("http://127.0.0.1:1",), "http://127.0.0.1:1: no process is listening there; "),
        (("rm", "--ca", "x.pem"), "--ca x.pem: applies to https URLs only; "),
        (("http://127.0.0.1:1", "--ca", "x.pem"), "http://127.0.0.1:1: --ca applies to https URLs only"),
        (("https://host", "--ca", "no.pem"), "No such file or directory"),
        (("rm", "--token-file", "no.txt"), "no.txt: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(args: tuple[str, ...], message: str, run: Run, start: Start) -> None:
    start("rm", 4711)
    start("web", 12)

    ended = run("status", *args)

    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert ended.err.startswith("dispatcher: ")
    assert ended.err.count("\n") == 1
    assert "secret" not in ended.err


# -- URLs, tokens and certificates -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "base"), [("", "/ops/v1"), ("/", "/ops/v1"), ("/look", "/look/v1"), ("/look/v1/", "/look/v1")]
)
def test_a_url_has_the_path_where_the_api_is_mounted(path: str, base: str, run: Run, folder: Path) -> None:
    with fake.FakeDaemon(base=base) as daemon:
        ended = run("status", daemon.url + path)

    assert ended.code == 0, ended
    assert daemon.asked[0] == f"{base}/process"


def test_a_token_comes_from_a_file(run: Run, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "token").write_text("abc\n")

    with fake.FakeDaemon() as daemon:
        assert run("status", daemon.url, "--token-file", tmp_path / "token").code == 0

    assert {each["Authorization"] for each in daemon.headers} == {"Bearer abc"}


@pytest.mark.parametrize("content", ["", "two words", "a\nb", "x" * 5000, "\x1b[2J", "\u00e9"])
def test_what_is_no_token_is_refused(content: str, run: Run, tmp_path: Path, start: Start) -> None:
    start()
    (tmp_path / "token").write_text(content)

    ended = run("status", "--token-file", tmp_path / "token")

    assert ended.code == 2
    assert "not a token; expected the line that `dispatcher token new` prints" in ended.err


def test_a_token_is_not_sent_in_the_clear_to_another_machine(run: Run, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "token").write_text("abc")

    ended = run("status", "http://daemon.example:80", "--token-file", tmp_path / "token")

    assert (ended.code, ended.err) == (
        2,
        "dispatcher: http://daemon.example:80: a token goes to another machine over https only\n",
    )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca").make()


@pytest.fixture
def tls(authority: Authority) -> Iterator[fake.FakeDaemon]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.sign("rm"))
    with fake.FakeDaemon(tls=context) as daemon:
        yield daemon


@NEEDS_OPENSSL
def test_a_certificate_is_trusted_by_its_authority_alone(run: Run, authority: Authority, tls: fake.FakeDaemon) -> None:
    url = tls.url

    trusted, unknown = run("status", url, "--ca", authority.cert), run("status", url)
    no_pem = run("status", url, "--ca", authority.key("rm"))

    assert trusted.code == 0, trusted
    assert (unknown.code, no_pem.code) == (2, 2)
    assert unknown.err.startswith(f"dispatcher: {url}: certificate not trusted (unable to get local issuer")
    assert "; pass the CA that signed it with --ca" in unknown.err
    assert "holds no PEM certificates" in no_pem.err


@NEEDS_OPENSSL
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"], ids=repr)
def test_a_byte_now_and_then_does_not_move_the_deadline_over_tls(
    head: bytes, run: Run, authority: Authority, tls: fake.FakeDaemon
) -> None:
    release = threading.Event()
    tls.answers = {"": fake.dripping(head, release)}
    try:
        ended = run("status", tls.url, "--ca", authority.cert)
    finally:
        release.set()

    assert ended.code == 1
    assert "no answer within 0.2 s" in ended.err


def test_plain_http_where_the_daemon_speaks_tls_and_the_reverse(run: Run, folder: Path) -> None:
    with fake.FakeDaemon() as daemon:
        ended = run("status", daemon.url.replace("http:", "https:"))

    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "not an answer of the ops API: SSLError" in ended.err


@pytest.mark.usefixtures("impatient")
def test_a_listener_that_never_speaks_is_given_up_during_the_handshake(run: Run, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ended = run("status", f"https://127.0.0.1:{silent.getsockname()[1]}")

    assert ended.code == 1
    assert "no answer within 0.2 s" in ended.err


def test_the_help_imports_nothing_that_talks_to_daemons_and_only_top_imports_textual() -> None:
    code = (
        "import sys\nfrom dispatcher.cli import main\n"
        "for command in ((), ('status',), ('ps',), ('stack',)):\n"
        "    sys.argv = ['dispatcher', *command, '--help']\n"
        "    try: main()\n"
        "    except SystemExit as ended:\n"
        "        talks = [name for name in sys.modules if name in ('starlette', 'dispatcher.cli.ops.client')]\n"
        "        print(*command, ended.code, talks, 'textual' in sys.modules, file=sys.stderr)"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert ended.stderr.splitlines() == ["0 [] False", "status 0 [] False", "ps 0 [] False", "stack 0 [] False"]
