"""One number for one round on all nodes: which number does this node give its present one? Pure.

Each node counts the rounds that it saw. One that joined later, or whose ranks came and went unseen,
has counted fewer. Then the others' number counts, where theirs is the very same start of the job.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from lightning_hangcheck.machine.process_stat import TICKS_PER_SECOND, ticks_since_boot
from lightning_hangcheck.nodes.digest import RoundMark
from lightning_hangcheck.nodes.heard import ranks_of
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.nodes.heard import Heard
    from lightning_hangcheck.watch.ranks.rounds import WatchedRound

TOGETHER_S = 3.0
"""torchrun's agents start their ranks within a second, once all have met; a word takes up to two.
What was started and ended within three has had no time to hang."""
STOOD_S = 5.0
"""So old a round must be before it takes another number: what was of the round before has gone."""
MOST_COMPARED = 4_096
"""Ranks of a node."""


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
    """Return the number of the present round: never a smaller one than it has.

    Args:
        watched: The round, as this node sees it.
        mark: Of it.
        heard: What other nodes told.
        now_ns: Present time.
    """
    settled = mark.began_s >= STOOD_S and len(watched.alive) == len(watched.ranks)
    if not mark.store_port or not settled:
        return watched.number
    together = [
        (one.state, set(islice(ranks_of(one), MOST_COMPARED)))
        for one in heard
        if one.state.round > watched.number
        and one.state.world_size == watched.world_size
        and one.state.mark.store_port
        and abs(_began_s(one, now_ns) - mark.began_s) <= TOGETHER_S
    ]
    others = [(state, ranks) for state, ranks in together if not ranks & watched.ranks.keys()]
    numbers = [state.round for state, _ in others if state.mark.store_port == mark.store_port]
    if not numbers and _are_all(watched, [ranks for _, ranks in others]):
        numbers = [state.round for state, _ in others]
    return max(numbers, default=watched.number)


def _are_all(watched: WatchedRound, others: Sequence[set[int]]) -> bool:
    """Whether these nodes have each rank of the job once: then it is one start, whatever store."""
    told = [*watched.ranks, *chain.from_iterable(others)]
    return sorted(told) == list(range(watched.world_size))


def _began_s(heard: Heard, now_ns: int) -> float:
    """Seconds since the ranks of a node were started, but for what its word took."""
    return heard.state.mark.began_s + (now_ns - heard.heard_ns) / NANOSECONDS
