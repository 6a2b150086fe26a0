"""A job that ends before its sidecar looked around: the sidecar ends too, and tells its end."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from processes import until
from watch.launched import verdict_of

from lightning_hangcheck.session.session import SessionFacts, open_session

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
RANK = """
import os
from lightning_hangcheck.recorder.lifecycle import current
current().learn_identity({rank}, 2, {rank})
{end}
"""


def test_a_sidecar_that_comes_too_late_tells_what_the_pages_still_say(tmp_path: Path) -> None:
    facts = SessionFacts(
        run_dir=str(tmp_path / "run"),
        command="train",
        started_at="2026-01-01T00:00:00.000Z",
        root_pid=0,
    )
    session = open_session(tmp_path / "shared" / "session", facts)
    session.sidecar_file.touch()  # ranks leave their pages to a sidecar that is there
    for rank, end in ((0, ""), (1, "raise ValueError('bad sample')")):
        subprocess.run(
            [sys.executable, "-c", RANK.format(rank=rank, end=end)],
            env={"HANGCHECK_SESSION": str(session.path), "PATH": "/usr/bin:/bin"},
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=120,
        )
    subprocess.run(
        [sys.executable, "-m", "lightning_hangcheck.watch.sidecar", str(session.path)],
        check=True,
        timeout=120,
    )
    until((tmp_path / "run" / "verdict.json").exists, "the verdict")
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.verdict, verdict.culprits) == ("crashed", (1,))
    assert "bad sample" in verdict.summary
    until(lambda: not session.path.exists(), "the session to be freed")


def test_a_sidecar_whose_job_has_ended_already_has_nothing_to_say(tmp_path: Path) -> None:
    """The last rank frees the session, often before a sidecar that just started has read it."""
    ended = subprocess.run(
        [sys.executable, "-m", "lightning_hangcheck.watch.sidecar", str(tmp_path / "freed")],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
