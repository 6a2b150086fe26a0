"""The journal: whole lines are read, whatever happened to the others."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from processes import until

from lightning_hangcheck.recorder.journal_writer import (
    MOST_LEFT_BYTES,
    MOST_WAITING,
    Entry,
    JournalWriter,
    encode_entry,
)
from lightning_hangcheck.report.journals import read_journal
from lightning_hangcheck.rundir import prepare_run_folder
from lightning_hangcheck.session.journal_carrier import Carrier
from lightning_hangcheck.session.session import Session, SessionFacts, open_session

if TYPE_CHECKING:
    from pathlib import Path


def lines_of(*names: str) -> bytes:
    return b"".join(encode_entry(Entry("note", {"name": name}, 0, 0), 1) for name in names)


def session_without_sidecar(tmp_path: Path, *, launched: bool = False) -> Session:
    """One in which a rank must write its journal itself, unless a launcher promised a sidecar."""
    facts = SessionFacts(
        run_dir=str(tmp_path / "run"), command="", started_at="", root_pid=0, launched=launched
    )
    return open_session(tmp_path / "shared" / "session", facts)


def writer(session: Session, rank: int | None) -> JournalWriter:
    return JournalWriter(session, partial(prepare_run_folder, session.run_folder), rank)


def names_in(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["name"] for entry in entries]


def test_an_entry_has_its_time_and_no_secret() -> None:
    fields: dict[str, object] = {"deep": [{"text": "api_key=abc"}], "type": int, "bad": "\udcff"}
    entry = json.loads(encode_entry(Entry("note", fields, 1_700_000_000_123_456_789, 5), 17))
    assert re.fullmatch(r"2023-11-14T22:13:20\.123456Z", entry["at"])
    assert (entry["ns"], entry["pid"], entry["kind"]) == (5, 17, "note")
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
    journal = writer(session, 0)
    added = 2 * MOST_WAITING
    for _ in range(added):
        journal.add("note", {"name": "a" * 100})
    assert journal.close(20)
    assert not session.run_folder.path.exists()
    batches = [path.stat().st_size for path in session.journals.iterdir()]
    assert MOST_LEFT_BYTES <= sum(batches) < 1.5 * MOST_LEFT_BYTES
    Carrier(session.journals, partial(prepare_run_folder, session.run_folder)).carry()
    assert list(session.journals.iterdir()) == []
    entries, (gap,) = read_journal(session.run_folder.journals / "rank-0.jsonl")
    lost = sum(entry.get("lines", 0) for entry in entries)
    assert lost > 0
    assert gap.why.startswith(f"{lost:,} of its lines are missing: ")
    assert len([entry for entry in entries if "name" in entry]) == added - lost


def test_a_rank_alone_writes_what_it_left_before_it_was_sure(tmp_path: Path) -> None:
    """Not only at its end: it may be killed."""
    session = session_without_sidecar(tmp_path)
    journal = writer(session, 0)
    journal.add("note", {"name": "a"})
    path = session.run_folder.journals / "rank-0.jsonl"
    until(lambda: path.exists() and names_in(read_journal(path)[0]) == ["a"], "the line")
    assert journal.close(10)


def test_a_long_journal_keeps_its_first_and_its_newest_lines(tmp_path: Path) -> None:
    session = session_without_sidecar(tmp_path)
    path = session.run_folder.journals / "rank-0.jsonl"
    lines, together = 20_000, 500
    carrier = Carrier(session.journals, partial(prepare_run_folder, session.run_folder))
    for first in range(0, lines, together):
        notes = (
            {"kind": "note", "name": f"{one:01000d}"} for one in range(first, first + together)
        )
        batch = session.journals / f"{first:020}.1.{path.name}"
        batch.write_text("".join(json.dumps(note) + "\n" for note in notes))
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
