"""Who meets whom, how they wait, and what is said of one that does not come."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
from hooks.launching import job_session
from processes import until

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.rendezvous import (
    find_peer_group,
    look_for_missing,
)
from lightning_hangcheck.identity import Identity
from lightning_hangcheck.recorder.lifecycle import Recorder
from lightning_hangcheck.recorder.page import PageWriter
from lightning_hangcheck.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram

    from lightning_hangcheck.session.session import Session


def torchrun(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
    }


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """A recorder that has a session and records nothing."""
    idle = Recorder({})
    idle.session = job_session(tmp_path, launched=False, root_pid=1)
    return idle


def launch(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD", "LOCAL_", "NODE_", "SLURM_", "TORCHELASTIC")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (torchrun(1), (1, 2, True)),
        ({}, (0, None, False)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, (1, 2, False)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4, True)),
    ],
)
def test_peer_group_follows_the_launcher(
    environment: dict[str, str],
    expected: tuple[int, int | None, bool],
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch(monkeypatch, environment)

    peers = find_peer_group(recorder)
    assert peers is not None
    assert (peers.index, peers.size, peers.peers_exist) == expected


def test_plain_process_on_a_later_node_has_no_peer_group(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lightning tells it its global rank only in fit, so it must not act as rank 0."""
    launch(monkeypatch, {"NODE_RANK": "1"})

    assert find_peer_group(recorder) is None
    assert "nothing tells this process its global rank" in capfd.readouterr().err


def test_slurm_over_nodes_needs_a_folder_that_all_see(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    step = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}
    launch(monkeypatch, {**step, "SLURM_STEP_NUM_NODES": "2"})

    with pytest.raises(MeetingFailed, match="set HANGCHECK_RUN_DIR"):
        find_peer_group(recorder)
    recorder.settings = Settings(run_dir=str(tmp_path / "shared"))
    peers = find_peer_group(recorder)
    assert peers is not None
    assert str(tmp_path / "shared") in peers.place.where


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """The session of a job that consists of what this process starts."""
    return job_session(tmp_path, root_pid=os.getppid())


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
