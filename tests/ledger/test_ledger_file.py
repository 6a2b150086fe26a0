"""The ledger's file, whatever happens to its writers, and whether files are as they were."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger.lines import begun, ended, run

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import WHOLE_BYTES, difference, fingerprint

LINES = (begun("a", "prepare"), ended("a", val_acc=0.9), run("r1"))


@given(cut=st.integers(0, 5000), count=st.integers(1, 3))
def test_a_writer_that_is_killed_at_any_byte_loses_no_other_line(cut: int, count: int) -> None:
    """A write that was cut short leaves a beginning of its line; nothing before or after it.

    One that lacks its newline alone is no beginning: all of it is there, and it is read.
    """
    whole = [msgspec.json.encode(line) + b"\n" for line in LINES]
    before, torn = b"".join(whole[:count]), whole[0][: cut % len(whole[0].rstrip())]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger.jsonl")
        ledger.write_bytes(before + torn)
        assert ledger_file.read(ledger).lines == LINES[:count]
        ledger_file.append(ledger, LINES[2])
        after = ledger_file.read(ledger)
    assert after.lines[:count] == LINES[:count]
    assert after.lines[-1] == LINES[2]
    assert len(after.lines) + after.unreadable == count + 1 + (len(torn) > 0)


def test_the_ledger_is_for_its_owner_alone(tmp_path: Path) -> None:
    ledger = ledger_file.find_ledger(str(tmp_path / "hangcheck_runs" / "ledger.jsonl"))
    ledger_file.append(ledger, LINES[0])
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
    assert stat.S_IMODE(ledger.parent.stat().st_mode) == 0o700


def test_a_folder_that_somebody_named_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    ledger_file.append(tmp_path / "mine.jsonl", LINES[0])
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "ledger.jsonl").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        ledger_file.append(tmp_path / "ledger.jsonl", LINES[0])
    assert target.read_text() == "kept"


def test_lines_of_a_newer_version_are_counted_and_skipped(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b'{"kind":"dream","id":"1","at":""}\n\xff\xfe\n')
    ledger_file.append(ledger, LINES[0])
    pages = ledger_file.read(ledger)
    assert (pages.lines, pages.unreadable) == (LINES[:1], 2)


def test_a_line_of_an_older_version_without_later_fields_is_read(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b'{"kind":"end","id":"a","at":"","duration_s":2}\n')
    assert ledger_file.read(ledger).lines[0].id == "a"


def test_a_ledger_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableRun, match="it is a FIFO"):
        ledger_file.read(tmp_path / "pipe")
    with pytest.raises(UnreadableRun, match="there is no ledger"):
        ledger_file.read(tmp_path / "nothing")


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
