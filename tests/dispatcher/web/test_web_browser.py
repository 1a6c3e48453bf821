"""What a real browser may do to a door for the foreign web sites that its user visits."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ...kit import until
from .conftest import MakeHost, add_user

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]

PAGE = """<!DOCTYPE html><title>waiting</title><body><form id="form" method="post" action="{door}/who" target="frame">
<input name="a" value="b"></form><iframe name="frame"></iframe><iframe src="{door}/who"></iframe><script>
const seen = [];
const attempts = [
  fetch("{door}/who").then(answer => answer.text()),
  fetch("{door}/who", {{method: "DELETE"}}).then(answer => answer.text()),
  fetch("{door}/who", {{method: "POST", mode: "no-cors", body: "{{}}"}}).then(answer => answer.text()),
];
document.getElementById("form").submit();
Promise.allSettled(attempts).then(done => {{
  document.body.dataset.seen = done.map(each => each.status + ":" + (each.value || "")).join(" ");
}});
</script>"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return tmp_path / "profile"


def browse(url: str, profile: Path, *options: str) -> str:
    """The page as the browser shows it in the end."""
    assert CHROMIUM is not None
    arguments = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=5000",
    ]
    done = subprocess.run(
        [CHROMIUM, *arguments, *options, "--dump-dom", url], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def foreign_site() -> Iterator[http.server.HTTPServer]:
    """A web site on another port, whose page is `page`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.server.page.encode()  # type: ignore[attr-defined]
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_foreign_site_changes_nothing_reads_nothing_and_frames_nothing(
    make_host: MakeHost, profile: Path, foreign_site: http.server.HTTPServer, caplog: pytest.LogCaptureFixture
) -> None:
    host = make_host(anonymous_role="admin")
    foreign_site.page = PAGE.format(door=host.url)  # type: ignore[attr-defined]

    shown = browse(f"http://localhost:{foreign_site.server_port}/", profile)

    assert 'data-seen="rejected: rejected: rejected:"' in shown
    assert "anonymous" not in shown
    until(lambda: len(audited(caplog)) >= 3)
    assert all("RESULT=FAILURE\tDESCRIPTION=403" in line for line in audited(caplog))
    assert {line.split("\t")[2] for line in audited(caplog)} == {"OPERATION=OPTIONS", "OPERATION=POST"}


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "dispatcher.audit"]


def test_a_site_whose_name_points_here_reads_nothing(make_host: MakeHost, profile: Path) -> None:
    host = make_host()
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"

    foreign = browse(f"http://evil.example:{host.port}/who", profile, rules)
    own = browse(f"http://localhost:{host.port}/who", profile, rules)

    assert "the Host header does not name this door" in foreign
    assert "anonymous" not in foreign
    assert "anonymous" in own


def test_a_browser_enters_with_the_token_as_its_password(make_host: MakeHost, profile: Path, tmp_path: Path) -> None:
    token = add_user(tmp_path / "tokens", "alice", "user")
    host = make_host(tokens_file=tmp_path / "tokens")

    assert '"alice"' in browse(f"http://alice:{token}@127.0.0.1:{host.port}/who", profile)
    assert '"alice"' not in browse(f"http://alice:wrong@127.0.0.1:{host.port}/who", profile)
