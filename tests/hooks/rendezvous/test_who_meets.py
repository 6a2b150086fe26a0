"""Who meets whom, how they wait, and what is said of one that does not come."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hooks.launching import job_session
from processes import until

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.places import StorePlace
from lightning_hangcheck.hooks.rendezvous import (
    PeerGroup,
    RendezvousPoint,
    find_peer_group,
    look_for_missing,
)
from lightning_hangcheck.hooks.wandb_guard import bounded
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.recorder.lifecycle import Recorder
from lightning_hangcheck.recorder.page import PageWriter
from lightning_hangcheck.session.session import Session, start_key
from lightning_hangcheck.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram


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
    idle.session = job_session(tmp_path, launched=False, root_pid=1)
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


WAITED_S = 3.0


def test_a_rank_that_waits_asks_the_store_about_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,024 ranks that look ten times a second at two keys would keep one store from its work."""
    distributed = pytest.importorskip("torch.distributed", exc_type=ImportError)
    asked: Counter[str] = Counter()

    class Counting:
        """A store of torch's that counts what it is asked."""

        def __init__(self) -> None:
            self._store = distributed.HashStore()

        def __getattr__(self, name: str) -> Any:
            asked[name] += 1
            return getattr(self._store, name)

    monkeypatch.setattr(distributed, "PrefixStore", lambda _, store: store)
    place = StorePlace(Counting(), "test", "a store of the test")  # type: ignore[arg-type]
    peers = PeerGroup(place=place, index=1, size=2, peers_exist=True)
    point = RendezvousPoint(peers, "data", "rank data 1", WAITED_S)
    late = point.await_outcome("did not finish").failure
    assert late.startswith("rank 0 did not finish 'data' within 3 s (rank 1 waited at")
    assert asked["check"] > 0, "else it counts nothing"
    assert asked.total() < 6 * WAITED_S, asked


def test_a_refused_thread_leaves_wandb_its_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert bounded(1.0, lambda: "a run") == "a run"
