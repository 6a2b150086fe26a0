"""A process that hangs where nobody may read it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from processes import PATIENCE_S, end
from watch.launched import python, start_run, verdict_of

if TYPE_CHECKING:
    from pathlib import Path


PROTECTED = """
import ctypes, time

def waits_protected():
    time.sleep(1000)

ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
waits_protected()
"""


@pytest.mark.real
def test_a_protected_rank_is_named_with_its_place_and_the_verdict_says_how(tmp_path: Path) -> None:
    """The refusal is the kernel's: root gives up the capability that would override it."""
    (tmp_path / "train.py").write_text(PROTECTED)
    unable = ["setpriv", "--bounding-set=-sys_ptrace"] if os.geteuid() == 0 else []
    running = start_run(
        tmp_path,
        [*python("")[:1], "train.py"],
        *("--stall-timeout", "4", "--on-hang", "abort"),
        prefix=unable,
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="1",
    )
    try:
        running.communicate(timeout=PATIENCE_S)
    finally:
        end(running)
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.verdict, verdict.culprits) == ("hang", (0,))
    assert "waits_protected" in verdict.summary
    whys = [gap.why for gap in verdict.gaps if gap.what.startswith("stack of")]
    assert len(whys) == 1
    assert "by faulthandler" in whys[0]
