"""Which node judges for all: the first one, and where it is silent, who follows it. Pure.

    the first node            judges, always
    any other                 follows whom it heard judge, while that one is heard
    whom it follows is silent waits its turn, in order of the numbers that were heard last
    nobody else came          says that it will judge, and does unless a lower number says so, too
    a lower number is back    steps back once that one was heard steadily

So of the nodes that hear each other the lowest judges in the end, and the others print what it
says. A node follows one at a time: while two judge, each thing is said once on a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.nodes.judging.tree import FIRST

if TYPE_CHECKING:
    from collections.abc import Sequence

SILENT_AFTER_S = 15.0
"""A node tells something each second; a busy one, or a busy place, may be ten times as slow."""
STEP_S = 3.0
"""Between the turns of two who may follow: a word is seen within two seconds."""
LONGEST_LINE = 8
"""Who stands further back takes the last turn, 24 s after whom all followed counts as silent."""
HELD_S = 3.0
"""A lower number that says the same at the same moment is seen within it."""
GAP_S = 5.0
"""A longer pause between its words, and a node is heard now and then only."""
STEADY_S = 10.0
"""Heard for so long without such a pause, a lower number has come back."""


class Role(NamedTuple):
    """What a node does.

    Attributes:
        judge: Whom it follows; None while it follows nobody.
        judges: It takes the words of all, and tells its verdict to all.
        claims: It says that it will.
        waits: Another one is about to judge for it.
    """

    judge: int | None = None
    judges: bool = False
    claims: bool = False
    waits: bool = False


ALONE = Role()
"""Nobody is heard, and nobody can be told: it judges its own ranks."""


class _Voice:
    """Words of one node that judges."""

    def __init__(self, now_s: float) -> None:
        self.steady_since_s = self.last_s = now_s

    def heard(self, at_s: float) -> None:
        if at_s - self.last_s > GAP_S:
            self.steady_since_s = at_s
        self.last_s = max(self.last_s, at_s)

    def is_fresh(self, now_s: float) -> bool:
        return now_s - self.last_s < SILENT_AFTER_S

    def is_steady(self, now_s: float) -> bool:
        steady = self.last_s - self.steady_since_s >= STEADY_S
        return steady and now_s - self.last_s <= GAP_S


class Succession:
    """What one node does, by whom it hears.

    Args:
        own: Its number.
        now_s: Present time, monotonic, as everywhere here.
    """

    def __init__(self, own: int, now_s: float) -> None:
        self._own = own
        self._voices: dict[int, _Voice] = {}
        self._line: tuple[int, ...] = ()
        self._left_alone_s = now_s + SILENT_AFTER_S
        self._reached_since_s: float | None = None
        self._claims_since_s: float | None = None
        self._role = Role(judges=True) if own == FIRST else ALONE

    def hear(self, judge: int, line: Sequence[int], at_s: float) -> None:
        """Take a word of a node that judges, or will.

        Args:
            judge: Its number.
            line: The lowest numbers that it hears.
            at_s: When the word was new.
        """
        voice = self._voices.setdefault(judge, _Voice(at_s))
        if at_s >= voice.last_s:
            voice.heard(at_s)
            self._line = tuple(line[:LONGEST_LINE])

    def role(self, now_s: float, *, reaches: bool) -> Role:
        """Return what this node does from now on.

        Args:
            now_s: Present time.
            reaches: A place where nodes meet can be used.
        """
        self._note_reach(now_s, reaches=reaches)
        if self._own != FIRST:
            self._role = self._next(now_s, reaches=reaches)
        return self._role

    def _note_reach(self, now_s: float, *, reaches: bool) -> None:
        if not reaches:
            self._reached_since_s = None
        elif self._reached_since_s is None:
            self._reached_since_s = now_s

    def _next(self, now_s: float, *, reaches: bool) -> Role:
        fresh = {node: one for node, one in self._voices.items() if one.is_fresh(now_s)}
        if self._role.judges or self._role.claims:
            return self._stay(fresh, now_s, reaches=reaches)
        followed = self._followed(fresh, now_s)
        if followed is not None:
            self._left_alone_s = self._voices[followed].last_s + SILENT_AFTER_S
            if followed > self._own and fresh[followed].is_steady(now_s):
                return self._claim(now_s)
            return Role(judge=followed)
        if not reaches or self._reached_since_s is None:
            return ALONE
        listened_s = self._reached_since_s + GAP_S
        if now_s >= max(self._left_alone_s, listened_s) + self._turn_s():
            return self._claim(now_s)
        return Role(waits=True) if self._voices else ALONE

    def _followed(self, fresh: dict[int, _Voice], now_s: float) -> int | None:
        """Whom this node follows: one that it hears, until a lower number is heard steadily."""
        lowest, known = min(fresh, default=None), self._role.judge
        if lowest is None or known not in fresh or fresh[lowest].is_steady(now_s):
            return lowest
        return known

    def _turn_s(self) -> float:
        place = self._line.index(self._own) if self._own in self._line else LONGEST_LINE
        if not self._line:
            place = min(self._own - 1, LONGEST_LINE)
        return STEP_S * place

    def _claim(self, now_s: float) -> Role:
        self._claims_since_s = now_s
        return Role(claims=True, waits=True)

    def _stay(self, fresh: dict[int, _Voice], now_s: float, *, reaches: bool) -> Role:
        """Go on judging, or claiming to: the lower number rules."""
        lower = {node: one for node, one in fresh.items() if node < self._own}
        newer = [node for node, one in lower.items() if self._role.claims or one.is_steady(now_s)]
        if newer:
            return Role(judge=min(newer))
        if not reaches:
            self._left_alone_s = now_s
            return ALONE
        began_s = self._claims_since_s
        if self._role.claims and began_s is not None and now_s - began_s < HELD_S:
            return self._role
        return Role(judges=True)
