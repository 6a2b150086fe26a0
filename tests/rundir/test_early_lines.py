"""Lines that a journal begins with, of one kind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lightning_hangcheck.rundir.journal_reader import EARLY_BYTES, read_early

if TYPE_CHECKING:
    from pathlib import Path


def line(kind: str, what: str) -> str:
    return json.dumps({"at": "2026-11-20T10:24:16.000Z", "kind": kind, "what": what}) + "\n"


def test_only_lines_of_that_kind_are_read(tmp_path: Path) -> None:
    journal = tmp_path / "rank-0.jsonl"
    journal.write_text(line("offloaded", "A") + line("said", "offloaded") + '{"kind":"offloaded')
    assert [entry["what"] for entry in read_early(journal, "offloaded")] == ["A"]


def test_of_a_long_journal_the_beginning_is_read(tmp_path: Path) -> None:
    journal = tmp_path / "rank-0.jsonl"
    filler = line("said", "x" * 100) * (EARLY_BYTES // 100)
    journal.write_text(line("offloaded", "A") + filler + line("offloaded", "B"))
    assert [entry["what"] for entry in read_early(journal, "offloaded")] == ["A"]


def test_a_journal_that_cannot_be_read_has_none(tmp_path: Path) -> None:
    assert read_early(tmp_path / "gone.jsonl", "offloaded") == []
