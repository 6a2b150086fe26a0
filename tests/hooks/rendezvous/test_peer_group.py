"""Who meets whom, by how the process was launched."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.rendezvous import find_peer_group
from lightning_hangcheck.identity import identify
from lightning_hangcheck.recorder.lifecycle import Recorder
from lightning_hangcheck.session.session import Session, SessionFacts, open_session
from lightning_hangcheck.session.whose import start_key
from lightning_hangcheck.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def torchrun(rank: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
    }


def key(environment: dict[str, str]) -> str:
    return start_key(environment, identify(environment))


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """A recorder that has a session and records nothing."""
    idle = Recorder({})
    facts = SessionFacts(run_dir=str(tmp_path / "run"), command="", started_at="", root_pid=1)
    idle.session = open_session(tmp_path / "session", facts)
    return idle


def launch(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name in list(os.environ):
        if name.startswith(("RANK", "WORLD", "LOCAL_", "NODE_", "SLURM_", "TORCHELASTIC")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_children_of_lightnings_launcher_share_the_key_of_their_parent() -> None:
    plain = key({})

    assert plain.startswith(f"pid-{os.getpid()}-")
    assert key({"LOCAL_RANK": "0", "WORLD_SIZE": "2"}) == plain
    assert key({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}).startswith(f"pid-{os.getppid()}-")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (torchrun(1), (1, 2, True)),
        ({}, (0, None, False)),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, (1, 2, False)),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4, True)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, (0, 1, False)),
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


def test_ranks_of_one_node_meet_on_that_node(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = {**torchrun(3), "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    launch(monkeypatch, spread)

    peers = find_peer_group(recorder, local=True)
    assert peers is not None
    assert (peers.index, peers.size, peers.noun) == (1, 2, "local rank")
    assert isinstance(recorder.session, Session)
    assert str(recorder.session.meetings) in peers.place.where
