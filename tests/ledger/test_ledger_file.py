"""The ledger's file: what is in it stays, whatever happens to its writers."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger.lines import begun, ended, run

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.ledger import ledger_file

LINES = (begun("a", "prepare"), ended("a", val_acc=0.9), run("r1"))
APPEND_FOR_EVER = """
import sys
from pathlib import Path
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import Reused
number = 0
while True:
    number += 1
    line = Reused(id=sys.argv[2], at="", phase=str(number), why="x" * 2000)
    ledger_file.append(Path(sys.argv[1]), line)
    print(number, flush=True)
"""


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


def test_a_writer_that_is_really_killed_keeps_what_it_had_told(tmp_path: Path) -> None:
    ledger = tmp_path / "hangcheck_runs" / "ledger.jsonl"
    writers = [_writer(ledger, name) for name in ("first", "second")]
    told = {}
    for name, writer in zip(("first", "second"), writers, strict=True):
        assert writer.stdout is not None
        told[name] = [int(writer.stdout.readline()) for _ in range(40)][-1]
    for writer in writers:
        writer.send_signal(signal.SIGKILL)
        writer.communicate(timeout=120)
    lines = ledger_file.read(ledger).lines
    for name, most in told.items():
        numbers = [int(line.phase) for line in lines if line.id == name]  # type: ignore[union-attr]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= most


def _writer(ledger: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", APPEND_FOR_EVER, str(ledger), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


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
