"""Who meets whom and where, how they wait, and what is said of one that does not come."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from processes import until
from recorded_run import job_session

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.places import EVERYWHERE, Start, StorePlace, listen, offered_store
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
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from processes import StartProgram

    Join = Callable[..., Future[str]]


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
    assert str(tmp_path / "shared") in peers.place.where


def test_ranks_of_one_node_meet_on_that_node(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = {**torchrun(3), "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
    launch(monkeypatch, spread)

    peers = find_peer_group(recorder, local=True)
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


# Guards of one start of a job never take the word of another one.


class Memory:
    """A place that outlives every start, and knows who looks there."""

    where = "memory"

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.asked: list[str] = []

    def post(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def decide(self, key: str, value: bytes) -> bytes:
        return self.values.setdefault(key, value)

    def look(self, key: str) -> bytes | None:
        self.asked.append(key)
        return self.values.get(key)


@pytest.fixture
def join() -> Iterator[Join]:
    """Let a rank of a new start come to its first guard, in a thread; where they all meet."""
    with ThreadPoolExecutor(4) as pool:

        def come(place: Memory, index: int, limit: float = 60.0) -> Future[str]:
            start = Start(place)
            peers = PeerGroup(place=place, start=start, index=index, size=2, peers_exist=True)

            def meet() -> str:
                RendezvousPoint.next(peers, "data", limit)
                return start.name

            return pool.submit(meet)

        yield come


def test_ranks_of_one_start_meet_and_what_an_earlier_start_left_lets_nobody_pass(
    join: Join,
) -> None:
    memory = Memory()
    late = join(memory, 1)
    first = join(memory, 0).result(60)
    assert late.result(60) == first
    again = join(memory, 1)
    memory.asked.clear()
    until(lambda: memory.asked.count("leader") > 3, "it to look at what is left there")
    assert not again.done()
    assert join(memory, 0).result(60) == again.result(60) != first


def test_a_first_rank_that_comes_again_waits_for_the_others_of_its_start(join: Join) -> None:
    memory = Memory()
    late = join(memory, 1)
    assert join(memory, 0).result(60) == late.result(60)
    with pytest.raises(MeetingFailed, match=r"rank 1 of 2 did not come to 'data' within 0\.5 s"):
        join(memory, 0, 0.5).result(60)


# Where a store that is offered listens: where the other nodes come, and nowhere else.


def _outer_address() -> str | None:
    """An address of this machine that is not loopback, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _listens_at(host: str) -> str:
    with listen(host, 0) as listening:
        return str(listening.getsockname()[0])


def test_the_address_that_the_others_were_told_or_everywhere_where_it_is_none_of_ours() -> None:
    """The others come by a name or a translated address that this machine does not know."""
    assert _listens_at("127.0.0.1") == _listens_at("localhost") == "127.0.0.1"
    outer = _outer_address()
    if outer is not None:
        assert _listens_at(outer) == outer
    assert _listens_at("no-such-host.invalid") == _listens_at("192.0.2.1") == EVERYWHERE


def test_a_name_that_leads_itself_to_loopback_is_served_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Debian's installer writes it into /etc/hosts."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert _listens_at("node0") == EVERYWHERE


def test_a_port_that_is_taken_is_refused() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use"):
            listen("127.0.0.1", port)


def test_all_who_meet_at_a_store_hold_to_the_first_word() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    served = offered_store("127.0.0.1", port, "a", 20.0)
    another = StorePlace.of_agent("127.0.0.1", port, "a")
    assert another.decide("outcome", b"\xff failed") == b"\xff failed"
    assert served.decide("outcome", b"went well") == b"\xff failed"
    assert served.look("outcome") == b"\xff failed"
