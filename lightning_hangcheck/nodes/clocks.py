"""How far the wall clocks of a job's nodes are apart, from what they tell each other anyway. Pure.

Whoever reads a word by its own clock, that was written by another's, sees their difference and the
time that the word took. Of the words of both directions the quickest bound the difference from both
sides, as NTP (RFC 5905) has it. A word takes up to a second here, so it is known to a part of that.

What is compared so is how long the hosts have been up, for nobody sets that clock. Each tells its
wall clock beside it, so the wall clocks are known to differ by as much also just after one was set.

A running job is judged without it. `hangcheck merge` puts what the nodes saved on one clock by it;
where there is none, the order of what two nodes saw is open.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.model.run import NodeClock

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT_S = 300.0
"""Clocks drift apart by some 10 ms in this time."""
MOST_SHOWN = 64


class Clocks(NamedTuple):
    """Those of one host at one moment, in seconds.

    Attributes:
        wall_s: Since 1970; people and NTP set it.
        up_s: Since the host's start, suspensions included; nobody sets it.
    """

    wall_s: float
    up_s: float

    @property
    def started_s(self) -> float:
        """When the host started, by its wall clock: another moment once that was set."""
        return self.wall_s - self.up_s


def own_clocks() -> Clocks:
    """Read those of this host."""
    return Clocks(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))


class Quickest:
    """What the quickest of the last words took, and the clocks' difference, together."""

    def __init__(self) -> None:
        self._before: float | None = None
        self._present: float | None = None
        self._since_s = 0.0

    def take(self, seconds: float, now_s: float) -> None:
        """Take one more.

        Args:
            seconds: The reader's clock less the writer's.
            now_s: Present time, monotonic.
        """
        if self._present is None or now_s - self._since_s >= KEPT_S:
            self._before, self._present, self._since_s = self._present, None, now_s
        self._present = seconds if self._present is None else min(self._present, seconds)

    @property
    def least(self) -> float | None:
        """The least of them; None while there is none."""
        known = [one for one in (self._before, self._present) if one is not None]
        return min(known, default=None)


def clock_of(
    node: int, there: float | None, here: float | None, its: Clocks, ours: Clocks
) -> NodeClock | None:
    """Estimate how far a node's wall clock is ahead of the first node's.

    Args:
        node: Its number.
        there: Its time since its start less ours, of the quickest of our words that it read.
        here: Ours less its, of the quickest of its words that we read.
        its: What it told last of its clocks.
        ours: Our clocks.

    Returns:
        None where a direction is not known, or a word is of a host that was the node before.
    """
    if there is None or here is None or there + here < 0:
        return None
    ahead_s = (there - here) / 2 + its.started_s - ours.started_s
    return NodeClock(node, round(ahead_s, 3), round((there + here) / 2, 3))


def worth_showing(
    clocks: Mapping[int, NodeClock], shown: Mapping[int, NodeClock]
) -> dict[int, NodeClock]:
    """Return the clocks to show: those known so far, and what is better known by now.

    Args:
        clocks: As they are estimated now.
        shown: As they were shown last.
    """
    told = dict(shown)
    for node, clock in clocks.items():
        known = shown.get(node)
        if known is None or clock.within_s < known.within_s / 2 or _apart(clock, known):
            told[node] = clock
    furthest = sorted(told.values(), key=lambda one: -abs(one.ahead_s))[:MOST_SHOWN]
    return {clock.node: clock for clock in sorted(furthest, key=lambda one: one.node)}


def _apart(one: NodeClock, other: NodeClock) -> bool:
    return abs(one.ahead_s - other.ahead_s) > one.within_s + other.within_s
