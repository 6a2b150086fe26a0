"""`hangcheck report` on folders as runs leave them, in all its forms, and on those that are bad."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from report.constructed import verdict

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import RankState, StackGroup
from lightning_hangcheck.report.saved_run import read_saved_run
from lightning_hangcheck.rundir import RunFolder, folder_of_start, prepare_run_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


AT = "2026-11-20T10:24:16.000000Z"
RECORD = RunRecord(run_id="r", command="python train.py", started_at=AT, world_size=2)
HANG = verdict(
    "hang",
    stalled_for_s=31.0,
    culprits=(1,),
    cause="rank_stalled",
    summary="rank 1 is stuck in wait_for_feed (train.py:88)",
    ranks=(RankState(rank=0, state="waiting"), RankState(rank=1, state="stalled")),
)


STACKS = StackGroup(id=0, process="rank", ranks="0-1", count=2, frames=("fit (train.py:88)",))
WITH_STACKS = verdict("hang", stack_groups=(STACKS,))


def refused(folder: Path | str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a folder is refused."""
    assert invoke(["report", str(folder)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("hangcheck: ")
    assert output.err.count("\n") == 1
    assert "; " in output.err
    return output.err


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "hangcheck_runs" / "run")
    prepare_run_folder(made)
    made.run_file.write_bytes(encode_pretty(RECORD))
    return made


def test_report_names_the_newest_start_of_a_job_that_was_started_again(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.verdict_file.write_bytes(encode_pretty(HANG))
    for start in (10, 9):
        prepare_run_folder(folder_of_start(folder, start))
    assert invoke(["report", str(folder.path)]) == 0
    line = f"the job was started again: hangcheck report {folder.path}/start-10\n"
    assert capsys.readouterr().out.endswith(line)


def test_report_without_a_folder_takes_the_newest_run(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.path.parent.parent)
    older = RunFolder(folder.path.parent / "older")
    prepare_run_folder(older)
    os.utime(older.path, (0, 0))
    folder.verdict_file.write_bytes(encode_pretty(HANG))
    assert invoke(["report"]) == 0
    assert "more     hangcheck report hangcheck_runs/run\n" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", '{"schema_version": 2}'])
def test_a_verdict_outlives_its_evidence(
    text: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torn, or of a newer version: the verdict is told, and what is lost is said."""
    for file in (folder.verdict_file, folder.numbered_verdict(1)):
        file.write_bytes(encode_pretty(HANG))
    folder.evidence(1).mkdir()
    (folder.evidence(1) / "case.json").write_text(text)
    assert invoke(["report", str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("HANG  rank 1 is stuck in wait_for_feed")
    assert "evidence of verdict 1" in shown


def test_no_verdict_yet_shows_the_last_checkpoint_and_save_of_each_rank(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """A torn last line, left by a crash, is skipped and named; a new process has saved nothing."""
    passed = f'{{"at":"{AT}","kind":"checkpoint","number":%d,"name":"%s"}}\n'
    saved = f'{{"at":"{AT}","kind":"saved","seconds":0.03,"step":%s}}\n'
    begun = passed % (4, "Tokenizer loaded")
    folder.journal(0, 0).write_text(begun + passed % (5, "Model created"))
    folder.journal(1, 0).write_text(begun + '{"at":"2026-11')
    folder.journal(2, 0).write_text(begun + saved % 10 + saved % 20 + saved % "null")
    folder.journal(3, 0).write_text(begun + saved % 10 + f'{{"at":"{AT}","kind":"start"}}\n')
    assert invoke(["report", str(folder.path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("no verdict yet\n")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any(line.startswith("0 unseen 5: Model created ") for line in lines)
    assert any(line.startswith("1 unseen 4: Tokenizer loaded ") for line in lines)
    assert "2 unseen saved at step 20" in lines
    assert "3 unseen none yet" in lines
    assert "journal rank-1.jsonl: 1 of its lines are torn" in text
    assert "python train.py" in text


def test_the_page_of_a_run(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.verdict_file.write_bytes(encode_pretty(HANG))
    file = folder.path / "page.html"
    assert invoke(["report", str(folder.path), "--html", str(file)]) == 0
    assert capsys.readouterr() == ("", f"hangcheck: wrote {file}\n")
    page = file.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n")
    assert HANG.summary in page
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        ([], "HANG  "),
        (["--json"], '{\n  "schema_version": 1'),
        (["--html", "-"], "<!DOCTYPE html>"),
        (["--issue"], "# hang"),
        (["--prompt"], "# Fix"),
        (["--perfetto", "-"], '{"traceEvents"'),
    ],
)
def test_each_form_is_printed(
    words: list[str], begin: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.verdict_file.write_bytes(encode_pretty(HANG))
    assert invoke(["report", str(folder.path), *words]) == 0
    text = capsys.readouterr().out
    assert text.startswith(begin)
    assert HANG.summary in text
    assert "\x1b" not in text
    if words == ["--json"]:
        assert json.loads(text) == json.loads(folder.verdict_file.read_bytes())


def test_a_form_that_cannot_be_written(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["report", str(folder.path), "--issue"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "has no verdict yet" in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("place", ["gone/page.html", "ranks", "/dev/null"])
def test_a_page_that_cannot_be_written_there(
    place: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device is not replaced by a file, either."""
    folder.verdict_file.write_bytes(encode_pretty(HANG))
    assert invoke(["report", str(folder.path), "--html", str(folder.path / place)]) == 2
    output = capsys.readouterr()
    assert "name a file that you may write" in output.err
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: folder.run_file.unlink(), "holds no run"),
        (lambda folder: shutil.rmtree(folder.path), "is no folder"),
        (lambda folder: _torn(folder.verdict_file), "verdict.json cannot be read"),
        (
            lambda folder: folder.verdict_file.write_text('{"schema_version": 2}'),
            "schema_version 2; this version reads 1",
        ),
        (
            lambda folder: folder.verdict_file.write_bytes(
                encode_pretty(WITH_STACKS).replace(b'"0-1"', b'"0-99999999"')
            ),
            "'0-99999999' is not an ascending range of ranks",
        ),
        # a folder fails for every user, root too, where a file mode would not
        (lambda folder: folder.verdict_file.mkdir(), "cannot be read (Is a directory)"),
        (
            lambda folder: os.mkfifo(folder.verdict_file),
            "verdict.json cannot be read (it is a FIFO, not a file); remove it",
        ),
        (lambda folder: folder.run_file.write_text("[]"), "run.json cannot be read"),
    ],
)
def test_a_run_of_which_nothing_can_be_read_is_refused(
    make: Callable[[RunFolder], object],
    said: str,
    folder: RunFolder,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(folder)
    assert said in refused(folder.path, capsys)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    path.write_bytes(b"{")
    os.truncate(path, 1 << 40)


def _torn(path: Path) -> None:
    path.write_bytes(encode_pretty(HANG)[:100])


BAD = {"fifo": os.mkfifo, "endless": _endless, "huge": _huge}


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_read_costs_no_other(
    bad: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    BAD[bad](folder.verdict_file)
    BAD[bad](folder.journal(1, 0))
    line = {"at": AT, "kind": "checkpoint", "number": 5, "name": "Model created"}
    folder.journal(0, 0).write_text(json.dumps(line) + "\n")
    assert invoke(["report", str(folder.path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("no verdict that can be read")
    assert "0 unseen 5: Model created" in shown
    assert "verdict.json cannot be read" in shown
    gaps = {gap.what for gap in read_saved_run(folder).gaps}
    assert gaps == {"verdict.json", "journal rank-1.jsonl"}
    assert invoke(["report", "--json", str(folder.path)]) == 2
    assert "verdict.json cannot be read" in capsys.readouterr().err
