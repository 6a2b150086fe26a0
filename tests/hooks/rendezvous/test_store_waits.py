"""Ranks that wait do so in the place, and what one node says does not hang on another's silence."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lightning_hangcheck.hooks.missing_ranks import MissingRank, details_of
from lightning_hangcheck.hooks.places import StorePlace
from lightning_hangcheck.hooks.rendezvous import (
    Arrival,
    Outcome,
    PeerGroup,
    RendezvousPoint,
    await_outcome,
)
from lightning_hangcheck.hooks.wandb_guard import bounded

if TYPE_CHECKING:
    from lightning_hangcheck.nodes.meeting_place import DecidingPlace

WAITED_S = 3.0


def at(place: DecidingPlace, index: int, size: int) -> RendezvousPoint:
    peers = PeerGroup(place=place, index=index, size=size, peers_exist=True)
    return RendezvousPoint(peers=peers, name="data", key="rank data 1", time_limit=WAITED_S)


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
    late = Outcome(failure="rank 0 is late")
    assert await_outcome(at(place, 1, 2), lambda: late).failure == late.failure
    assert asked["check"] > 0, "else it counts nothing"
    assert asked.total() < 6 * WAITED_S, asked


class Memory:
    """A place in this process."""

    where = "memory"

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def post(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def decide(self, key: str, value: bytes) -> bytes:
        return self.values.setdefault(key, value)

    def look(self, key: str) -> bytes | None:
        return self.values.get(key)


def test_a_node_that_never_answers_does_not_hide_the_answer_of_a_later_one() -> None:
    place = Memory()
    point = at(place, 0, 4)
    for rank, node in ((1, "silent"), (2, "answering")):
        place.post(point.arrival_of(rank), msgspec.msgpack.encode(Arrival(node=node)))
    seen = {3: MissingRank(lines="pid 4711, main thread")}
    place.post(point.stacks_by(2), msgspec.msgpack.encode(seen))

    assert "rank 3: pid 4711, main thread" in details_of(point, [3])


def test_a_refused_thread_leaves_wandb_its_own_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert bounded(1.0, lambda: "a run") == "a run"
