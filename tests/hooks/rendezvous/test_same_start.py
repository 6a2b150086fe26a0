"""Guards of one start of a job never take the word of another one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from processes import until

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.places import Start
from lightning_hangcheck.hooks.rendezvous import PeerGroup, RendezvousPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Join = Callable[..., Future[str]]


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
