"""A file that is written again and again: whole at any moment, and its troubles hold up nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import until
from stalling_storage import stalling_storage

from lightning_hangcheck import log
from lightning_hangcheck.watch.telling.newest_only import NewestOnly

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What is said once a process may be said again in each test."""
    monkeypatch.setattr(log, "_said", set())
    capfd.readouterr()
    return []


def test_the_newest_is_there_in_the_end_and_others_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "job.prom"
    writer = NewestOnly(file)
    for number in range(100):
        writer.write(b"%d" % number)
    writer.close(30.0)
    assert file.read_bytes() == b"99"
    assert file.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("said")
def test_what_cannot_be_written_is_said_once_and_comes_once_it_can(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gone" / "job.prom"
    writer = NewestOnly(file)
    heard: list[str] = []

    def complaint() -> bool:
        heard.append(capfd.readouterr().err)
        return "cannot be written (No such file or directory)" in "".join(heard)

    writer.write(b"one")
    until(complaint, "a complaint")
    writer.write(b"two")
    file.parent.mkdir()
    writer.write(b"three")
    writer.close(30.0)
    heard.append(capfd.readouterr().err)
    assert "".join(heard).count("watching goes on") == 1
    assert file.read_bytes() == b"three"


@pytest.mark.real
@pytest.mark.usefixtures("said")
def test_storage_that_stalls_holds_up_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with stalling_storage(tmp_path) as storage:
        writer = NewestOnly(storage.folder / "job.prom")
        storage.stall()
        writer.write(b"one")
        writer.close(0.5)
        assert "does not answer" in capfd.readouterr().err
        storage.answer_again()
        until((storage.folder / "job.prom").exists, "what was waiting")
