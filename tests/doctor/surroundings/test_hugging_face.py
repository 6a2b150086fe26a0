"""The cache of models: usable, not usable, with a lock that somebody really holds."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest
from subjects import subject

from lightning_hangcheck.doctor.surroundings import (
    cache_folder,
    hugging_face_cache,
    hugging_face_locks,
)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HOME": "/h"}, "/h/.cache/huggingface/hub"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HOME": "/h", "HF_HOME": "/hf"}, "/hf/hub"),
        ({"HF_HOME": "/hf", "HF_HUB_CACHE": "/hub"}, "/hub"),
    ],
)
def test_the_cache_is_where_the_library_has_it(variables: dict[str, str], folder: str) -> None:
    assert cache_folder(variables) == Path(folder)


def test_a_cache_that_can_be_made_is_fine(tmp_path: Path) -> None:
    (check,) = hugging_face_cache(subject(HF_HOME=str(tmp_path / "new")))
    assert check.status == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_cache_below_something_unwritable_is_a_warning() -> None:
    (check,) = hugging_face_cache(subject(HF_HOME="/proc/self/hf"))
    assert check.status == "warning"
    assert check.remedy.startswith("export HF_HOME=")


def test_offline_without_a_cache_nothing_can_be_loaded(tmp_path: Path) -> None:
    run = subject(HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert [check.status for check in hugging_face_cache(run)] == ["warning"]
    (tmp_path / "hub").mkdir()
    assert [check.status for check in hugging_face_cache(run)] == ["ok"]


def test_a_lock_that_is_held_is_named_with_its_holder(tmp_path: Path) -> None:
    locks = tmp_path / "hub" / ".locks" / "models--a--b"
    locks.mkdir(parents=True)
    run = subject(HF_HOME=str(tmp_path))
    with (locks / "file.lock").open("w") as lock:
        assert [check.status for check in hugging_face_locks(run)] == ["ok"]
        fcntl.flock(lock, fcntl.LOCK_EX)
        (check,) = hugging_face_locks(run)
    assert check.status == "warning"
    assert "file.lock" in check.sentence
    assert f"pid {os.getpid()}" in check.sentence
