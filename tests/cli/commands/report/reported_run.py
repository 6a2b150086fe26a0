"""A run to report on, and how a folder is refused that is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.model.verdict import RankState, Verdict

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

AT = "2026-11-20T10:24:16.000000Z"
RECORD = RunRecord(run_id="r", command="python train.py", started_at=AT, world_size=2)
HANG = Verdict(
    verdict="hang",
    run_id="r",
    command="python train.py",
    started_at=AT,
    detected_at=AT,
    stalled_for_s=31.0,
    world_size=2,
    culprits=(1,),
    cause="rank_stalled",
    summary="rank 1 is stuck in wait_for_feed (train.py:88)",
    ranks=(RankState(rank=0, state="waiting"), RankState(rank=1, state="stalled")),
)


def refused(folder: Path | str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a folder is refused."""
    assert invoke(["report", str(folder)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("hangcheck: ")
    assert output.err.count("\n") == 1
    assert "; " in output.err
    return output.err
