"""Ending a run never keeps the job, and what was logged is on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hooks.launching import run_job
from hooks.wandb_guard.wandb_run_file import exit_code, logged
from hooks.wandb_guard.wandb_server import WandbServer
from long_tests import WHEN_ASKED_FOR

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
SLOW_S = 0.6
LEFT_WITHIN_S = 60.0
"""Our limit is 4 s; wandb alone waits for as long as the server is mute."""


@WHEN_ASKED_FOR
@pytest.mark.parametrize("how", ["by itself", "at exit"])
def test_a_mute_server_is_left_and_nothing_logged_is_lost(how: str, tmp_path: Path) -> None:
    """The server first answers slowly, which must not be cut short."""
    server = WandbServer("answers", delay=SLOW_S)
    try:
        job = run_job(tmp_path, "hooks_run_finish.py", how, environment=server.environment)
    finally:
        server.close()

    assert job.code == 3, job.errors
    said = {line["event"]: line for line in job.said}
    assert said["made"]["seconds"] > 2 * SLOW_S
    assert said["made"]["offline"] is False
    assert job.errors.count("wandb run creation returned") == 1
    assert "left" in said, "its end waits for no server that is mute"
    if how == "by itself":
        assert said["finished"]["seconds"] < LEFT_WITHIN_S
        assert "wandb is waited for, to finish its run (server http://127.0.0.1" in job.errors
    (folder,) = (tmp_path / "wandb").glob("run-*")
    (file,) = folder.glob("*.wandb")
    assert exit_code(file) == 3
    assert logged(file, "loss") == ["0", "1", "2", "3", "4"]
