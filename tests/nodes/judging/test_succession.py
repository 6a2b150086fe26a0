"""Who judges while nodes fall silent and come back: nodes that leave words on two keys."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hangcheck.nodes.judging.succession import (
    HELD_S,
    LONGEST_LINE,
    SILENT_AFTER_S,
    STEADY_S,
    STEP_S,
    Role,
    Succession,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SETTLED_S = SILENT_AFTER_S + STEP_S * LONGEST_LINE + HELD_S + 2 * STEADY_S
"""After this nothing changes any more."""
FIRST, SUCCESSOR = "first", "successor"


class Job:
    """Nodes with a turn about once a second each, in an order of their own each time."""

    def __init__(self, count: int, seed: int) -> None:
        self.nodes = {number: Succession(number, 0.0) for number in range(count)}
        self.roles: dict[int, Role] = {}
        self.judges: dict[int, list[int | None]] = {number: [] for number in self.nodes}
        self._board: dict[str, tuple[int, float]] = {}
        self._seen: dict[tuple[int, str], float] = {}
        self._chance = random.Random(seed)
        self._now_s = 0.0

    def run(self, seconds: float, there: Callable[[int, float], bool]) -> None:
        """Let time pass; nodes that are not there neither hear nor tell."""
        for _ in range(int(seconds)):
            self._now_s += 1.0
            present = [one for one in self.nodes if there(one, self._now_s)]
            self._chance.shuffle(present)
            for at, number in enumerate(present):
                self._turn(number, present, self._now_s + at / len(self.nodes))

    def _turn(self, number: int, present: list[int], now_s: float) -> None:
        node = self.nodes[number]
        for key, (judge, told_s) in self._board.items():
            new = told_s != self._seen.get((number, key))
            self._seen[number, key] = told_s
            if judge != number and new:
                node.hear(judge, sorted(present), now_s)
        role = self.roles[number] = node.role(now_s, reaches=True)
        judge = number if role.judges else role.judge
        if not self.judges[number] or self.judges[number][-1] != judge:
            self.judges[number].append(judge)
        if role.judges or role.claims:
            self._board[SUCCESSOR if number else FIRST] = number, now_s


def without(silent: set[int]) -> Callable[[int, float], bool]:
    return lambda node, _: node not in silent


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(2, 24),
    silent=st.sets(st.integers(0, 23)),
    before=st.booleans(),
    seed=st.integers(0, 9),
)
def test_the_lowest_of_those_that_are_heard_judges_and_all_others_follow_it(
    count: int, silent: set[int], before: bool, seed: int
) -> None:
    """Whether the others fell silent, or never came."""
    left = set(range(count)) - silent
    job = Job(count, seed)
    if before:
        job.run(20, without(set()))
    job.run(SETTLED_S, without(silent))
    for _ in range(5):
        job.run(1, without(silent))
        for number in left:
            lowest = min(left)
            expected = Role(judges=True) if number == lowest else Role(judge=lowest)
            assert job.roles[number] == expected


@settings(max_examples=30, deadline=None)
@given(
    gone=st.sets(st.integers(0, 8), min_size=1, max_size=5),
    back=st.data(),
    seed=st.integers(0, 9),
)
def test_those_who_come_back_take_their_place_again(
    gone: set[int], back: st.DataObject, seed: int
) -> None:
    still = gone - back.draw(st.sets(st.sampled_from(sorted(gone))))
    job = Job(9, seed)
    job.run(20, without(set()))
    job.run(SETTLED_S, without(gone))
    job.run(SETTLED_S, without(still))
    left = set(range(9)) - still
    roles = {number: job.roles[number] for number in left}
    lowest = min(left, default=0)
    assert [number for number, role in roles.items() if role.judges] == sorted({lowest} & left)
    assert all(role.judge == lowest for number, role in roles.items() if number != lowest)


@settings(max_examples=30, deadline=None)
@given(
    there_s=st.integers(1, int(STEADY_S) - 2),
    away_s=st.integers(int(SILENT_AFTER_S) + 1, 40),
    seed=st.integers(0, 9),
)
def test_a_first_node_that_is_heard_now_and_then_changes_nothing(
    there_s: int, away_s: int, seed: int
) -> None:
    job = Job(5, seed)
    job.run(20, without(set()))
    job.run(SETTLED_S, without({0}))
    for judges in job.judges.values():
        judges.clear()
    job.run(300, lambda node, s: node != 0 or s % (there_s + away_s) < there_s)
    assert job.judges[1] == [1]
    assert all(job.judges[number] == [1] for number in (2, 3, 4))


def test_a_first_node_with_pauses_shorter_than_its_silence_judges_all_the_time() -> None:
    job = Job(4, 1)
    job.run(20, without(set()))
    job.run(200, lambda node, s: node != 0 or s % 14 < 1)
    assert all(job.judges[number][-1] == 0 for number in range(4))
    assert all(len(job.judges[number]) <= 2 for number in range(4))


def test_the_second_node_judges_within_the_time_that_is_promised() -> None:
    job = Job(4, 1)
    job.run(20, without(set()))
    job.run(SILENT_AFTER_S + HELD_S + 3.0, without({0}))
    assert job.roles[1] == Role(judges=True)
    assert job.roles[2] == job.roles[3] == Role(judge=1)


def test_a_node_that_reaches_no_place_judges_alone_and_listens_before_it_claims() -> None:
    """One whose own network was cut must not step up the moment that it is back."""
    node = Succession(2, 0.0)
    node.hear(0, (1, 2), 1.0)
    assert node.role(2.0, reaches=True) == Role(judge=0)
    assert node.role(17.0, reaches=False) == Role()
    assert node.role(40.0, reaches=True) == Role(waits=True)
    node.hear(1, (2,), 41.0)
    assert node.role(41.0, reaches=True) == Role(judge=1)


def test_what_began_before_anybody_was_heard_is_judged_alone_at_first() -> None:
    node = Succession(1, 0.0)
    assert node.role(1.0, reaches=True) == Role()
    assert node.role(SILENT_AFTER_S + 6.0, reaches=True).claims
