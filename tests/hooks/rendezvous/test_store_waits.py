"""Ranks that wait do so in the place."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from lightning_hangcheck.hooks.places import StorePlace
from lightning_hangcheck.hooks.rendezvous import PeerGroup, RendezvousPoint
from lightning_hangcheck.hooks.wandb_guard import bounded

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
