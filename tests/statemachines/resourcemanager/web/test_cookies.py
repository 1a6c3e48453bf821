"""Hadoop's cookie, and the secret that signs it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.errors import ConfigError
from statemachines.resourcemanager.web.cookies import Flaw, Signer, is_user_name, secret_of

pytestmark = pytest.mark.long

SECRET = b"0123456789abcdef"
NOW_MS = 1_700_000_000_000


def test_a_cookie_is_as_hadoop_s_signer_makes_it() -> None:
    value = Signer(SECRET).sign("alice", NOW_MS)

    token, _, signature = value.rpartition("&s=")
    assert token == f"u=alice&p=alice&t=simple&e={NOW_MS}"
    assert signature == base64.b64encode(hmac.new(SECRET, token.encode(), hashlib.sha256).digest()).decode()


@pytest.mark.parametrize("quotes", ["", '"'])
def test_a_cookie_tells_its_user_until_it_expires(quotes: str) -> None:
    signer = Signer(SECRET)
    value = quotes + signer.sign("alice", NOW_MS) + quotes

    assert signer.read(value, NOW_MS - 1) == "alice"
    assert signer.read(value, NOW_MS) is Flaw.EXPIRED


def test_a_cookie_of_another_secret_or_with_another_user_is_forged() -> None:
    value = Signer(SECRET).sign("alice", NOW_MS)

    assert Signer(b"another secret..").read(value, 0) is Flaw.FORGED
    assert Signer(SECRET).read(value.replace("u=alice", "u=admin"), 0) is Flaw.FORGED
    assert Signer(SECRET).read(value.replace("e=1", "e=9"), 0) is Flaw.FORGED


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    assert Signer(SECRET).read(text, 0) is Flaw.FORGED


@given(st.text(min_size=1, max_size=30).filter(is_user_name), st.integers(1, 2**62))
def test_every_user_s_name_survives_its_cookie(name: str, expires_ms: int) -> None:
    signer = Signer(SECRET)

    assert signer.read(signer.sign(name, expires_ms), 0) == name


@pytest.mark.parametrize("name", ["alice", "dr.who", "alice@EXAMPLE.COM", "nn/host@REALM", "a-b_c+d$", "x" * 255])
def test_usual_names_are_users(name: str) -> None:
    assert is_user_name(name)


@pytest.mark.parametrize(
    "name", ["", "a b", "a&b", "a;b", 'a"b', "a\nb", "a,b", "a=b", "é", "a%20", "x" * 256, "\ud800"]
)
def test_names_that_a_cookie_or_a_list_cannot_hold_are_no_users(name: str) -> None:
    assert not is_user_name(name)


# -- the secret --------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_made_for_its_owner_only_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "secret"

    first, second = secret_of(path), secret_of(path)

    assert first == second
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["secret"]


def test_without_a_file_every_start_has_another_secret() -> None:
    assert secret_of(None) != secret_of(None)


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [(SECRET, 0o640, "chmod 0600"), (b"short", 0o600, "16 to"), (b"", 0o600, "16 to"), (b"x" * 5000, 0o600, "16 to")],
)
def test_an_unsound_file_is_an_error(tmp_path: Path, content: bytes, mode: int, said: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)

    with pytest.raises(ConfigError, match=f"web.cookie_secret_file .*{said}"):
        secret_of(path)


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        secret_of(tmp_path / "nowhere" / "secret")
