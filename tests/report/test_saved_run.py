"""What a run's folder tells: its verdict from its evidence,"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, job, rank
from hangbench.recorded import SHOWN, case_of_program

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.codec import encode_packed, encode_pretty
from lightning_hangcheck.model.evidence import Frame, Holder, WaitTarget
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.report.saved_run import read_saved_run
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {'torch', 'lightning', 'pytorch_lightning', 'transformers',
                                      'wandb', 'numpy'}:
            raise ImportError(f'{name} is not installed here')
sys.meta_path.insert(0, Blocker())
from lightning_hangcheck.cli.main import invoke
sys.exit(invoke(['report', *sys.argv[1:]]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run whose verdicts are lost and whose evidence is there."""
    case = case_of_program("logger_stalls")
    made = RunFolder(tmp_path / "run")
    save_run(case, judge(case), (), made)
    return made


@pytest.mark.parametrize("program", SHOWN)
def test_a_lost_verdict_comes_back_from_its_evidence(program: str, tmp_path: Path) -> None:
    """Byte for byte, after the way through the file."""
    recorded = case_of_program(program)
    folder = RunFolder(tmp_path / "run")
    save_run(recorded, judge(recorded), (), folder)
    lost = folder.verdict_file.read_bytes()
    folder.verdict_file.unlink()
    folder.numbered_verdict(1).unlink()
    saved = read_saved_run(folder)
    assert encode_pretty(saved.verdict) == lost
    assert saved.case is not None


def test_evidence_is_judged_where_torch_is_not_installed(folder: RunFolder) -> None:
    lost = folder.verdict_file.read_text()
    folder.verdict_file.unlink()
    reported = subprocess.run(
        [sys.executable, "-c", BLOCKED, "--json", str(folder.path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (reported.returncode, reported.stderr) == (0, "")
    assert reported.stdout == lost


def test_names_that_are_not_utf8_are_saved_by_their_escapes(tmp_path: Path) -> None:
    """A lock's file, a process, and the line's own file."""
    here = Frame("take_lock", "/data/\udcff/train.py", 7)
    lock = WaitTarget(
        call="flock",
        kind="lock",
        name="/data/\udcff.lock",
        holders=(Holder(pid=7, program="\udcfe"),),
    )
    case = job(rank(0, (here,), waits_for=(lock,)), rank(1, IN_ALL_REDUCE))
    folder = RunFolder(tmp_path / "run")
    save_run(case, judge(case), (), folder)
    saved = read_saved_run(folder)
    assert saved.case is not None
    assert saved.verdict is not None
    assert saved.verdict.cause == "file_lock"
    assert r"/data/\udcff.lock" in saved.verdict.summary
    encode_packed(case)  # as nodes tell each other, and as ranks that stand alike are found


def test_evidence_that_was_not_finished_is_a_gap(folder: RunFolder) -> None:
    folder.verdict_file.unlink()
    (folder.evidence(1) / "case.json").unlink()
    saved = read_saved_run(folder)
    assert saved.verdict is None
    assert [gap.why for gap in saved.gaps] == ["it was not finished"]
