"""Which files are logs, and in which order they are read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatcher import DispatcherError
from pipeline.yarnlog.files import daemon_of, log_files, read_log

from .written import records


def touch(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


IN_ORDER = """
yarn-nodemanager.log.2015-10-18 yarn-nodemanager.log.2015-10-19 yarn-nodemanager.log yarn-resourcemanager.log.10.gz
yarn-resourcemanager.log.2 yarn-resourcemanager.log.1 yarn-resourcemanager.log container_1/syslog
"""
NO_LOGS = "yarn-nodemanager.out .hidden.log .trash/old.log container_1/stdout"


def test_of_a_folder_its_logs_are_read_from_the_oldest_to_the_newest(tmp_path: Path) -> None:
    touch(tmp_path, *sorted(IN_ORDER.split()), *NO_LOGS.split())

    assert [str(file.relative_to(tmp_path)) for file in log_files([tmp_path])] == IN_ORDER.split()


def test_a_named_file_is_read_once_whatever_its_name(tmp_path: Path) -> None:
    touch(tmp_path, "notes", "a.log")

    found = log_files([tmp_path / "notes", tmp_path, tmp_path / "a.log"])

    assert found == [tmp_path / "notes", tmp_path / "a.log"]


@pytest.mark.parametrize(
    ("names", "why"),
    [(["none"], "none: no such file or folder"), (["empty"], "no log in this folder"), ([], "no path is given")],
)
def test_paths_without_a_log_are_an_error(tmp_path: Path, names: list[str], why: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(DispatcherError, match=why):
        log_files([tmp_path / name for name in names])


def zstandard(content: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").compress(content))


PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard}


@pytest.mark.parametrize(("suffix", "pack"), PACKERS.items(), ids=PACKERS)
def test_a_packed_log_is_unpacked(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    file = tmp_path / f"a.log.1{suffix}"
    file.write_bytes(pack(b"one\r\nt") + pack(b"wo"))

    assert list(read_log(file)) == [(1, "one"), (2, "two")]
    assert (log_files([tmp_path]), daemon_of(file)) == ([file], "a.log")


@pytest.mark.parametrize("damage", ["not packed", "cut off", "damaged"])
@pytest.mark.parametrize(("suffix", "pack"), PACKERS.items(), ids=PACKERS)
def test_a_file_that_is_not_packed_as_its_name_says_is_an_error(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], damage: str
) -> None:
    packed = pack(os.urandom(3000))
    contents = {
        "not packed": b"no such format at all",
        "cut off": packed[:-9],
        "damaged": bytes([*packed[:20], *(byte ^ 255 for byte in packed[20:90]), *packed[90:]]),
    }
    file = tmp_path / f"a.log{suffix}"
    file.write_bytes(contents[damage])
    if (suffix, damage) == (".zst", "damaged"):  # zstd checks no sums by default: the frame's header is damaged
        file.write_bytes(packed[:4] + b"\xff" * 8 + packed[12:])

    with pytest.raises(DispatcherError, match=rf"a\.log{suffix}: cannot be read: ."):
        list(read_log(file))


def test_without_a_package_for_zstandard_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("pipeline.yarnlog.opening.import_module", import_module)
    file = tmp_path / "a.log.zst"
    file.touch()

    with pytest.raises(DispatcherError, match=r"zstandard is not installed. Install it with: pip install .*\[cli\]"):
        list(read_log(file))


LINE = "2021-11-23 10:06:36,708 INFO a.RMAppImpl: äpp_1 State change from NEW to NEW_SAVING on event = START"


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-16-le with a mark", "utf-16-be with a mark", "utf-8-sig"]
)
def test_a_log_in_another_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    encoding, _, mark = encoding.replace(" with a mark", " \ufeff").partition(" ")
    file = tmp_path / "a.log.gz"
    file.write_bytes(gzip.compress(f"{mark}{LINE}\r\nnext\u0a0a\n{LINE}".encode(encoding)))

    found = list(read_log(file))

    assert [one.text for one in found] == [f"{LINE}\nnext\u0a0a", LINE]
    assert [one.message.entity for one in records(found)] == ["äpp_1", "äpp_1"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_line_without_an_end_comes_in_pieces(tmp_path: Path, encoding: str) -> None:
    """`/dev/zero` has no line that ends."""
    path = tmp_path / "a.log"
    path.write_bytes(("a" * (5 << 20) + "\nb\n").encode(encoding))

    assert [one.text for one in read_log(path)] == [*["a" * (1 << 20)] * 5, "", "b"]


def test_a_log_in_utf_16_that_is_cut_off_is_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(f"{LINE}\n{LINE}".encode("utf-16")[:-1])

    assert len(list(read_log(file))) == 2


def test_a_file_that_may_not_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        with pytest.raises(DispatcherError, match="cannot be read: Is a directory"):
            list(read_log(tmp_path))
        return
    file = tmp_path / "a.log"
    file.touch(mode=0)

    with pytest.raises(DispatcherError, match=r"a\.log: cannot be read: Permission denied"):
        list(read_log(file))


@pytest.mark.parametrize(
    ("name", "daemon"),
    [
        ("/logs/yarn-rm-host.log", "yarn-rm-host.log"),
        ("/logs/yarn-rm-host.log.12", "yarn-rm-host.log"),
        ("/logs/yarn-rm-host.log.2015-10-18.gz", "yarn-rm-host.log"),
        ("/logs/container_1/syslog", "syslog"),
        ("/logs/rm.txt", "rm.txt"),
    ],
)
def test_all_files_of_a_log_are_of_one_daemon(name: str, daemon: str) -> None:
    assert daemon_of(name) == daemon
