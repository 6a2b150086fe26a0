"""Files that phases made, as the ledger has them: unchanged, changed, of two versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ledger.lines import begun, ended

from lightning_hangcheck.doctor.check import Subject
from lightning_hangcheck.doctor.needed import files_belong_together
from lightning_hangcheck.ledger import book
from lightning_hangcheck.ledger.book import fingerprint

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.check import Finding


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two phases, each of which made one file from the same one."""
    monkeypatch.chdir(tmp_path)
    Path("raw.txt").write_text("first")
    for name in ("tokens.bin", "labels.csv"):
        make(name)
    return tmp_path


def make(name: str) -> None:
    Path(name).write_text(f"made of {Path('raw.txt').read_text()}")
    ledger = book.find_ledger("ledger.jsonl")
    book.append(ledger, begun(name, f"make {name}", fingerprint("raw.txt")))
    book.append(ledger, ended(name, fingerprint(name)))


def checks(*needs: str) -> tuple[Finding, ...]:
    environment = {"HANGCHECK_LEDGER": "ledger.jsonl"}
    return files_belong_together(
        Subject(environment=environment, run_dir=Path("runs"), needs=needs)
    )


@pytest.mark.usefixtures("work")
def test_files_as_their_phases_left_them_belong_together() -> None:
    (check,) = checks("tokens.bin", "labels.csv")
    assert check.status == "ok"
    assert "labels.csv by phase make labels.csv" in check.sentence


@pytest.mark.usefixtures("work")
def test_a_file_that_was_changed_since_is_told() -> None:
    Path("tokens.bin").write_text("somebody's own")
    (check,) = checks("tokens.bin", "labels.csv")
    assert check.status == "warning"
    assert "since phase make tokens.bin made it" in check.sentence
    assert check.remedy == "hangcheck ledger check 'make tokens.bin'"


@pytest.mark.usefixtures("work")
def test_files_of_two_versions_of_what_they_were_made_from_are_told() -> None:
    Path("raw.txt").write_text("second")
    make("labels.csv")
    together, old = checks("tokens.bin", "labels.csv")
    assert "tokens.bin and labels.csv were made from two versions of " in together.sentence
    assert old.sentence.startswith("tokens.bin was made from another version: ")


@pytest.mark.usefixtures("work")
def test_files_that_no_phase_made_are_not_asked_about() -> None:
    assert checks("raw.txt") == checks() == ()
    Path("ledger.jsonl").unlink()
    assert checks("tokens.bin") == ()
