"""Ranks that burn the processor and tell nothing: an endless loop is one, a computation is not."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS, end
from watch.launched import run, start_run

from lightning_hangcheck.model.verdict import Verdict

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2")


@WHEN_ASKED_FOR
def test_ranks_that_all_yield_in_a_loop_are_suspected_after_ten_seconds(tmp_path: Path) -> None:
    program = [*TORCHRUN, str(PROGRAMS / "computing.py"), "yielding", "0"]
    ended = run(tmp_path, program, "--stall-timeout", "13", "--on-hang", "abort")
    assert ended.returncode == 75, ended.stderr
    suspected, called = _verdicts(tmp_path)[:2]
    assert (suspected.verdict, suspected.cause, suspected.culprits) == (
        "suspect",
        "spinning",
        (0, 1),
    )
    assert (called.verdict, called.cause) == ("hang", "spinning")
    assert suspected.stalled_for_s >= 10.0
    assert "computing.py" in called.summary


@WHEN_ASKED_FOR
def test_a_lone_process_that_computes_is_not_even_suspected(tmp_path: Path) -> None:
    program = [sys.executable, str(PROGRAMS / "computing.py"), "changing", "15"]
    ended = run(tmp_path, program)
    assert ended.returncode == 0, ended.stderr
    assert _kinds(tmp_path) == ["finished"]


@WHEN_ASKED_FOR
def test_a_rank_that_computes_for_a_minute_is_not_even_suspected(tmp_path: Path) -> None:
    program = [*TORCHRUN, str(PROGRAMS / "computing.py"), "uneven", "65"]
    job = start_run(tmp_path, program)
    try:
        out, err = job.communicate(timeout=220)
    finally:
        end(job)
    assert job.returncode == 0, err
    assert out.count("done") == 2
    assert _kinds(tmp_path) == ["finished"]


def _kinds(folder: Path) -> list[str]:
    return [one.verdict for one in _verdicts(folder)]


def _verdicts(folder: Path) -> list[Verdict]:
    """All verdicts of the run, in their order."""
    files = sorted((folder / "run" / "verdicts").iterdir(), key=lambda one: int(one.stem))
    return [msgspec.json.decode(one.read_bytes(), type=Verdict) for one in files]
