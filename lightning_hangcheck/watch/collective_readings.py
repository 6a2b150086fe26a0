"""Asks silent ranks how far their collectives have come, beside the loop so that it never waits."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from lightning_hangcheck.look.flight_record import Numbers, collective_numbers
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lightning_hangcheck.observe.watched_rank import WatchedRank

EVERY_S = 1.0
LONGEST_S = 10.0
MOST_OF_A_CORE = 0.01
"""What the answers may cost a rank: gloo's recorder writes out its whole record, 1 MB in 20 ms."""
LIMIT_S = 1.0
AT_ONCE = 4


class CollectiveReadings:
    """Takes one reading of all silent ranks at a time."""

    def __init__(self, servers: Path) -> None:
        self._servers = servers
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="numbers")
        self._pending: dict[WatchedRank, Future[tuple[Numbers, float]]] = {}
        self._begun_ns = 0
        self._interval_s = EVERY_S

    def update(self, alive: Sequence[WatchedRank], now_ns: int) -> None:
        """Hand on what came in, and ask again where it is time to."""
        if all(answer.done() for answer in self._pending.values()):
            self._take()
            self._ask(alive, now_ns)

    def close(self) -> None:
        """Give up what is under way: it ends by its own time limit."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(self) -> None:
        took_s = 0.0
        for rank, answer in self._pending.items():
            numbers, seconds = answer.result()
            took_s = max(took_s, seconds)
            rank.read_numbers(numbers, self._begun_ns)
        if self._pending:
            self._interval_s = min(max(EVERY_S, took_s / MOST_OF_A_CORE), LONGEST_S)
        self._pending = {}

    def _ask(self, alive: Sequence[WatchedRank], now_ns: int) -> None:
        if now_ns - self._begun_ns < self._interval_s * NANOSECONDS:
            return
        silent = [one for one in alive if one.progress.untold_ns(now_ns) > EVERY_S * NANOSECONDS]
        asked = {one: self._servers / str(one.found.pid) for one in silent}
        self._pending = {
            one: self._pool.submit(_ask_one, path) for one, path in asked.items() if path.exists()
        }
        self._begun_ns = now_ns if self._pending else self._begun_ns


def _ask_one(path: Path) -> tuple[Numbers, float]:
    began_s = time.perf_counter()
    return collective_numbers(path, LIMIT_S), time.perf_counter() - began_s
