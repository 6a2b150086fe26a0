"""Rounds of several nodes: how a round and the job ended, and which number a round has.

The judging node waits a little for the others' messages, and they for its verdict, so that all end
a round alike. The next round is watched meanwhile: nothing here blocks.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.judge.exits import failed
from lightning_hangcheck.machine import TICKS_PER_SECOND, ticks_since_boot
from lightning_hangcheck.nodes import message as messages
from lightning_hangcheck.text.shown import NANOSECONDS
from lightning_hangcheck.watch.join_nodes import CANNOT_JOIN, join_peers, silent_node, views_of
from lightning_hangcheck.watch.roster import end_round

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lightning_hangcheck.identity import NodePlace
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.run import Round
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.who_judges import PeerState
    from lightning_hangcheck.observe.watched_rank import WatchedRound
    from lightning_hangcheck.watch.other_nodes import OtherNodes

JUDGED_AFTER_S = 8.0
"""Another node reports a failure within 1 s; but renumbered nodes begin to hear each other only
then, some seconds later."""
FOLLOWED_AFTER_S = JUDGED_AFTER_S + 5.0
"""By then the judging node's verdict has come, or that node has lost more than this round."""
TOLD_S = 60.0
"""Time for which other nodes are sent the round: by then all have begun the next, or none will."""
TOGETHER_S = 3.0
"""torchrun's agents start their ranks within 1 s, once all have met; a message takes up to 2 s.
Ranks that began and ended within 3 s had no time to hang."""
STOOD_S = 5.0
"""Age from which a round may change its number: by then the round before has gone."""
MOST_COMPARED = 4_096
"""Ranks of a node that are compared."""


class LeftHere(NamedTuple):
    """A round that ended on this node: the case of its ranks here, and the hang at its end."""

    case: Case
    started_at: str
    hang: Verdict | None


class EndedRounds:
    """Rounds that ended here, the oldest first, until it is known how they ended on all nodes."""

    def __init__(self) -> None:
        self._left: list[LeftHere] = []
        self._nodes: OtherNodes | None = None
        self._newest: messages.LeftRound | None = None
        self._newest_ns = 0

    def meet(self, nodes: OtherNodes | None) -> None:
        """Settle rounds with these nodes from now on: each round they meet anew, in other order."""
        self._nodes = nodes
        if nodes is not None:
            nodes.left = self._newest

    def leave(self, left: LeftHere) -> None:
        """Add a round that has just ended here, and send it to the other nodes."""
        self._left.append(left)
        self._newest, self._newest_ns = messages.left_round(left.case), left.case.taken_ns
        self.meet(self._nodes)

    def settled(
        self, now_ns: int, *, at_once: bool = False
    ) -> Iterator[tuple[Case, Verdict, Round]]:
        """Yield the rounds whose end is known by now."""
        nodes = self._nodes
        if nodes is not None and now_ns - self._newest_ns > TOLD_S * NANOSECONDS:
            nodes.left = nodes.round_end = self._newest = None
        while self._left:
            left = self._left[0]
            waited_s = (now_ns - left.case.taken_ns) / NANOSECONDS
            if nodes is None:
                found = left.case, *end_round(*left)
            elif nodes.judges:
                try:
                    over = at_once or waited_s >= JUDGED_AFTER_S
                    case = ended_on_all(left.case, nodes.judged_with(), nodes.place, over=over)
                except Exception as error:  # noqa: BLE001 - others' facts must not end our watch
                    log.once("join", f"{CANNOT_JOIN}: {error!r}")
                    case = left.case
                if case is None:
                    return
                verdict, ended = end_round(case, left.started_at, left.hang)
                nodes.round_end = messages.RoundEnd(ended, verdict)
                found = case, verdict, ended
            else:
                end = nodes.peers.judged.end
                # its processes must be ours: nodes may count their rounds differently
                pids = {} if end is None else {rank.rank: rank.pid for rank in end.verdict.ranks}
                same = all(pids.get(view.rank) in (None, view.pid) for view in left.case.ranks)
                found = left.case, *end_round(*left)
                if end is not None and same and end.round.number == left.case.run.round:
                    places = {place.rank: place for place in (*end.round.ranks, *found[2].ranks)}
                    ranks = tuple(places[rank] for rank in sorted(places))
                    ended = replace(end.round, started_at=left.started_at, ranks=ranks)
                    found = left.case, end.verdict, ended
                elif not at_once and waited_s < FOLLOWED_AFTER_S:
                    return
            del self._left[0]
            yield found


# How the ranks of all nodes ended, by the other nodes' last messages


def first_failure_ns(own: Case) -> int:
    """Return when the first failure of a rank here was seen, 0 if none failed."""
    ends = (view.process_exit for view in own.ranks if failed(view))
    return min((end.seen_ns for end in ends if end is not None), default=0)


def ended_on_all(
    own: Case,
    peers: Mapping[int, PeerState],
    place: NodePlace,
    *,
    over: bool = True,
    lost: bool = False,
) -> Case | None:
    """Return how a round ended on all nodes; None while a node has not reported and time is left.

    A node that sent nothing since a rank failed here is gone if other nodes sent something, if it
    is the only other node, or if ``lost`` says so. Else the meeting place went first.
    """
    there = [_in_round(peer, own.run.round) for peer in peers.values()]
    known = [
        (peer, peer.message.ended or any(view.process_exit for view in views_of([peer])))
        for peer in there
        if peer is not None
    ]
    if not over and sum(tells for _, tells in known) < place.nnodes - 1:
        return None
    ends = (view.process_exit.seen_ns for view in own.ranks if view.process_exit is not None)
    since_ns = first_failure_ns(own) or min(ends, default=own.taken_ns)
    said = [tells or peer.received_ns > since_ns for peer, tells in known]
    reported = [peer for (peer, _), has_said in zip(known, said, strict=True) if has_said]
    gone = [peer for (peer, _), has_said in zip(known, said, strict=True) if not has_said]
    if not known or (not reported and len(gone) > 1 and not lost):
        return own
    joined = join_peers(own, reported, gone, place.number)
    silent = tuple(
        silent_node(peer, (own.taken_ns - peer.received_ns) / NANOSECONDS, (), ()) for peer in gone
    )
    run = replace(own.run, world_size=joined.run.world_size, silent_nodes=silent)
    return replace(joined, run=run, ended=True, limits=own.limits)


def _in_round(peer: PeerState, number: int) -> PeerState | None:
    message, left = peer.message, peer.message.left
    if message.round == number or left is None or left.number != number:
        return peer if message.round == number else None
    lines = tuple(messages.class_of(view, (), 0) for view in left.ranks)
    sizes = {"world_size": left.world_size, "local_world_size": left.local_world_size}
    return replace(
        peer, message=replace(message, round=number, lines=lines, gaps=(), code=(), **sizes)
    )


# One number for one round on all nodes. Each node counts the rounds that it saw: fewer if it joined
# later, or if ranks came and went unseen.


def mark_of(watched: WatchedRound) -> messages.RoundMark:
    """Return the mark by which other nodes recognise a round of this node."""
    ranks = [rank for rank in watched.ranks.values() if rank.found.start.launcher == "torchrun"]
    ports = {rank.found.store_port for rank in ranks}
    starts = [rank.found.started_ticks for rank in ranks if rank.found.started_ticks]
    if not starts or len(ports) != 1:
        return messages.RoundMark()
    began_s = (ticks_since_boot() - min(starts)) / TICKS_PER_SECOND
    return messages.RoundMark(began_s=began_s, store_port=ports.pop() or 0)


def agreed_number(
    watched: WatchedRound, mark: messages.RoundMark, peers: Iterable[PeerState], now_ns: int
) -> int:
    """Return the number of the present round: never smaller than its own."""
    settled = mark.began_s >= STOOD_S and len(watched.alive) == len(watched.ranks)
    if not mark.store_port or not settled:
        return watched.number
    others = []
    for peer in peers:
        message = peer.message
        began_s = message.mark.began_s + (now_ns - peer.received_ns) / NANOSECONDS
        same_size = message.round > watched.number and message.world_size == watched.world_size
        if same_size and message.mark.store_port and abs(began_s - mark.began_s) <= TOGETHER_S:
            ranks = set(islice(peer.ranks, MOST_COMPARED))
            if not ranks & watched.ranks.keys():
                others.append((message, ranks))
    numbers = [message.round for message, _ in others if message.mark.store_port == mark.store_port]
    every_rank = [*watched.ranks, *chain.from_iterable(ranks for _, ranks in others)]
    if not numbers and sorted(every_rank) == list(range(watched.world_size)):
        # each rank of the job once: it is one start, whatever stores the ranks use
        numbers = [message.round for message, _ in others]
    return max(numbers, default=watched.number)
