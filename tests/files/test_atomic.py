"""Files that appear whole, or not at all."""

from __future__ import annotations

import stat
import threading
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.files.safe import create_once, make_private_folder, write_atomically

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    write_atomically(path, b"first")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    path.mkdir()
    (path / "in-the-way").touch()
    with pytest.raises(OSError, match=r"verdict\.json"):
        write_atomically(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_of_several_writers_one_wins_and_all_agree(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    assert create_once(path, b"first") == b"first"
    assert create_once(path, b"second") == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_beside_a_writer_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    texts = [bytes([letter]) * 50_000 for letter in b"ab"]
    write_atomically(path, texts[0])
    seen = set()

    def read() -> None:
        for _ in range(300):
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(100):
        write_atomically(path, texts[turn % 2])
    reader.join(30)
    assert seen <= set(texts)


def test_a_private_folder_is_the_owners_alone(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    make_private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
