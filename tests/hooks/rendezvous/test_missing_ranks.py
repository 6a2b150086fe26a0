"""What is said of a rank that others wait for: its stack, or why there is none."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import until

from lightning_hangcheck.hooks.missing_ranks import look_for_missing
from lightning_hangcheck.identity import Identity
from lightning_hangcheck.recorder.page import PageWriter
from lightning_hangcheck.session.session import Session, SessionFacts, open_session

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """The session of a job that consists of what this process starts."""
    facts = SessionFacts(
        run_dir=str(tmp_path / "run"),
        command="",
        started_at="",
        root_pid=os.getppid(),
        launched=True,
    )
    return open_session(tmp_path / "session", facts)


def test_stopped_rank_is_read_and_one_that_ended_is_told_by_its_last_words(
    session: Session, program: StartProgram
) -> None:
    running = program("sleeping.py")
    page = PageWriter.create(session.pages / f"{running.pid}.page")
    page.identify(Identity(rank=1, world_size=2, local_rank=1))
    os.kill(running.pid, signal.SIGSTOP)
    until(lambda: psutil.Process(running.pid).status() == psutil.STATUS_STOPPED, "it to stop")

    stopped = look_for_missing(session, [1], local=False)[1]
    assert f"pid {running.pid}, which is stopped, main thread:" in stopped
    assert "waits_in_sleep (" in stopped

    running.process.kill()
    running.process.wait()
    page.end("raised", "ValueError: no such split")
    ended = look_for_missing(session, [1], local=False)[1]
    assert ended == f"pid {running.pid} has ended (ValueError: no such split)"
