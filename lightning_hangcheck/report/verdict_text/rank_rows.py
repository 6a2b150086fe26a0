"""One row for all ranks that are in the same situation, whatever the world size.

A row shows where they are: the line of the user's own code on their stack, in few columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.naming.code_owner import is_users
from lightning_hangcheck.model.verdict import MOST_LISTED
from lightning_hangcheck.report.paragraphs import INDENT, aligned, plain
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lightning_hangcheck.model.verdict import Edge, RankState, State, Verdict

LONGEST_RANKS = 24
DOING, FUNCTION, LINE = 2, 3, 4
STATE_WORDS: dict[State, tuple[str, str]] = {
    "running": ("runs", "run"),
    "waiting": ("waits", "wait"),
    "stalled": ("is stuck", "are stuck"),
    "stopped": ("is stopped", "are stopped"),
    "gone": ("is gone", "are gone"),
    "missing": ("never came", "never came"),
    "unseen": ("is unseen", "are unseen"),
}
PAST_WORDS: dict[State, tuple[str, str]] = {
    **STATE_WORDS,
    "waiting": ("waited", "waited"),
    "stalled": ("was stuck", "were stuck"),
    "stopped": ("was stopped", "were stopped"),
    "unseen": ("was unseen", "were unseen"),
}
ENDED = ("ended", "ended")


def rank_rows(verdict: Verdict, seen: Mapping[int, str], most: int) -> list[str]:
    """Write the rank table, culprits first, then by rank.

    Args:
        verdict: Whose ranks.
        seen: For a rank the time of its last progress (``since 10:23:45Z``) or how it ended; a row
            of ranks that do not run shows the earliest.
        most: Largest number of lines; ranks that do not fit share the last one.
    """
    edges = edges_by_source(verdict)
    rows = situations(verdict, edges)
    fitting = most if len(rows) <= most else most - 1
    cells = [_cells(situation, states, edges, seen) for situation, states in rows[:fitting]]
    lines = aligned(cells, shrinking=(DOING, FUNCTION, LINE), tails=LINE) if cells else []
    left_out = [state.rank for _, states in rows[fitting:] for state in states]
    if left_out:
        rest = f"in {len(rows) - fitting} more situations, see verdict.json"
        lines.append(f"{INDENT}{name_ranks(left_out)}  {rest}")
    return lines


def name_ranks(ranks: Sequence[int]) -> str:
    """Write ``rank 1`` or ``ranks 0,2-7``; long lists are cut and counted."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {number_ranks(ranks)}"


def number_ranks(ranks: Sequence[int]) -> str:
    """Write ``1`` or ``0,2-7``; long lists are cut and counted."""
    text = format_ranks(ranks)
    if len(text) > LONGEST_RANKS:
        shown = text[: LONGEST_RANKS - 10].rpartition(",")[0]
        more = "or more" if len(ranks) == MOST_LISTED else "in all"
        text = f"{shown},... ({len(ranks)} {more})"
    return text


class Place(NamedTuple):
    """A function and where in it, for example ``prepare`` and ``train.py:88``."""

    function: str = ""
    line: str = ""


def user_place(frames: Sequence[str]) -> Place:
    """Find the innermost frame of the user's own code.

    Args:
        frames: Outermost first, each ``func (file:line)``.

    Returns:
        That frame's place with its path cut to the last two parts; the innermost frame of all where
        none is the user's; an empty place where no frame can be read.
    """
    read = [frame for text in reversed(frames) if (frame := Frame.parse(text))]
    own = [frame for frame in read if is_users(frame.file)]
    for frame in own or read:
        return Place(frame.function, f"{short_path(frame.file)}:{frame.line}")
    return Place()


def short_path(path: str) -> str:
    """Keep the last two parts of a path, enough to tell files of one project apart."""
    return "/".join(path.split("/")[-2:])


class Situation(NamedTuple):
    """What ranks in equal standing have in common."""

    is_culprit: bool
    state: tuple[str, str]
    doing: str
    place: Place
    phase: str


def edges_by_source(verdict: Verdict) -> dict[str, list[Edge]]:
    """Return the arrows of the wait-for graph that leave each node."""
    edges: dict[str, list[Edge]] = {}
    for edge in verdict.wait_for:
        edges.setdefault(edge.source, []).append(edge)
    return edges


def situations(
    verdict: Verdict, edges: Mapping[str, Sequence[Edge]]
) -> list[tuple[Situation, list[RankState]]]:
    """Group the ranks of the table by what they have in common, culprits first, then by rank.

    Args:
        verdict: Whose ranks.
        edges: Of `edges_by_source`.
    """
    places = {group.id: user_place(group.frames) for group in verdict.stack_groups}
    culprits = frozenset(verdict.culprits)
    rows: dict[Situation, list[RankState]] = {}
    for state in verdict.ranks:
        situation = Situation(
            is_culprit=state.rank in culprits,
            state=_state_words(verdict, state),
            doing=_doing(state, edges.get(f"rank:{state.rank}", ())),
            place=places.get(-1 if state.stack_group is None else state.stack_group, Place()),
            phase=state.phase or "",
        )
        rows.setdefault(situation, []).append(state)
    return sorted(rows.items(), key=lambda row: (not row[0].is_culprit, row[1][0].rank))


def _state_words(verdict: Verdict, state: RankState) -> tuple[str, str]:
    """Singular and plural; a verdict on what is over speaks of the past."""
    if verdict.verdict == "finished":
        return ENDED
    return (PAST_WORDS if verdict.verdict == "recovered" else STATE_WORDS)[state.state]


def _doing(state: RankState, edges: Sequence[Edge]) -> str:
    """What it waits in; without an edge the innermost section that it is in."""
    if edges:
        return plain(edges[0].through)
    return f"in {plain(state.open_sections[-1])}" if state.open_sections else ""


def _cells(
    situation: Situation,
    states: Sequence[RankState],
    edges: Mapping[str, Sequence[Edge]],
    seen: Mapping[int, str],
) -> tuple[str, ...]:
    ranks = [state.rank for state in states]
    runs = situation.state == STATE_WORDS["running"]
    targets = [edge.target for rank in ranks for edge in edges.get(f"rank:{rank}", ())]
    steps = "" if targets else _steps(states)
    doing = ", ".join(filter(None, (steps, situation.doing, awaited(targets))))
    return (
        name_ranks(ranks),
        situation.state[len(ranks) > 1],
        doing or _checkpoint(states),
        plain(situation.place.function),
        plain(situation.place.line).rpartition("/")[2],
        f"phase {situation.phase}" if situation.phase else "",
        "" if runs else min(seen.get(rank, "") for rank in ranks),
    )


def awaited(targets: Iterable[str]) -> str:
    """Name what the graph's nodes stand for: ``for ranks 1,3`` or ``for worker 1/0``."""
    nodes = sorted({tuple(target.partition(":")[::2]) for target in targets})
    ranks = [int(name) for kind, name in nodes if kind == "rank"]
    if ranks:
        return f"for {name_ranks(ranks)}"
    for kind, name in nodes:
        return f"for {kind} {plain(short_path(name) if kind == 'file' else name)}"
    return ""


def _steps(states: Sequence[RankState]) -> str:
    """How far these ranks are, where they count steps."""
    steps = [state.step for state in states if state.step is not None]
    if not steps:
        return ""
    first, last = min(steps), max(steps)
    return f"step {first}" if first == last else f"steps {first}-{last}"


def _checkpoint(states: Sequence[RankState]) -> str:
    """The last checkpoint of the first of them."""
    mark = states[0].last_checkpoint
    return f"after checkpoint {mark.number} {plain(mark.name)}" if mark else ""
