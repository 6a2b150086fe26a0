"""Rounds that several nodes have in common: how one ended, how the job did, which number one has.

The judging node waits a little for what the others tell of their ranks, and the others for what it
makes of that, so the chapter's end is the same on all of them. Meanwhile the next round is watched:
nothing here blocks.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.judge.exits import failed
from lightning_hangcheck.judge.rank_set import rank_set
from lightning_hangcheck.machine import TICKS_PER_SECOND, ticks_since_boot
from lightning_hangcheck.nodes.classes import class_of
from lightning_hangcheck.nodes.word import RoundEnd, RoundMark, left_round
from lightning_hangcheck.text.shown import NANOSECONDS
from lightning_hangcheck.watch.other_nodes.joining import join_heard, silent_node, views_of
from lightning_hangcheck.watch.roster import end_round

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.run import NodePlace, Round
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.peers import Heard
    from lightning_hangcheck.nodes.word import LeftRound
    from lightning_hangcheck.watch.other_nodes.among_nodes import AmongNodes
    from lightning_hangcheck.watch.roster import WatchedRound

JUDGED_AFTER_S = 8.0
"""What failed on another node is told within a second; nodes that are numbered anew begin to hear
each other only then, some seconds later."""
FOLLOWED_AFTER_S = JUDGED_AFTER_S + 5.0
"""Then the verdict of who judges has come, or does not: it has lost more than this round."""
TOLD_S = 60.0
"""So long others are told of it: by then all have begun the next round, or none will."""
TOGETHER_S = 3.0
"""torchrun's agents start their ranks within a second, once all have met; a word takes up to two.
What was started and ended within three has had no time to hang."""
STOOD_S = 5.0
"""So old a round must be before it takes another number: what was of the round before has gone."""
MOST_COMPARED = 4_096
"""Ranks of a node."""


class LeftHere(NamedTuple):
    """A round that has ended on this node: the case of its ranks here, the hang that stood then."""

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
        """Yield the rounds of which it is known by now how they ended."""
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
        over = at_once or waited_s >= JUDGED_AFTER_S
        try:
            case = join_round_end(left.case, nodes.judged_with(), nodes.place, over=over)
        except Exception as error:  # noqa: BLE001 - others' facts must not end the watch of ours
            log.once("join", f"what other nodes tell is left out, it cannot be joined: {error!r}")
            case = left.case
        if case is None:
            return None
        verdict, ended = end_round(case, left.started_at, left.hang)
        nodes.round_end = RoundEnd(ended, verdict)
        return Settled(case, verdict, ended)
    told = nodes.peers.end
    if told is not None and _is_ours(told, left.case):
        _, own = end_round(*left)
        places = {place.rank: place for place in (*told.round.ranks, *own.ranks)}
        ranks = tuple(places[rank] for rank in sorted(places))
        ended = replace(told.round, started_at=left.started_at, ranks=ranks)
        return Settled(left.case, told.verdict, ended)
    over = at_once or waited_s >= FOLLOWED_AFTER_S
    return Settled(left.case, *end_round(*left)) if over else None


def _is_ours(told: RoundEnd, case: Case) -> bool:
    """Whether it is of this very round: of no other, also where nodes count theirs otherwise."""
    pids = {one.rank: one.pid for one in told.verdict.ranks}
    same = all(pids.get(view.rank) in (None, view.pid) for view in case.ranks)
    return told.round.number == case.run.round and same


# How the ranks of all nodes ended: what the others told before they went


def first_failure_ns(own: Case) -> int:
    """Return when the first rank here was seen to have failed, 0 if none did."""
    ends = (view.process_exit for view in own.ranks if failed(view))
    return min((one.seen_ns for one in ends if one is not None), default=0)


def have_said(heard: Mapping[int, Heard], since_ns: int) -> set[int]:
    """Return the nodes that told how their ranks ended, or were heard since that failure at all."""
    return {
        node
        for node, one in heard.items()
        if one.word.ended or one.heard_ns > since_ns or _tells_an_end(one)
    }


def _tells_an_end(heard: Heard) -> bool:
    return any(view.process_exit is not None for view in views_of([heard]))


def told_and_gone(
    heard: Mapping[int, Heard], said: Collection[int]
) -> tuple[list[Heard], list[Heard]]:
    """Return who told of the end, and who was lost.

    A node that has told nothing since a rank failed here is gone, if others have; else it is the
    place where they meet that went first, and nothing is known of any.
    """
    told = [one for node, one in heard.items() if node in said]
    gone = [one for node, one in heard.items() if node not in said]
    return ([], []) if not told and len(gone) > 1 else (told, gone)


def join_end(own: Case, told: Sequence[Heard], gone: Sequence[Heard], number: int) -> Case:
    """Return how the job ended on all nodes that told it."""
    if not told and not gone:
        return own
    joined = join_heard(own, told, gone, number)
    silent = tuple(
        silent_node(one, (own.taken_ns - one.heard_ns) / NANOSECONDS, (), ()) for one in gone
    )
    run = replace(own.run, world_size=joined.run.world_size, silent_nodes=silent)
    return replace(joined, run=run, ended=True, limits=own.limits)


def join_round_end(
    own: Case, heard: Mapping[int, Heard], place: NodePlace, *, over: bool
) -> Case | None:
    """Return how a round ended on all nodes, which have begun another one or are about to.

    Returns:
        None while one has not.
    """
    found = {node: _of_round(one, own.run.round) for node, one in heard.items()}
    there = {node: one for node, one in found.items() if one is not None}
    told_it = {node for node, one in there.items() if one.word.ended or _tells_an_end(one)}
    if not over and len(told_it) < place.nnodes - 1:
        return None
    ends = (view.process_exit.seen_ns for view in own.ranks if view.process_exit is not None)
    since_ns = first_failure_ns(own) or min(ends, default=own.taken_ns)
    said = told_it | have_said(there, since_ns)
    return join_end(own, *told_and_gone(there, said), place.number)


def _of_round(heard: Heard, number: int) -> Heard | None:
    """Return what a node told of a round, its present one or the one before; None where nothing."""
    word, left = heard.word, heard.word.left
    if word.round == number:
        return heard
    if left is None or left.number != number:
        return None
    before = replace(
        word,
        round=number,
        world_size=left.world_size,
        local_world_size=left.local_world_size,
        ranks=rank_set(view.rank for view in left.ranks),
        lines=tuple(class_of(view, (), 0) for view in left.ranks),
        gaps=(),
        code=(),
    )
    return replace(heard, word=before)


# One number for one round on all nodes. Each node counts the rounds that it saw. One that joined
# later, or whose ranks came and went unseen, has counted fewer.


def mark_of(watched: WatchedRound) -> RoundMark:
    """Return by what other nodes know a round of this one."""
    ranks = [one for one in watched.ranks.values() if one.found.start.launcher == "torchrun"]
    ports = {one.found.store_port for one in ranks}
    starts = [one.found.started_ticks for one in ranks if one.found.started_ticks]
    if not starts or len(ports) != 1:
        return RoundMark()
    began_s = (ticks_since_boot() - min(starts)) / TICKS_PER_SECOND
    return RoundMark(began_s=began_s, store_port=ports.pop() or 0)


def agreed_number(
    watched: WatchedRound, mark: RoundMark, heard: Iterable[Heard], now_ns: int
) -> int:
    """Return the number of the present round: never a smaller one than it has."""
    settled = mark.began_s >= STOOD_S and len(watched.alive) == len(watched.ranks)
    if not mark.store_port or not settled:
        return watched.number
    others = []
    for one in heard:
        word = one.word
        began_s = word.mark.began_s + (now_ns - one.heard_ns) / NANOSECONDS
        same_size = word.round > watched.number and word.world_size == watched.world_size
        if same_size and word.mark.store_port and abs(began_s - mark.began_s) <= TOGETHER_S:
            ranks = set(islice(one.ranks, MOST_COMPARED))
            if not ranks & watched.ranks.keys():
                others.append((word, ranks))
    numbers = [word.round for word, _ in others if word.mark.store_port == mark.store_port]
    told = [*watched.ranks, *chain.from_iterable(ranks for _, ranks in others)]
    if not numbers and sorted(told) == list(range(watched.world_size)):
        # each rank of the job once: it is one start, at whatever stores
        numbers = [word.round for word, _ in others]
    return max(numbers, default=watched.number)
