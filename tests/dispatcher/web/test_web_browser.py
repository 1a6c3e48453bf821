"""What a real browser may do to a door for the foreign web sites that its user visits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ...kit import until
from .conftest import MakeHost, add_user, answering, audited

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


def browse(url: str, folder: Path, *options: str) -> str:
    """The page as the browser shows it in the end."""
    assert CHROMIUM is not None
    arguments = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder}/profile",
        "--virtual-time-budget=5000",
    ]
    done = subprocess.run(
        [CHROMIUM, *arguments, *options, "--dump-dom", url], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_foreign_site_changes_nothing_reads_nothing_and_frames_nothing(
    make_host: MakeHost, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = make_host(anonymous_role="admin")
    page = PAGE.format(door=host.url).encode()

    with answering(lambda _: (200, {"Content-Type": "text/html"}, page)) as port:
        shown = browse(f"http://localhost:{port}/", tmp_path)

    assert 'data-seen="rejected: rejected: rejected:"' in shown
    assert "anonymous" not in shown
    until(lambda: len(audited(caplog)) >= 3)
    assert all("RESULT=FAILURE\tDESCRIPTION=403" in line for line in audited(caplog))
    assert {line.split("\t")[2] for line in audited(caplog)} == {"OPERATION=OPTIONS", "OPERATION=POST"}


def test_a_site_whose_name_points_here_reads_nothing(make_host: MakeHost, tmp_path: Path) -> None:
    host = make_host()
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"

    foreign = browse(f"http://evil.example:{host.port}/who", tmp_path, rules)
    own = browse(f"http://localhost:{host.port}/who", tmp_path, rules)

    assert "the Host header does not name this door" in foreign
    assert "anonymous" not in foreign
    assert "anonymous" in own


def test_a_browser_enters_with_the_token_as_its_password(make_host: MakeHost, tmp_path: Path) -> None:
    token = add_user(tmp_path / "tokens", "alice", "user")
    host = make_host(tokens_file=tmp_path / "tokens")

    assert '"alice"' in browse(f"http://alice:{token}@127.0.0.1:{host.port}/who", tmp_path)
    assert '"alice"' not in browse(f"http://alice:wrong@127.0.0.1:{host.port}/who", tmp_path)
