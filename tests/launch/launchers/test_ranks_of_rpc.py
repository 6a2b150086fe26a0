"""Ranks that nothing numbers but `init_rpc`."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS
from watch.launched import run, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
PATIENCE = {
    "HANGCHECK_IDLE_AFTER": "8",
    "HANGCHECK_PROVEN_AFTER": "6",
    "HANGCHECK_STALL_TIMEOUT": "12",
    "HANGCHECK_ABORT_GRACE": "1",
    "OMP_NUM_THREADS": "1",
}


def test_ranks_that_only_call_each_other_are_watched(tmp_path: Path) -> None:
    """No process group is made."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    program = [sys.executable, str(PROGRAMS / "calling_each_other.py"), str(port)]
    ended = run(tmp_path, program, "--on-hang", "abort", **PATIENCE)
    verdict = verdict_of(tmp_path / "run")
    assert ended.returncode == 75
    assert (verdict.verdict, verdict.cause, verdict.world_size) == ("hang", "rank_stalled", 2)
    assert 0 in verdict.culprits
    assert "stuck in call_back (" in verdict.summary
