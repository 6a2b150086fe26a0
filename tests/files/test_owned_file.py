"""What may lie in place of our files: nothing endless, nothing of a stranger is read."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.files.safe import UnusableFile, read_end_owned, read_owned, read_regular

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STRANGER, COLLEAGUE = 12_345, 23_456
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


MADE: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a symbolic link": lambda path: path.symlink_to("/dev/zero"),
    "a socket": a_socket,
}


@pytest.mark.parametrize("kind", MADE)
def test_what_is_no_file_is_named_at_once(kind: str, tmp_path: Path) -> None:
    MADE[kind](tmp_path / "file")
    with pytest.raises(UnusableFile, match=f"it is {kind}"):
        read_owned(tmp_path / "file")


def test_a_device_behind_a_link_that_may_be_followed(tmp_path: Path) -> None:
    (tmp_path / "source.py").symlink_to("/dev/zero")
    with pytest.raises(UnusableFile, match="it is a device"):
        read_regular(tmp_path / "source.py", 10)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_owned(path, 10) == b"0123456789"
    assert read_end_owned(path, 4) == (b"6789", 6)
    with pytest.raises(UnusableFile, match="it has 10 bytes; at most 9 are read"):
        read_owned(path, 9)


def test_a_file_that_is_not_there_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_owned(tmp_path / "gone")


@only_root
def test_a_stranger_puts_no_file_into_our_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"{}")
    os.chown(path, STRANGER, -1)
    with pytest.raises(UnusableFile, match="it belongs to user id 12345, its folder to another"):
        read_owned(path)


@only_root
def test_a_colleagues_folder_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "file").write_bytes(b"{}")
    for path in (folder, folder / "file"):
        os.chown(path, COLLEAGUE, -1)
    assert read_owned(folder / "file") == b"{}"
