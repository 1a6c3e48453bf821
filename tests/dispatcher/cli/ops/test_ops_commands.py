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


ANSWERS: dict[str, Callable[[], fake.Answers]] = {
    "calm": fake.calm,
    "flooded": fake.flooded,
    "hanging": fake.hanging,
    "failing": fake.failing,
    "one": lambda: fake.answers_of(fake.numbers()),
    "many": lambda: fake.answers_of(*(fake.numbers(f"d{number}") for number in range(300))),
    "letters": lambda: fake.answers_of(fake.numbers(failed=3, retrying=1200, dead_letters={"count": 3, "lost": 1})),
    "checked": lambda: fake.answers_of(
        fake.numbers(), health={"status": "check:db", "reasons": [{"reason": "check:db"}]}
    ),
    "degraded": lambda: fake.answers_of(fake.numbers(), health=DEGRADED),
    "half_gone": lambda: {path: each for path, each in fake.calm().items() if path != "/dispatchers/scheduler/running"},
}
HANDLER = (
    "+|rm/nodes.py:41 in handle: self._heartbeat(event.node)| / "
    "+|rm/nodes.py:77 in _heartbeat: self._store.save(node)| / +|store/sqlite.py:130 in save: with self._connection:|"
)
ACQUIRE = "+|store/sqlite.py:58 in __enter__: self._lock.acquire()|"
SAYS = {
    "ps has a row for a stuck daemon": "hanging 0 ps -> |NAME PID STATUS UPTIME DISPATCHERS FLOODER QUEUED RATE FAILED "
    "FAIL/s SCHEDULED| / +|rm 4711 stuck 3 d 4 h central, scheduler node_17 1,204 11/s 0 0/s 0|",
    "ps names a few of many dispatchers: with hundreds, the row had thousands of columns": "many 0 ps ->  d0, d1, d2, "
    "d3, d4, and 295 more ",
    "ps says that a daemon is degraded": "degraded 0 ps -> |rm 4711 degraded ",
    "status of a ready daemon": "calm 0 status -> |resourcemanager: pid 4711, up 3 d 4 h, cpu 13 m 32 s, memory 121 "
    "MB, 14 threads| / +|ready| / +|| / +|central: AsyncDispatcher STARTED, drained| / +|queue 0| / +|rate 12/s; 11/s "
    "in 10 s, 11/s in 60 s| / +|events 41,201 accepted, 41,201 handled, 0 failed| / +|running nothing|",
    "status counts what is retrying and the dead letters": "letters 0 status -> |events 41,201 accepted, 41,201 "
    "handled, 3 failed, 1,200 retrying, 3 dead letters, 1 of them lost|",
    "status shows who floods, and failures a second": "flooded 0 status -> |queue 12,000, the oldest for 3.0 s, most "
    "for node_17: 12,000| / |failing 3/s; 2.5/s in 10 s, 1/s in 60 s|",
    "status of a stuck daemon shows the last frames of its handler": "hanging 1 status rm -> |not ready: stuck "
    "(scheduler, 61.2 s)| / |running NodeEventType.UPDATE of node_17 for 61.2 s| / "
    f"{HANDLER} / {ACQUIRE}",
    "status shows the last failure, and why a dispatcher failed": "failing 1 status -> |not ready: failed (writer)| / "
    "AppEventType.KILL of app_1: InvalidStateTransitionError: RMApp app_1: no transition / |failed JournalError: "
    "/var/lib/rm/journal: No space left on device|",
    "status takes the daemon's own word for it": "checked 1 status -> +|not ready: check:db|",
    "status tells signs of trouble of a daemon that is ready": "degraded 0 status -> +|ready, degraded: queue_grows "
    "(central: 4,800 events in the queue)|",
    "status shows a dispatcher that ends between two answers as it was": "half_gone 0 status -> |scheduler: "
    "AsyncDispatcher STARTED",
    "stack prints each stack once with its count": "hanging 0 stack --dispatcher scheduler -> |scheduler: runs "
    "NodeEventType.UPDATE of node_17, for 61.2 s; 20 samples| / +|17 of 20| / "
    f"+|(3 frames of the dispatcher)| / {HANDLER} / {ACQUIRE} / +|3 of 20| / "
    f"+|(3 frames of the dispatcher)| / {HANDLER}",
    "stack of an idle dispatcher": "one 0 stack -> |central: runs nothing; 20 samples| / +|20 of 20| / +|idle|",
    "stack --folded prints what flame graphs take": "hanging 0 stack --folded -d scheduler -> "
    "|scheduler;python3.13/threading.py:_bootstrap;mailbox/processor.py:run; /  17| / + 3|",
    "stack names the dispatchers that there are": "calm 2 stack -d other -> rm (4711): no dispatcher 'other'; it has "
    "central, scheduler",
    "top --once prints a frame as text": "hanging 0 top --once -> stuck (scheduler, 61.2 s)| / RUNNING for 61.2 s: "
    "NodeEventType.UPDATE of node_17",
    "top --json is for a single look": "calm 2 top --json -> --json prints a single look: add --once",
    "top without a terminal refers to --once": "calm 2 top -> top needs a terminal as standard input and standard "
    "error; --once prints a single frame",
}
"""`ANSWERS CODE COMMAND -> LINES` of the output or, with code 2, the one line on standard error."""


@pytest.mark.parametrize("row", SAYS.values(), ids=SAYS)
def test_a_command_says(row: str, run: Run, start: Start) -> None:
    given, _, lines = row.partition(" -> ")
    answers, code, *command = given.split()
    start(answers=ANSWERS[answers]())

    ended = run(*command)

    assert (ended.code, ended.err) == (int(code), f"dispatcher: {lines}\n" if code == "2" else ""), ended
    assert_lines(ended.out.splitlines(), "" if code == "2" else lines)


# -- ps ----------------------------------------------------------------------------------------------------------------


def test_ps_without_a_daemon_says_so(run: Run, folder: Path) -> None:
    ended = run("ps")

    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"no running daemon found for this user; a daemon opens its socket in {folder}\n"


@pytest.mark.usefixtures("impatient")
def test_ps_lists_daemons_that_do_not_answer_and_names_sockets_that_were_left(
    run: Run, start: Start, folder: Path, release: threading.Event
) -> None:
    start("late", 1, {"": lambda handler: release.wait(30)})
    start("odd", 2, {"": fake.raw(b"nonsense\n")})
    start("dead", 3).end()

    ended = run("ps")

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
    start("ResourceManager", 4711, fake.flooded())

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
    start(answers=ANSWERS["degraded"]())

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


# -- which daemon a name, a process id or nothing means ----------------------------------------------------------------

Listen = Callable[[str], None]


@pytest.fixture
def listen(start: Start) -> Listen:
    """Starts daemons by their names and process ids; one that ends in `!` is gone, as after a kill."""

    def daemons(texts: str) -> None:
        for text in texts.split():
            name, _, pid = text.rstrip("!").partition(":")
            daemon = start(name, int(pid), fake.answers_of(pid=int(pid)))
            if text.endswith("!"):
                daemon.end()

    return daemons


@pytest.mark.parametrize(
    ("daemons", "wanted", "pid"),
    [
        ("rm:12", (), 12),
        ("node-manager:7 rm:12", ("node-manager",), 7),
        ("node-manager:7 rm:12", ("12",), 12),
        ("rm:7! rm:12", (), 12),
        ("rm:7! rm:12", ("rm",), 12),
    ],
)
def test_a_daemon_is_meant_by_its_name_or_process_id_or_as_the_only_one_that_answers(
    daemons: str, wanted: tuple[str, ...], pid: int, listen: Listen, run: Run
) -> None:
    listen(daemons)

    assert json.loads(run("status", "--json", *wanted).out)["process"]["pid"] == pid


@pytest.mark.parametrize(
    ("daemons", "wanted", "message"),
    [
        ("rm:7 rm:12 web:13", (), "several daemons are running: rm (7), rm (12), web (13); give one's name or"),
        ("rm:7 rm:12 web:13", ("rm",), "several daemons are named 'rm': rm (7), rm (12); give"),
        (
            "rm:7 rm:12 web:13",
            ("am",),
            "no daemon 'am': running are rm (7), rm (12), web (13); give a name, a process id, unix:PATH or a URL",
        ),
        ("rm:7!", (), "rm (7): no process is listening there; the daemon has stopped or is still starting"),
        ("", (), "no running daemon found for this user"),
        ("", ("rm",), "no running daemon found for this user"),
        ("", ("12",), "no running daemon found for this user"),
        (" ".join(f"d:{number}" for number in range(1, 31)), (), "d (10), and 20 more; give"),
    ],
)
def test_where_it_is_not_clear_the_message_lists_what_there_is(
    daemons: str, wanted: tuple[str, ...], message: str, listen: Listen, run: Run
) -> None:
    listen(daemons)

    ended = run("status", *wanted)

    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err


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
    command: tuple[str, ...], run: Run, start: Start, release: threading.Event
) -> None:
    start("late", 1, {"": lambda handler: release.wait(30)})
    start("odd", 2, {"": fake.raw(b"nonsense\n")})
    start("half", 3, {"/process": fake.process(), "/dispatchers": fake.raw(b"")})

    ended = [run(*command, name) for name in ("late", "odd", "half")]

    for each, name in zip(ended, ("late (1)", "odd (2)", "half (3)"), strict=True):
        assert (each.code, each.out) == (1, "")
        assert each.err.startswith(f"dispatcher: {name}: ")
        assert each.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
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
    head: bytes, run: Run, authority: Authority, tls: fake.FakeDaemon, release: threading.Event
) -> None:
    tls.answers = {"": fake.dripping(head, release)}

    ended = run("status", tls.url, "--ca", authority.cert)

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
