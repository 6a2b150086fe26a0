"""What differs between ranks: their environment, host, command and versions; and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks
from lightning_hangcheck.text.plain_text import told_apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lightning_hangcheck.report.page.page_facts import PageFacts

OWN = frozenset(
    (
        "GROUP_RANK",
        "LOCAL_RANK",
        "NODE_RANK",
        "RANK",
        "ROLE_RANK",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_PROCID",
        "SLURM_TASK_PID",
        "SLURMD_NODENAME",
        "SLURM_TOPOLOGY_ADDR",
        "TORCHELASTIC_ERROR_FILE",
    )
)
"""Variables that launchers (torchrun, srun) give each rank a value of its own for."""
MOST_VALUES = 6
LONGEST_VALUE = 200
NOT_SET = "(not set)"


class Difference(Struct, frozen=True):
    """Something of which ranks have different values: each with who has it, most ranks first."""

    name: str
    values: tuple[tuple[str, str], ...]


def differences(facts: PageFacts) -> tuple[Difference, ...]:
    """Compare all ranks that run.json has, and the versions that the shown ones' journals tell."""
    ranks = facts.record.ranks if facts.record is not None else ()
    compared: list[tuple[str, Mapping[int, str]]] = [("host", {r.rank: r.host for r in ranks})]
    names = sorted({name for one in ranks for name in one.environment} - OWN)
    compared += [
        (name, {one.rank: one.environment.get(name, NOT_SET) for one in ranks}) for name in names
    ]
    compared += _told_at_start(facts)
    found = tuple(
        Difference(name, tuple(_by_value(told)))
        for name, told in compared
        if len(set(told.values())) > 1
    )
    return (*found, *_clocks(facts))


def _clocks(facts: PageFacts) -> Iterator[Difference]:
    """Times in logs of these nodes do not compare with the first one's."""
    clocks = facts.record.clocks if facts.record is not None else ()
    apart = tuple(
        (f"{one.ahead_s:+.2f} s, within {one.within_s:.2f} s", f"node {one.node}")
        for one in clocks
        if one.differs
    )
    if apart:
        yield Difference("clock, ahead of node 0's", apart)


def _told_at_start(facts: PageFacts) -> Iterator[tuple[str, Mapping[int, str]]]:
    starts = {
        rank: entry
        for rank, entries in facts.journals.items()
        for entry in entries
        if entry.get("kind") == "start"
    }
    for name in ("command", "folder", "launcher"):
        yield name, {rank: str(entry.get(name, "")) for rank, entry in starts.items()}
    versions = {rank: _table(entry.get("versions")) for rank, entry in starts.items()}
    for name in sorted({name for told in versions.values() for name in told}):
        yield f"version of {name}", {rank: told.get(name, "") for rank, told in versions.items()}


def _table(found: object) -> dict[str, str]:
    """A journal may hold anything."""
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def _by_value(told: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    who: dict[str, list[int]] = {}
    for rank, value in told.items():
        who.setdefault(value, []).append(rank)
    ordered = sorted(who.items(), key=lambda item: -len(item[1]))
    values = told_apart([value for value, _ in ordered[:MOST_VALUES]], LONGEST_VALUE)
    for value, (_, ranks) in zip(values, ordered, strict=False):
        yield value, name_ranks(ranks)
    if len(ordered) > MOST_VALUES:
        yield f"{len(ordered) - MOST_VALUES} more values", name_ranks(_rest(ordered[MOST_VALUES:]))


def _rest(items: Iterable[tuple[str, list[int]]]) -> list[int]:
    return [rank for _, ranks in items for rank in ranks]
