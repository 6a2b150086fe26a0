"""A meeting place among strangers: only what has the job's seal counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.nodes.meeting_place import SEAL_BYTES, FolderPlace, SealedPlace

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "0123456789abcdef"  # noqa: S105 - of this test alone


@pytest.fixture
def open_to_all(tmp_path: Path) -> FolderPlace:
    return FolderPlace(tmp_path / "meet")


def test_what_one_node_leaves_another_reads(open_to_all: FolderPlace) -> None:
    SealedPlace(open_to_all, SECRET, "job").post("node-1", b"word")
    assert SealedPlace(open_to_all, SECRET, "job").look("node-1") == b"word"


def test_what_nobody_left_is_not_there(open_to_all: FolderPlace) -> None:
    assert SealedPlace(open_to_all, SECRET, "job").look("node-1") is None


@pytest.mark.parametrize(
    ("secret", "job"), [("another secret 99", "job"), (SECRET, "another job"), ("", "job")]
)
def test_the_word_of_another_secret_or_job_does_not_count(
    secret: str, job: str, open_to_all: FolderPlace, capfd: pytest.CaptureFixture[str]
) -> None:
    key = f"of-{secret}-{job}"
    SealedPlace(open_to_all, secret, job).post(key, b"word")
    assert SealedPlace(open_to_all, SECRET, "job").look(key) is None
    assert f"{key} is not used, it has no seal of this job; give all" in capfd.readouterr().err


def test_a_word_counts_under_its_own_key_only(open_to_all: FolderPlace) -> None:
    """A stranger cannot say for node 2 what node 1 said."""
    place = SealedPlace(open_to_all, SECRET, "job")
    place.post("node-1", b"word")
    open_to_all.post("node-2", open_to_all.look("node-1") or b"")
    assert place.look("node-2") is None


@pytest.mark.parametrize("cut", range(SEAL_BYTES + 4))
def test_a_word_that_was_cut_does_not_count(cut: int, open_to_all: FolderPlace) -> None:
    place = SealedPlace(open_to_all, SECRET, "job")
    place.post("node-1", b"word")
    open_to_all.post("node-1", (open_to_all.look("node-1") or b"")[:cut])
    assert place.look("node-1") is None


def test_the_secret_is_not_in_what_is_left(open_to_all: FolderPlace, tmp_path: Path) -> None:
    """A store of torch's shows all of it to whoever asks."""
    SealedPlace(open_to_all, SECRET, "job").post("node-1", b"word")
    for file in tmp_path.rglob("*"):
        assert SECRET not in file.name
        assert file.is_dir() or SECRET.encode() not in file.read_bytes()
