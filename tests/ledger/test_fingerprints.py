"""Are files as they were?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightning_hangcheck.ledger.ledger_file import WHOLE_BYTES, difference, fingerprint

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_content_tells_and_time_does_not(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("1,2\n")
    before = fingerprint(str(file))
    os.utime(file, (1, 1))
    assert difference(before, fingerprint(str(file))) == ""
    file.write_text("1,3\n")
    assert difference(before, fingerprint(str(file))).endswith("(known by its whole content)")


def test_a_large_file_is_told_by_its_ends_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    with file.open("wb") as sparse:
        sparse.truncate(WHOLE_BYTES + 1)
    before = fingerprint(str(file))
    assert before.how == "size, time, first and last MiB"
    with file.open("r+b") as sparse:
        sparse.seek(WHOLE_BYTES)
        sparse.write(b"1")
    assert "has changed" in difference(before, fingerprint(str(file)))


def test_a_folder_changes_with_any_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_text("1")
    before = fingerprint(str(tmp_path))
    assert before.how == "names, sizes and times of 1 files"
    assert difference(before, fingerprint(str(tmp_path))) == ""
    (tmp_path / "inner" / "b").write_text("2")
    assert "has changed: 1 bytes then, 2 now" in difference(before, fingerprint(str(tmp_path)))


def test_what_cannot_be_looked_at_says_why(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert fingerprint(str(tmp_path / "none")).how == "it is not there"
    assert fingerprint(str(tmp_path / "pipe")).how.startswith("not looked at")
    remote = fingerprint("s3://bucket/data")
    assert (
        difference(remote, remote)
        == "s3://bucket/data cannot be compared (not looked at: it is remote)"
    )


def test_a_name_that_no_file_can_have_and_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fingerprint("a\0b").how.startswith("not read: ")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert fingerprint("raw.txt").how == "it is not there"
