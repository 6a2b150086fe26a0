"""Places of checkpoints: folders of this machine, and a store that only fsspec knows."""

from __future__ import annotations

import re
import resource
import shutil
from typing import TYPE_CHECKING

import fsspec
import pytest
from msgspec.structs import replace
from subjects import saving, subject

from lightning_hangcheck.doctor.storing import (
    checkpoints,
    largest_checkpoint,
    writing_checkpoints,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for step in ("step_1", "step_2"):
        (tmp_path / step).mkdir()
        (tmp_path / step / "model.pt").write_bytes(b"x" * 1000)
    return tmp_path


def test_what_is_expected_and_there_is_fine(saved: Path) -> None:
    place, expected = checkpoints(saving(saved, "step_*/model.pt"))
    assert (place.status, expected.status) == ("ok", "ok")
    assert "2 files, 2.0 kB" in expected.sentence


def test_what_is_there_is_shown_as_a_tree(saved: Path) -> None:
    (place,) = checkpoints(saving(saved))
    assert [line.split()[0] for line in place.details] == [
        "step_1/",
        "model.pt",
        "step_2/",
        "model.pt",
    ]


def test_the_depth_may_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c" / "d").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c" / "d" / "model.pt").write_bytes(b"x")
    (shallow,) = checkpoints(saving(tmp_path))
    (deep,) = checkpoints(replace(saving(tmp_path), depth=5))
    assert (len(shallow.details), len(deep.details)) == (0, 5)


def test_our_own_trial_is_not_shown(saved: Path) -> None:
    (saved / "hangcheck-doctor-1").touch()
    (place,) = checkpoints(saving(saved))
    assert "2 files" in place.sentence


def test_what_is_expected_and_missing_fails_and_shows_what_is_there(saved: Path) -> None:
    _, missing = checkpoints(saving(saved, "step_final/*"))
    assert missing.status == "failed"
    assert "step_1/model.pt" in missing.sentence


@pytest.mark.parametrize(("expect", "status"), [((), "warning"), (("*",), "failed")])
def test_a_place_that_is_not_there_is_told(
    tmp_path: Path, expect: tuple[str, ...], status: str
) -> None:
    (check,) = checkpoints(saving(tmp_path / "typo", *expect))
    assert check.status == status
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("no such folder", "mkdir -p 'no such folder'"),
        ("remote:path", "rclone lsf remote:path"),
        ("memory://nothing", "correct its spelling, or leave it to the first run"),
    ],
)
def test_the_remedy_fits_the_kind_of_place(place: str, remedy: str) -> None:
    (check,) = checkpoints(saving(place))
    assert remedy in check.remedy
    assert ("mkdir" in check.remedy) is ("mkdir" in remedy)


def test_a_folder_is_written_read_and_left_as_it_was(saved: Path) -> None:
    (check,) = writing_checkpoints(saving(saved))
    assert check.status == "ok"
    rate = r"[\d.]+ [kMG]B/s"
    told = rf"written at {rate}, synchronised in .* \({rate} together\), read back at {rate}; "
    assert re.fullmatch(told + "at this rate saving 1.0 kB takes .*", check.sentence)
    assert sorted(path.name for path in saved.iterdir()) == ["step_1", "step_2"]


def test_a_disk_that_takes_no_more_fails_and_nothing_stays(saved: Path) -> None:
    """A limit on the size of a file ends a write half-way, as a full disk or a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        (check,) = writing_checkpoints(saving(saved))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert check.status == "failed"
    assert "File too large" in check.sentence
    assert sorted(path.name for path in saved.iterdir()) == ["step_1", "step_2"]


def test_room_for_less_than_two_checkpoints_fails(saved: Path) -> None:
    """The largest one is a file full of holes: it has that size, and takes no room."""
    free = shutil.disk_usage(saved).free
    with (saved / "step_3.ckpt").open("wb") as file:
        file.truncate(int(free * 0.75))
    (check,) = writing_checkpoints(saving(saved))
    assert check.status == "failed"
    assert "less than two checkpoints take" in check.sentence
    assert check.remedy.startswith("free some space")


def test_a_folder_that_takes_no_files_fails() -> None:
    (check,) = writing_checkpoints(saving("/proc/self/task"))
    assert check.status == "failed"
    assert "cannot be used" in check.sentence


def test_a_store_of_another_kind_is_looked_at_in_the_same_way() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/doctor/step_1/model.pt", b"x" * 500)
    place, expected = checkpoints(saving("memory://doctor", "step_*/model.pt"))
    assert (place.status, expected.status) == ("ok", "ok"), place
    memory.rm("/doctor", recursive=True)


def test_a_scheme_that_nobody_knows_fails() -> None:
    (check,) = checkpoints(saving("nosuch://bucket/run"))
    assert check.status == "failed"


def test_the_largest_checkpoint_may_be_a_folder() -> None:
    assert largest_checkpoint({"a/x": 3, "a/y": 4, "b.ckpt": 5}) == 7


def test_without_a_place_nothing_is_asked() -> None:
    assert checkpoints(subject()) == writing_checkpoints(subject()) == ()
