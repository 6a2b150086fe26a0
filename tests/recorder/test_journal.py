"""The journal: whole lines are read, whatever happened to the others."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from processes import until
from recorded_run import carrier_of, job_session

from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.recorder.journal_writer import (
    MOST_SEGMENTS,
    MOST_WAITING,
    SEGMENT_BYTES,
    JournalWriter,
    encode_entry,
)
from lightning_hangcheck.report.journals import read_journal
from lightning_hangcheck.rundir import prepare_run_folder
from lightning_hangcheck.session.journal_carrier import HEAD, Carrier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Program

    from lightning_hangcheck.session.session import Session


def lines_of(*names: str) -> bytes:
    return b"".join(encode_entry("note", {"name": name}, 1) for name in names)


def session_without_sidecar(tmp_path: Path, *, launched: bool = False) -> Session:
    """One in which a rank must write its journal itself, unless a launcher promised a sidecar."""
    return job_session(tmp_path, launched=launched, root_pid=0)


def names_in(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["name"] for entry in entries]


def test_an_entry_has_its_time_and_no_secret() -> None:
    fields: dict[str, object] = {"deep": [{"text": "api_key=abc"}], "type": int, "bad": "\udcff"}
    before = datetime.now(timezone.utc), time.monotonic_ns()
    entry = json.loads(encode_entry("note", fields, 17))
    after = datetime.now(timezone.utc), time.monotonic_ns()
    assert re.fullmatch(r"20..-..-..T..:..:..\.\d{6}Z", entry["at"])
    assert (
        before[0] - timedelta(microseconds=1)
        <= datetime.strptime(entry["at"], "%Y-%m-%dT%H:%M:%S.%f%z")
        <= after[0]
    )
    assert before[1] <= entry["ns"] <= after[1]
    assert (entry["pid"], entry["kind"]) == (17, "note")
    assert entry["deep"] == [{"text": "api_key=[redacted]"}]
    assert entry["type"] == "<class 'int'>"
    assert entry["bad"] == "?"


def test_torn_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rank-3.jsonl"
    path.write_bytes(lines_of("a") + b"[1]\n\xff\xfe\n" + lines_of("b") + b'{"kind"')
    entries, (gap,) = read_journal(path)
    assert names_in(entries) == ["a", "b"]
    assert (gap.what, gap.rank) == ("journal rank-3.jsonl", 3)
    assert gap.why.startswith("3 of its lines are torn")


def test_what_waits_for_a_sidecar_is_bounded_and_what_finds_no_room_is_counted(
    tmp_path: Path,
) -> None:
    """A launcher promised a sidecar, and storage keeps it busy: the end comes all the same."""
    session = session_without_sidecar(tmp_path, launched=True)
    journal = JournalWriter(session, 0)
    added = 2 * MOST_WAITING
    for _ in range(added):
        journal.add("note", {"name": "a" * 100})
    journal.close(20)
    assert not session.run_folder.path.exists()
    left = [path.stat().st_size for path in session.journals.iterdir()]
    assert sum(left) < 1.2 * MOST_SEGMENTS * SEGMENT_BYTES
    carrier = carrier_of(session)
    carrier.carry()
    assert len(list(session.journals.iterdir())) == 1, "the newest, as its process lives"
    carrier.carry()
    entries, (gap,) = read_journal(session.run_folder.journals / "rank-0.jsonl")
    lost = sum(entry.get("lines", 0) for entry in entries)
    assert lost > 0
    assert gap.why.startswith(f"{lost:,} of its lines are missing: ")
    assert len([entry for entry in entries if "name" in entry]) == added - lost


def test_a_rank_alone_writes_what_it_left_before_it_was_sure(tmp_path: Path) -> None:
    """Not only at its end: it may be killed."""
    session = session_without_sidecar(tmp_path)
    journal = JournalWriter(session, 0)
    journal.add("note", {"name": "a"})
    path = session.run_folder.journals / "rank-0.jsonl"
    until(lambda: path.exists() and names_in(read_journal(path)[0]) == ["a"], "the line")
    journal.close(10)


def test_lines_that_could_not_be_written_are_written_once_later(tmp_path: Path) -> None:
    """Also by another carrier: a sidecar may be replaced."""
    session = session_without_sidecar(tmp_path, launched=True)
    journal = JournalWriter(session, 0)
    seen: list[bytes] = []
    prepare = partial(prepare_run_folder, session.run_folder)
    session.run_folder.path.touch()
    for name in "ab":
        journal.add("note", {"name": name})
        with pytest.raises(UnpreparedRunFolder):
            Carrier(session.journals, prepare, seen.append).carry()
    session.run_folder.path.unlink()
    for _ in range(2):
        Carrier(session.journals, prepare, seen.append).carry()
    journal.add("note", {"name": "c"})
    Carrier(session.journals, prepare, seen.append).carry()
    entries, gaps = read_journal(session.run_folder.journals / "rank-0.jsonl")
    assert (names_in(entries), gaps) == (["a", "b", "c"], ())
    assert [lines.count(b"\n") for lines in seen] == [2, 1]


def test_lines_wait_while_shared_memory_gives_no_room(tmp_path: Path) -> None:
    session = session_without_sidecar(tmp_path, launched=True)
    journal = JournalWriter(session, 0)
    session.journals.rmdir()
    journal.add("note", {"name": "a"})
    session.journals.mkdir()
    journal.add("note", {"name": "b"})
    until(lambda: journal.flush() or list(session.journals.iterdir()), "both lines")
    carrier_of(session).carry()
    entries, gaps = read_journal(session.run_folder.journals / "rank-0.jsonl")
    assert (names_in(entries), gaps) == (["a", "b"], ())


def test_a_process_that_is_killed_leaves_all_its_lines(
    start: Callable[..., Program], session: Session
) -> None:
    """Those of a process that does not know its rank yet, too."""
    lines = "import lightning_hangcheck as hc\nfor name in 'abc':\n    hc.checkpoint(name)\n"
    kill = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    for rank, name in (("0", "rank-0"), (None, "pid-{}")):
        program = start(lines + kill, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=rank and "2").finish()
        entries = program.journal(name.format(program.process.pid))
        assert names_in(entries[1:]) == ["a", "b", "c"]
    assert list(session.journals.iterdir()) == []


def test_a_long_journal_keeps_its_first_and_its_newest_lines(tmp_path: Path) -> None:
    session = session_without_sidecar(tmp_path)
    path = session.run_folder.journals / "rank-0.jsonl"
    lines, together = 20_000, 500
    carrier = carrier_of(session)
    for first in range(0, lines, together):
        notes = (
            {"kind": "note", "name": f"{one:01000d}"} for one in range(first, first + together)
        )
        data = "".join(json.dumps(note) + "\n" for note in notes).encode()
        segment = session.journals / f"{first:020}.1.{path.name}"
        segment.write_bytes(HEAD.pack(HEAD.size + len(data), 0) + data)
        carrier.carry()
        assert path.stat().st_size < 10 * 2**20
    entries, (gap,) = read_journal(path)
    (left_out,) = (entry["lines"] for entry in entries if entry["kind"] == "dropped")
    assert gap.why.startswith(f"{left_out:,} of its lines are missing: a long journal keeps")
    kept = [int(entry["name"]) for entry in entries if entry["kind"] == "note"]
    assert kept == sorted(kept)
    assert len(kept) == lines - left_out
    assert kept[:900] == list(range(900))
    assert kept[-3_500:] == list(range(lines - 3_500, lines))
