"""What a run's ledger line takes from the journals of its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.rundir.layout import RunFolder, prepare_run_folder
from lightning_hangcheck.watch.ranks.run_ledger import offloaded

if TYPE_CHECKING:
    from pathlib import Path

LINE = '{"at":"2026-11-20T10:24:16.000Z","kind":"%s","what":"%s"}\n'


def test_each_offloaded_model_is_taken_once_and_nothing_else(tmp_path: Path) -> None:
    folder = prepare_run_folder(RunFolder(tmp_path / "run"))
    folder.journal(0, 0).write_text(LINE % ("offloaded", "A") + LINE % ("said", "B") + '{"torn')
    folder.journal(1, 0).write_text(LINE % ("offloaded", "A") + LINE % ("offloaded", "C"))
    assert offloaded(folder) == ("A", "C")


def test_a_run_without_journals_tells_nothing(tmp_path: Path) -> None:
    assert offloaded(RunFolder(tmp_path / "gone")) == ()
