"""What ranks stand in at their start: what all have in common in one line, and what differs.

What each rank says of its state is in its journal, whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.text.shown import format_ranks, one_line, several, told_apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OWN = frozenset(
    (
        *("GROUP_RANK", "LOCAL_RANK", "NODE_RANK", "RANK", "ROLE_RANK", "TORCHELASTIC_ERROR_FILE"),
        *("SLURM_LOCALID", "SLURM_NODEID", "SLURM_PROCID", "SLURM_TASK_PID"),
        *("SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR", "HANGCHECK_JOINED", "HANGCHECK_RANK_PROCESS"),
    )
)
"""Variables that launchers (torchrun, srun) and we give each rank a value of its own for."""
IN_COMMON = ("versions", "CUDA", "process group")
NOT_SET = "not set"
MOST_DIFFERENCES = 10
MOST_VALUES = 4
LONGEST_VALUE = 100
INDENT = " " * 10


def by_value(told: Mapping[int, str], most: int, longest: int) -> list[tuple[str, list[int]]]:
    """Say which ranks have which value, that of most ranks first."""
    values: dict[str, list[int]] = {}
    for rank, value in sorted(told.items()):
        values.setdefault(value, []).append(rank)
    ordered = sorted(values.items(), key=lambda pair: (-len(pair[1]), pair[1]))
    texts = told_apart([value for value, _ in ordered[:most]], longest)
    shown = [(text, ranks) for text, (_, ranks) in zip(texts, ordered, strict=False)]
    if others := len(ordered) - len(shown):
        rest = [rank for _, ranks in ordered[most:] for rank in ranks]
        shown.append((several(others, "other value"), rest))
    return shown


def render_start(states: Mapping[int, Mapping[str, str]], missing: Iterable[int]) -> str:
    """Write what ranks have in common and what differs between them, for the console."""
    names = sorted({name for state in states.values() for name in state} - OWN)
    told = {name: {rank: one.get(name, NOT_SET) for rank, one in states.items()} for name in names}
    differing = {name: values for name, values in told.items() if len(set(values.values())) > 1}
    first = states[min(states)]
    same = [name for name in IN_COMMON if name in first and name not in differing]
    heads = [f"{several(len(states), 'rank')} at the start"]
    if same[:1] == [IN_COMMON[0]]:
        heads[0] += f": {first[same.pop(0)]}"
    heads += [f"{name}: {first[name]}" for name in same]
    if unheard := sorted(missing):
        heads.append(f"of rank {format_ranks(unheard)} nothing is known yet")
    if len(states) > 1:
        heads.append("what differs:" if differing else "nothing differs")
    lines = []
    for name, values in differing.items():
        spread = by_value(values, MOST_VALUES, LONGEST_VALUE)
        shown = [f"{text} (rank {format_ranks(ranks)})" for text, ranks in spread[:MOST_VALUES]]
        shown += [others for others, _ in spread[MOST_VALUES:]]
        lines.append(f"{name}: {'; '.join(shown)}")
    if (left_out := len(lines) - MOST_DIFFERENCES) > 0:
        lines[MOST_DIFFERENCES:] = [f"and {left_out} more: the ranks' journals have all"]
    head = "; ".join(map(one_line, heads))
    return "\n".join([f"STATE     {head}", *(f"{INDENT}{line}" for line in lines)])
