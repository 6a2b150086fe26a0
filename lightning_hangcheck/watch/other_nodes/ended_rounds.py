"""Rounds of this node that have ended, until it is known how they ended on all nodes.

The node that judges waits a little for what the others tell of their ranks, and the others for what
it makes of that, so the chapter's end is the same on all of them. Meanwhile the next round is
watched: nothing here blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.nodes.round_end import RoundEnd, left_round
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.other_nodes.last_words import join_round_end
from lightning_hangcheck.watch.ranks.rounds import end_round

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.run import Round
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.round_end import LeftRound
    from lightning_hangcheck.watch.other_nodes.among_nodes import AmongNodes

JUDGED_AFTER_S = 8.0
"""What failed on another node is told within a second; nodes that are numbered anew begin to hear
each other only then, some seconds later."""
FOLLOWED_AFTER_S = JUDGED_AFTER_S + 5.0
"""Then the verdict of who judges has come, or does not: it has lost more than this round."""

TOLD_S = 60.0
"""So long others are told of it: by then all have begun the next round, or none will."""


class LeftHere(NamedTuple):
    """A round that has ended on this node.

    Attributes:
        case: Of its ranks here.
        hang: That stood then.
    """

    case: Case
    started_at: str
    hang: Verdict | None


class Settled(NamedTuple):
    """How it ended: to be told, with the case that shows it, and as it is remembered."""

    case: Case
    verdict: Verdict
    ended: Round


class EndedRounds:
    """What is not settled yet, the oldest first."""

    def __init__(self) -> None:
        self._left: list[LeftHere] = []
        self._newest: LeftRound | None = None
        self._newest_ns = 0

    def leave(self, left: LeftHere, nodes: AmongNodes | None) -> None:
        """Take a round in that has just ended here, and have the other nodes know."""
        self._left.append(left)
        self._newest, self._newest_ns = left_round(left.case), left.case.taken_ns
        if nodes is not None:
            self.meet(nodes)

    def meet(self, nodes: AmongNodes) -> None:
        """Have other nodes know also where they are met anew: in another order, each round."""
        nodes.left = self._newest

    def settled(
        self, nodes: AmongNodes | None, now_ns: int, *, at_once: bool = False
    ) -> Iterator[Settled]:
        """Yield the rounds of which it is known by now how they ended.

        Args:
            nodes: This one among the others; None where there are none.
            now_ns: Present time.
            at_once: The job ends: by what is known now.
        """
        if nodes is not None and now_ns - self._newest_ns > TOLD_S * NANOSECONDS:
            nodes.left = nodes.round_end = self._newest = None
        while self._left:
            left = self._left[0]
            waited_s = (now_ns - left.case.taken_ns) / NANOSECONDS
            found = _settle(left, nodes, waited_s, at_once=at_once)
            if found is None:
                return
            del self._left[0]
            yield found


def _settle(
    left: LeftHere, nodes: AmongNodes | None, waited_s: float, *, at_once: bool
) -> Settled | None:
    if nodes is None:
        return Settled(left.case, *end_round(*left))
    if nodes.judges:
        case = _joined(left.case, nodes, over=at_once or waited_s >= JUDGED_AFTER_S)
        if case is None:
            return None
        verdict, ended = end_round(case, left.started_at, left.hang)
        nodes.round_end = RoundEnd(ended, verdict)
        return Settled(case, verdict, ended)
    told = nodes.told_end
    if told is not None and _is_ours(told, left.case):
        return Settled(left.case, told.verdict, _with_places(told, left))
    over = at_once or waited_s >= FOLLOWED_AFTER_S
    return Settled(left.case, *end_round(*left)) if over else None


def _joined(own: Case, nodes: AmongNodes, *, over: bool) -> Case | None:
    try:
        return join_round_end(own, nodes.judged_with(), nodes.place, over=over)
    except Exception as error:  # noqa: BLE001 - others' facts must not end the watch of ours
        log.once("join", f"what other nodes tell is left out, it cannot be joined: {error!r}")
        return own


def _is_ours(told: RoundEnd, case: Case) -> bool:
    """Whether it is of this very round: of no other, also where nodes count theirs otherwise."""
    pids = {one.rank: one.pid for one in told.verdict.ranks}
    ours = {view.rank: view.pid for view in case.ranks}
    same = all(pids[rank] in (None, pid) for rank, pid in ours.items() if rank in pids)
    return told.round.number == case.run.round and same


def _with_places(told: RoundEnd, left: LeftHere) -> Round:
    """Return the round as it is told, with where the ranks of this node were."""
    _, own = end_round(*left)
    places = {place.rank: place for place in (*told.round.ranks, *own.ranks)}
    ranks = tuple(places[rank] for rank in sorted(places))
    return replace(told.round, started_at=left.started_at, ranks=ranks)
