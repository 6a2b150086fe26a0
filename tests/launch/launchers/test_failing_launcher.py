"""A launcher that fails before it has started anything: no rank is blamed for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from watch.launched import record_of, run, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real


def test_no_rank_failed_where_torchrun_did(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    ended = run(tmp_path, [*torchrun, "--nnodes=no-number", "train.py"])
    assert ended.returncode == 1
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.verdict, verdict.culprits, verdict.ranks) == ("crashed", (), ())
    assert verdict.summary == ("no rank was seen to fail, but the command ended with exit code 1")
    assert record_of(tmp_path / "run").ranks == ()
