"""Reports the environment of ranks at their start: what they share, and what differs.

Each rank's journal has its environment in full.
"""

from __future__ import annotations

from os.path import commonprefix
from typing import TYPE_CHECKING

from lightning_hangcheck.text.shown import format_ranks, one_line, several, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OWN = frozenset(
    (
        *("GROUP_RANK", "LOCAL_RANK", "NODE_RANK", "RANK", "ROLE_RANK", "TORCHELASTIC_ERROR_FILE"),
        *("SLURM_LOCALID", "SLURM_NODEID", "SLURM_PROCID", "SLURM_TASK_PID"),
        *("SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR", "HANGCHECK_JOINED", "HANGCHECK_RANK_PROCESS"),
    )
)
"""Variables that launchers (torchrun, srun) and this package set differently for each rank."""
NOT_SET = "not set"
MOST_DIFFERENCES = 10


def by_value(by_rank: Mapping[int, str], most: int, longest: int) -> list[tuple[str, list[int]]]:
    """Return the values with their ranks, the most common first."""
    values: dict[str, list[int]] = {}
    for rank, value in sorted(by_rank.items()):
        values.setdefault(value, []).append(rank)
    ordered = sorted(values.items(), key=lambda pair: (-len(pair[1]), pair[1]))
    texts = told_apart([value for value, _ in ordered[:most]], longest)
    shown = [(text, ranks) for text, (_, ranks) in zip(texts, ordered, strict=False)]
    if others := len(ordered) - len(shown):
        rest = [rank for _, ranks in ordered[most:] for rank in ranks]
        shown.append((several(others, "other value"), rest))
    return shown


def render_start(states: Mapping[int, Mapping[str, str]], missing: Iterable[int]) -> str:
    """Write what ranks share and what differs between them, for the console."""
    names = sorted({name for state in states.values() for name in state} - OWN)
    by_variable = {
        name: {rank: state.get(name, NOT_SET) for rank, state in states.items()} for name in names
    }
    differing = {
        name: values for name, values in by_variable.items() if len(set(values.values())) > 1
    }
    first = states[min(states)]
    heads = [f"{several(len(states), 'rank')} at the start"]
    for name in ("versions", "CUDA", "process group"):
        if name in first and name not in differing:
            if name == "versions":
                heads[0] += f": {first[name]}"
            else:
                heads.append(f"{name}: {first[name]}")
    if unheard := sorted(missing):
        heads.append(f"of rank {format_ranks(unheard)} nothing is known yet")
    if len(states) > 1:
        heads.append("what differs:" if differing else "nothing differs")
    lines = []
    for name, values in differing.items():
        spread = by_value(values, most=4, longest=100)
        shown = [f"{text} (rank {format_ranks(ranks)})" for text, ranks in spread[:4]]
        lines.append(f"{name}: {'; '.join([*shown, *(others for others, _ in spread[4:])])}")
    if (left_out := len(lines) - MOST_DIFFERENCES) > 0:
        lines[MOST_DIFFERENCES:] = [f"and {left_out} more: the ranks' journals have all"]
    head = "; ".join(map(one_line, heads))
    return "\n".join([f"STATE     {head}", *(" " * 10 + line for line in lines)])


CUT = "..."
SAME_SHOWN = 20  # Characters shown of a common part, before two texts differ


def told_apart(values: Sequence[str], longest: int) -> list[str]:
    """Cut different texts so that their differences stay visible."""
    # the beginning that a long text shares with another is left out, except its end
    shown = []
    for value in values:
        # RUF071 means paths: these are texts
        others = (commonprefix([value, other]) for other in values if other != value)  # noqa: RUF071
        same = max(map(len, others), default=0)
        begin = max(0, same - SAME_SHOWN) if len(value) > longest else 0
        end = begin + longest
        more = (CUT if begin else "", CUT if end < len(value) else "")
        shown.append(visible(value[begin:end]).join(more))
    return [
        text if shown.count(text) == 1 else f"{text} ({len(value)} characters)"
        for text, value in zip(shown, values, strict=True)
    ]
