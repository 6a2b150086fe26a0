"""Files that a run needs: there and fresh, old, empty, missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightning_hangcheck.doctor.check import Subject
from lightning_hangcheck.doctor.needed import needed_files

NOW = 1_800_000_000.0


def _subject(path: object, fresh_minutes: float | None = None) -> Subject:
    return Subject(
        environment={}, run_dir=Path("runs"), needs=(str(path),), fresh_minutes=fresh_minutes
    )


@pytest.fixture
def hour_old(tmp_path: Path) -> Path:
    file = tmp_path / "tokens.bin"
    file.write_bytes(b"x" * 2000)
    os.utime(file, (NOW - 3600, NOW - 3600))
    return file


@pytest.mark.parametrize(("fresh", "status"), [(None, "ok"), (90.0, "ok"), (30.0, "failed")])
def test_age_counts_only_where_freshness_is_asked(
    hour_old: Path, fresh: float | None, status: str
) -> None:
    (check,) = needed_files(_subject(hour_old, fresh), now=NOW)
    assert check.status == status
    assert "2.0 kB, 60 minutes old" in check.sentence


def test_of_a_folder_the_newest_file_counts(hour_old: Path) -> None:
    newer = hour_old.with_name("more.bin")
    newer.write_bytes(b"x")
    os.utime(newer, (NOW - 60, NOW - 60))
    (check,) = needed_files(_subject(hour_old.parent, 30.0), now=NOW)
    assert (check.status, "1 minutes old" in check.sentence) == ("ok", True)


def test_what_is_missing_or_empty_fails(tmp_path: Path) -> None:
    (missing,) = needed_files(_subject(tmp_path / "none"), now=NOW)
    assert (missing.status, missing.remedy) == ("failed", f"ls -l {tmp_path}")
    (tmp_path / "empty").touch()
    (empty,) = needed_files(_subject(tmp_path / "empty"), now=NOW)
    assert (empty.status, "is empty" in empty.sentence) == ("failed", True)


def test_where_nothing_is_needed_nothing_is_asked() -> None:
    assert needed_files(Subject(environment={}, run_dir=Path("runs"))) == ()
