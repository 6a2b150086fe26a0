"""What ranks stand in at their start: what all have in common in one line, and what differs.

What each rank says of its state is in its journal, whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.text.shown import format_ranks, one_line, several, told_apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

OWN = frozenset(
    {
        "GROUP_RANK",
        "HANGCHECK_JOINED",
        "HANGCHECK_RANK_PROCESS",
        "LOCAL_RANK",
        "NODE_RANK",
        "RANK",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_PROCID",
        "SLURM_TASK_PID",
        "TORCHELASTIC_ERROR_FILE",
    }
)
"""Variables that each rank has for itself."""
IN_COMMON = ("versions", "CUDA", "process group")
NOT_SET = "not set"
MOST_DIFFERENCES = 10
MOST_VALUES = 4
LONGEST_VALUE = 100
INDENT = " " * 10


def render_start(states: Mapping[int, Mapping[str, str]], missing: Iterable[int]) -> str:
    """Write what ranks have in common and what differs between them, for the console.

    Args:
        states: By rank, what it says: subjects and variables of the environment.
        missing: Ranks that have said nothing yet.
    """
    differing = {
        name: values
        for name in sorted({name for state in states.values() for name in state} - OWN)
        if len(values := _by_value(states, name)) > 1
    }
    head = "; ".join(_heads(states, differing, sorted(missing)))
    lines = [f"{name}: {_spread(values)}" for name, values in differing.items()]
    left_out = len(lines) - MOST_DIFFERENCES
    if left_out > 0:
        lines[MOST_DIFFERENCES:] = [f"and {left_out} more: the ranks' journals have all"]
    return "\n".join([f"STATE     {head}", *(f"{INDENT}{line}" for line in lines)])


def _heads(
    states: Mapping[int, Mapping[str, str]],
    differing: Mapping[str, object],
    missing: list[int],
) -> Iterator[str]:
    first = states[min(states)]
    for number, name in enumerate(IN_COMMON):
        if name in first and name not in differing:
            who = f"{several(len(states), 'rank')} at the start: " if not number else f"{name}: "
            yield one_line(f"{who}{first[name]}")
        elif not number:
            yield f"{several(len(states), 'rank')} at the start"
    if missing:
        yield f"of rank {format_ranks(missing)} nothing is known yet"
    if len(states) > 1:
        yield "what differs:" if differing else "nothing differs"


def _by_value(states: Mapping[int, Mapping[str, str]], name: str) -> dict[str, list[int]]:
    values: dict[str, list[int]] = {}
    for rank, state in sorted(states.items()):
        values.setdefault(state.get(name, NOT_SET), []).append(rank)
    return values


def _spread(values: Mapping[str, list[int]]) -> str:
    """Who has which value, the most frequent one first."""
    ordered = sorted(values.items(), key=lambda pair: (-len(pair[1]), pair[1]))
    texts = told_apart([value for value, _ in ordered[:MOST_VALUES]], LONGEST_VALUE)
    shown = [
        f"{text} (rank {format_ranks(ranks)})"
        for text, (_, ranks) in zip(texts, ordered, strict=False)
    ]
    left_out = len(ordered) - len(shown)
    if left_out:
        shown.append(several(left_out, "other value"))
    return "; ".join(shown)
