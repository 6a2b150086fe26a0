"""Joins to this node's case what other nodes send, and that some are silent."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.judge.alike import with_members
from lightning_hangcheck.judge.exits import failed
from lightning_hangcheck.judge.joining import ELSEWHERE, NodeCase, merge_cases
from lightning_hangcheck.judge.wording import which_node, why_silent
from lightning_hangcheck.machine import TICKS_PER_SECOND, ticks_since_boot
from lightning_hangcheck.model.case import Case, RankView, Reach, RunFacts, SilentNode
from lightning_hangcheck.model.evidence import AddressReach, Gap
from lightning_hangcheck.nodes import message as messages
from lightning_hangcheck.text.moments import read_utc, utc
from lightning_hangcheck.text.shown import NANOSECONDS, format_ranks
from lightning_hangcheck.watch.roster import end_round

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.identity import NodePlace
    from lightning_hangcheck.model.run import Round
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.who_judges import PeerState
    from lightning_hangcheck.observe.watched_rank import WatchedRound
    from lightning_hangcheck.watch.among_nodes import AmongNodes

CANNOT_JOIN = "what other nodes tell is left out, it cannot be joined"
ANSWERED_LATER_S = 5.0
"""A packet must come this much later than a node's last message to count: both travel."""
UNANSWERED_S = 3.0
"""A lost packet is sent again within 1 s; one in a thousand needs several tries, within 3 s."""
GOES_ON_S = 5.0


def join_peers(
    own: Case, peers: Iterable[PeerState], silent: Iterable[PeerState] = (), number: int = 0
) -> Case:
    """Return this node's case with the ranks of other nodes that are in the same round.

    Of ``silent`` nodes only the ranks' names, and how far they were, are joined.
    """
    started = own.run.local_world_size is not None
    theirs = [peer for peer in peers if started and _belongs(peer, own)]
    cases = []
    for peer in theirs:
        alone = [line for line in peer.message.lines if line.alone]
        if alone or not peer.message.lines:
            cases.append(
                _case_of(peer, own, (with_members(line.view, line.groups) for line in alone))
            )
    # ranks in the same situation form one case for all of these nodes
    lines = (line for peer in theirs for line in peer.message.lines if not line.alone)
    classes = messages.within(messages.together(lines), (0, own.run.world_size - 1))
    if classes:
        cases.append(_of_classes(classes, [peer.message for peer in theirs], own))
    cases += [_silent_node(peer, own) for peer in silent if _belongs(peer, own)]
    if not cases:
        return own
    return merge_cases([NodeCase(f"node {number}", own, met=True), *cases], own.run.run_id)


def _belongs(peer: PeerState, own: Case) -> bool:
    return peer.message.local_world_size is not None and peer.message.round == own.run.round


def _case_of(peer: PeerState, own: Case, views: Iterable[RankView]) -> NodeCase:
    message = peer.message
    age_s = max(0.0, (own.taken_ns - peer.received_ns) / NANOSECONDS)
    case = Case(
        run=RunFacts(
            run_id=own.run.run_id,
            command=own.run.command,
            started_at=own.run.started_at,
            world_size=message.world_size or own.run.world_size,
            nnodes=own.run.nnodes,
            local_world_size=message.local_world_size,
            machine=message.machine,
        ),
        taken_at=utc(read_utc(own.taken_at) - timedelta(seconds=age_s)),
        taken_ns=messages.TAKEN_NS,
        ranks=tuple(views),
        gaps=message.gaps,
        code=message.code,
        limits=own.limits,
    )
    return NodeCase(f"node {message.node}", case, met=True)


def _of_classes(
    classes: Sequence[messages.RankClass], words: Sequence[messages.Message], own: Case
) -> NodeCase:
    found, lost = messages.bounded(classes)
    gaps = list(dict.fromkeys(gap for message in words for gap in message.gaps))
    if lost:
        why = "they stand in too many ways of their own for all of them to be told"
        gaps.insert(0, Gap(f"evidence of {lost} ranks", None, why, "other"))
    folded = [node for node in words if node.lines and not any(line.alone for line in node.lines)]
    ranks = sum(node.local_world_size or 0 for node in folded)
    views, alike = zip(*map(messages.as_view, found), strict=True)
    case = Case(
        run=replace(own.run, local_world_size=ranks, machine=""),
        taken_at=own.taken_at,
        taken_ns=messages.TAKEN_NS,
        ranks=views,
        gaps=tuple(gaps[: messages.MOST_GAPS]),
        code=tuple(dict.fromkeys(note for message in words for note in message.code))[
            : messages.MOST_CODE
        ],
        limits=own.limits,
        alike=alike,
    )
    return NodeCase("other nodes", case, met=True)


def _silent_node(peer: PeerState, own: Case) -> NodeCase:
    quiet_s = (own.taken_ns - peer.received_ns) / NANOSECONDS
    alone = [line.view for line in peer.message.lines if line.alone]
    lines = [line for line in peer.message.lines if not line.alone]
    alike = [
        messages.as_view(rank_class)
        for rank_class in messages.within(lines, (0, max(0, own.run.world_size - 1)))
    ]
    views = (
        replace(
            messages.brief(view), unheard_for_s=quiet_s, silent_for_s=view.silent_for_s + quiet_s
        )
        for view in (*alone, *(view for view, _ in alike))
    )
    node = _case_of(peer, own, views)
    case = replace(node.case, gaps=(), code=(), alike=tuple(stands for _, stands in alike))
    return replace(node, case=case)


def wanted_of(peers: Iterable[PeerState], world_size: int) -> tuple[int, ...]:
    """Return ranks of other nodes whose evidence is needed: one of each silent class."""
    if world_size <= messages.FOLDED_ABOVE:
        return ()
    lines = (line for peer in peers for line in peer.message.lines)
    silent = (line for line in lines if line.view.silent_for_s >= messages.CALM_BELOW_S)
    chosen, _ = messages.odd_and_usual(messages.together(silent))
    return tuple(sorted(rank_class.ranks[0] for rank_class in chosen))


# Nodes that are not heard: those that fell silent, and those that never came


def with_silent_nodes(
    own: Case,
    joined: Case,
    absent: Sequence[int],
    silent: Sequence[SilentNode],
    gaps: Sequence[Gap],
) -> Case:
    """Return the joined case with what is unknown of other nodes."""
    facts = replace(
        own.run,
        world_size=joined.run.world_size,
        local_world_size=joined.run.local_world_size,
        absent_nodes=tuple(absent),
        silent_nodes=tuple(silent),
    )
    kept = (gap for gap in joined.gaps if not gaps or gap.why != ELSEWHERE)
    return replace(joined, gaps=(*kept, *gaps), run=facts)


def addresses_to_ask(
    peers: Mapping[int, PeerState], own: Iterable[str], missed: Iterable[int]
) -> dict[int, tuple[str, ...]]:
    """Return, for each missed node, the addresses that no other node has."""
    known = Counter(own)
    for peer in peers.values():
        known.update(set(peer.message.addresses))
    return {
        node: tuple(address for address in peers[node].message.addresses if known[address] == 1)
        for node in missed
    }


def silent_node(
    peer: PeerState, seconds: float, reaches: Iterable[AddressReach], others: Iterable[RankView]
) -> SilentNode:
    """Describe a node that fell silent, and what was known of it last."""
    there = list(reaches)
    unanswered_s = max((peer.unanswered_s for peer in there if peer.unanswered), default=0.0)
    silences = [view.silent_for_s for view in others]
    reach: Reach = "unknown"
    if any(peer.heard_s < seconds - ANSWERED_LATER_S for peer in there):
        reach = "answers"
    elif unanswered_s >= UNANSWERED_S:
        reach = "unanswered"
    elif silences and max(silences) < GOES_ON_S:
        reach = "goes_on"
    # how far its ranks were known to be
    beats = [view.beat for view in views_of([peer]) if view.beat is not None]
    marks = [beat.checkpoint for beat in beats if beat.checkpoint is not None]
    mark = max(marks, key=lambda mark: mark.number, default=None)
    steps = [beat.step for beat in beats if beat.step is not None]
    known = [f"checkpoint {mark.number} ({mark.name})"] if mark is not None else []
    known += [f"step {max(steps)}"] if steps else []
    return SilentNode(
        number=peer.message.node,
        ranks=format_ranks(peer.ranks),
        silent_s=seconds,
        reach=reach,
        unanswered_s=unanswered_s,
        last_known=", ".join(known),
    )


def views_of(peers: Iterable[PeerState]) -> Iterator[RankView]:
    """Yield the nodes' views of ranks, one for all ranks in the same situation."""
    return (line.view for peer in peers for line in peer.message.lines)


def silence_gap(node: SilentNode) -> Gap:
    """Return a node's silence as a gap."""
    known = f"; last known there: {node.last_known}" if node.last_known else ""
    why = f"has not been heard for {node.silent_s:.0f} s: {why_silent(node)}{known}"
    return Gap(which_node(node), None, why, "other_nodes")


def which_nodes(nodes: Iterable[int]) -> str:
    """Write ``node 3`` or ``nodes 3-5``."""
    numbers = format_ranks(nodes)
    return f"node{'s' if ',' in numbers or '-' in numbers else ''} {numbers}"


# Rounds of several nodes: how a round and the job ended, and which number a round has. The judging
# node waits a little for the others' messages, and they for its verdict, so that all end a round
# alike. The next round is watched meanwhile: nothing here blocks.

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
        self._nodes: AmongNodes | None = None
        self._newest: messages.LeftRound | None = None
        self._newest_ns = 0

    def meet(self, nodes: AmongNodes | None) -> None:
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
