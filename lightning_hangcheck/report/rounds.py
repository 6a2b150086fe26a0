"""The chapters of a run whose ranks were started again, as all its nodes saw them, and who moved.

Each node writes down the rounds that it saw, with its own ranks. Joined, they tell on which host a
rank was in which round.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.model.run import Round, RunRecord

MOST_LINES = 6
MOST_STAYS = 8
"""Of one rank, the newest."""

Stays = tuple[tuple[str, tuple[int, ...]], ...]
"""On which hosts a rank was, one after the other, each with its rounds."""


def joined_rounds(records: Iterable[RunRecord]) -> tuple[Round, ...]:
    """Join what the nodes of a job wrote down of its rounds.

    How one ended the first node says that knows a culprit, else the first that was there.

    Args:
        records: Of the nodes, the one whose word counts first.
    """
    found: dict[int, Round] = {}
    for record in records:
        for told in record.rounds:
            known = found.get(told.number)
            found[told.number] = told if known is None else _joined(known, told)
    return tuple(found[number] for number in sorted(found))


def _joined(known: Round, other: Round) -> Round:
    places = {place.rank: place for place in (*other.ranks, *known.ranks)}
    ended = known if known.culprits or not other.culprits else other
    return replace(ended, ranks=tuple(places[rank] for rank in sorted(places)))


def moved_ranks(rounds: Sequence[Round]) -> list[str]:
    """Say of each rank that was on several hosts where it was, ranks that moved alike together.

    Args:
        rounds: Of all nodes.
    """
    stays: dict[int, list[tuple[str, int]]] = {}
    for one in rounds:
        for place in one.ranks:
            stays.setdefault(place.rank, []).append((place.host, one.number))
    alike: dict[Stays, list[int]] = {}
    for rank, places in stays.items():
        moves = tuple(
            (host, tuple(number for _, number in group))
            for host, group in groupby(places, key=lambda place: place[0])
        )
        if len(moves) > 1:
            alike.setdefault(moves, []).append(rank)
    lines = [
        f"{name_ranks(ranks)} ran on {_in_words(moves)}"
        for moves, ranks in sorted(alike.items(), key=lambda item: min(item[1]))
    ]
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"and {more} more moved: see run.json"] if more > 0 else [])]


def _in_words(moves: Stays) -> str:
    told = [
        f"{plain(host)} ({'round' if len(rounds) == 1 else 'rounds'} {format_ranks(rounds)})"
        for host, rounds in moves[-MOST_STAYS:]
    ]
    return ", ".join(["...", *told] if len(moves) > MOST_STAYS else told)
