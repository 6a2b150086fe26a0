"""report.html beside a verdict: written after it, never in its place, never at its cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, NOW_NS, rank
from processes import until

from lightning_hangcheck import log
from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.case import Case, RunFacts
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.observe import run_record as saving
from lightning_hangcheck.observe.run_record import save_page, save_run
from lightning_hangcheck.rundir import RunFolder, prepare_run_folder
from lightning_hangcheck.watch import writer as writer_module
from lightning_hangcheck.watch.writer import Writer

if TYPE_CHECKING:
    from pathlib import Path

CASE = Case(
    run=RunFacts(run_id="run", command="train.py", started_at="2026-11-20T10:23:01Z", world_size=2),
    taken_at="2026-11-20T10:24:16.000000Z",
    taken_ns=NOW_NS,
    ranks=(rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD)),
)
VERDICT = judge(CASE)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine of a test may be busy; what is waited for is the page, not the time."""
    monkeypatch.setattr(saving, "PAGE_WAIT_S", 30.0)
    monkeypatch.setattr(writer_module, "WAIT_AT_THE_END_S", 30.0)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return prepare_run_folder(RunFolder(tmp_path / "run"))


def test_the_sidecar_writes_it_after_the_verdict(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "journals").mkdir()
    writer = Writer(folder, tmp_path / "journals")
    writer.publish(CASE, VERDICT, "line")
    page = folder.page_file
    until(page.exists, "the page")
    writer.close(30.0)
    assert VERDICT.summary in page.read_text()
    assert page.stat().st_mtime_ns >= folder.verdict_file.stat().st_mtime_ns


def test_attach_and_merge_write_it_too(tmp_path: Path) -> None:
    made = RunFolder(tmp_path / "made")
    save_run(CASE, VERDICT, (), made)
    assert VERDICT.summary in made.page_file.read_text()


def test_a_failure_is_said_once_and_costs_no_verdict(
    folder: RunFolder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_said", set())
    folder.page_file.mkdir()
    save_page(folder, 1, CASE, VERDICT)
    save_page(folder, 1, CASE, VERDICT)
    assert capfd.readouterr().err.count("report.html was not written (IsADirectoryError") == 1


def test_the_page_of_an_older_verdict_does_not_replace_a_newer_one(folder: RunFolder) -> None:
    """One that took long is finished after the next verdict came."""
    newer = msgspec.structs.replace(VERDICT, summary="newer")
    for number, verdict in ((1, VERDICT), (2, newer)):
        folder.numbered_verdict(number).write_bytes(encode_pretty(verdict))
    save_page(folder, 2, CASE, newer)
    save_page(folder, 1, CASE, VERDICT)
    page = folder.page_file.read_text()
    assert "newer" in page
    assert page.count(VERDICT.summary) == 1, "among the earlier ones"
