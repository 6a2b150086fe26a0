"""Guards of one start of a job never take the word of another one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from hooks.launching import json_lines, start_job
from long_tests import WHEN_ASKED_FOR
from processes import end

from lightning_hangcheck.hooks.places import PlaceOfStart
from lightning_hangcheck.hooks.rendezvous import PeerGroup, RendezvousPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Join = Callable[..., PlaceOfStart]

PATIENCE_S = 60.0


class Memory:
    """A place that outlives every start."""

    where = "memory"

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def post(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def decide(self, key: str, value: bytes) -> bytes:
        return self.values.setdefault(key, value)

    def look(self, key: str) -> bytes | None:
        return self.values.get(key)


@pytest.fixture
def join() -> Iterator[Join]:
    """Let a rank of a new start join at a place; the first rank's thread is ended."""
    leaders: list[PlaceOfStart] = []

    def start(place: Memory, index: int, size: int = 2) -> PlaceOfStart:
        joined = PlaceOfStart(place, index, size)
        if index == 0:
            leaders.append(joined)
        return joined

    yield start
    for leader in leaders:
        leader.close()


def seen(place: PlaceOfStart, key: str) -> bytes | None:
    """Look until it is there."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = place.look(key)
        if value is not None:
            return value
        time.sleep(0.002)
    return None


def test_ranks_of_one_start_find_each_other_whoever_comes_first(join: Join) -> None:
    memory = Memory()
    late = join(memory, 1)
    late.post("arrived-1", b"here")
    assert late.look("outcome") is None
    leader = join(memory, 0)
    leader.post("outcome", b"go on")
    assert seen(late, "outcome") == b"go on"
    leader.expect(PATIENCE_S)
    before = time.monotonic()
    leader.leave()
    assert time.monotonic() - before < PATIENCE_S, "all were answered: its end waits for nobody"
    assert leader.look("arrived-1") == b"here"


def test_what_an_earlier_start_left_lets_nobody_pass(join: Join) -> None:
    """Neither the others, where the first rank has not come again, nor the first rank itself."""
    memory = Memory()
    before = join(memory, 0), join(memory, 1)
    before[0].post("outcome", b"of round 0")
    assert seen(before[1], "outcome") == b"of round 0"
    before[1].post("arrived-1", b"of round 0")
    before[0].close()  # as its process ends
    again = join(memory, 1)
    again.post("arrived-1", b"of round 1")
    assert again.look("outcome") is None
    assert not again.name
    leader = join(memory, 0)
    assert leader.look("arrived-1") is None
    leader.post("outcome", b"of round 1")
    assert seen(again, "outcome") == b"of round 1"
    assert leader.look("arrived-1") == b"of round 1"


def test_a_rank_that_never_came_to_a_guard_before_passes_no_older_one(join: Join) -> None:
    """It has no word of its own there: what shows the age of the other's is not its own word."""
    memory = Memory()
    alone = join(memory, 0)
    alone.post("outcome", b"of round 0")
    alone.close()
    assert join(memory, 1).look("outcome") is None


def test_only_the_first_rank_is_missing_before_it_has_come(join: Join) -> None:
    """Whether the others are of this start, nobody can know."""
    peers = PeerGroup(place=join(Memory(), 2, 4), index=2, size=4, peers_exist=True)
    point = RendezvousPoint(peers, "data", "rank data 1", 1.0)
    peers.place.post(point.arrival_of(2), b"")
    assert point.missing() == [0]


@WHEN_ASKED_FOR
@pytest.mark.real
def test_a_round_that_agents_count_differently_meets_in_torchs_store(tmp_path: Path) -> None:
    """torchrun's agents do not count a change of nodes: in one round ranks have other counts."""
    rounds = [
        [[0, 0, [["first", 0.0]]], [1, 0, [["first"], ["leave"]]]],
        [[1, 1, [["first"]]], [0, 0, [["first", 0.3], ["first", 0.0]]]],
        [[0, 0, [["first", 0.2]]], [1, 1, [["first"]]]],
    ]
    job = start_job(tmp_path, "starts_at_one_store.py", json.dumps(rounds), environment={})
    try:
        told = list(json_lines(job.communicate(timeout=120)[0]))
    finally:
        end(job)
    assert not [line for line in told if "failed" in line]
    for number in range(3):
        first, other = (
            next(one for one in told if (one["round"], one["rank"]) == (number, rank))
            for rank in (0, 1)
        )
        assert first["ended"] <= other["began"]
