"""Which processes of a machine are one job? Pure: by what their environments say of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.observe.discovery import (
    FoundRank,
    SeenProcess,
    agents_in,
    find_ranks,
    heirs_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Rendezvous = tuple[str, ...]
RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "WORLD_SIZE")
STEP_VARIABLES = ("SLURM_JOB_ID", "SLURM_STEP_ID")


class Candidate(Struct, frozen=True, kw_only=True):
    """A process of this machine.

    Attributes:
        rendezvous: Of the ranks of its job, by its environment; empty if that names none.
        unseen: Why the environment that it has now could not be read, where its start told nothing.
    """

    process: SeenProcess
    rendezvous: Rendezvous = ()
    unseen: Gap | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


class FoundJob(Struct, frozen=True):
    """A job: its ranks on this machine, ascending, at least one."""

    ranks: tuple[FoundRank, ...]

    @property
    def pids(self) -> frozenset[int]:
        """Process ids of its ranks."""
        return frozenset(rank.pid for rank in self.ranks)

    @property
    def world_size(self) -> int:
        """Number of its ranks on all machines, as far as known."""
        promised = max((rank.world_size or 0 for rank in self.ranks), default=0)
        return max(promised, len(self.ranks))


def rendezvous_of(environment: Mapping[str, str], namespace: str) -> Rendezvous:
    """Tell jobs apart: the ranks of one join at one address, or are of one SLURM step.

    Args:
        environment: Of a process.
        namespace: Its pid namespace: two containers may use one address each for itself.

    Returns:
        Empty where the environment names no rendezvous.
    """
    if "MASTER_PORT" in environment:
        return (namespace, *(environment.get(name, "") for name in RENDEZVOUS_VARIABLES))
    if all(name in environment for name in STEP_VARIABLES):
        return (namespace, *(environment[name] for name in STEP_VARIABLES))
    return ()


def group_jobs(candidates: Iterable[Candidate]) -> tuple[FoundJob, ...]:
    """Find the jobs whose launcher gave their processes a rank.

    Args:
        candidates: All processes of the machine that may be read, without our own.

    Returns:
        The jobs, that with the oldest process id first.
    """
    tree = {candidate.pid: candidate for candidate in candidates}
    processes = {pid: candidate.process for pid, candidate in tree.items()}
    agents = agents_in(processes)
    agents |= heirs_of(agents, processes)
    groups: dict[Rendezvous, list[Candidate]] = {}
    for candidate in tree.values():
        process = candidate.process
        if process.python and process.identity.rank is not None and process.pid not in agents:
            alone = ("below", str(process.parent_pid))
            groups.setdefault(candidate.rendezvous or alone, []).append(candidate)
    jobs = [
        FoundJob(find_ranks([*_with_parents(members, tree)], {}))
        for group in groups.values()
        for members in _without_strangers(group, tree)
    ]
    return tuple(sorted(jobs, key=lambda job: min(job.pids)))


def ancestors(pid: int, tree: Mapping[int, Candidate]) -> Iterator[int]:
    """Walk up from a process, without itself."""
    seen = {pid}
    while pid in tree and tree[pid].process.parent_pid not in seen:
        pid = tree[pid].process.parent_pid
        seen.add(pid)
        yield pid


def _with_parents(
    members: Sequence[Candidate], tree: Mapping[int, Candidate]
) -> Iterator[SeenProcess]:
    """Add the plain process that started the others: Lightning's rank 0."""
    inside = {member.pid for member in members}
    for member in members:
        yield member.process
        parent = tree.get(member.process.parent_pid)
        started_by_lightning = member.process.identity.launcher == "lightning"
        if parent is not None and parent.pid not in inside and started_by_lightning:
            inside.add(parent.pid)
            yield parent.process


def _without_strangers(
    group: list[Candidate], tree: Mapping[int, Candidate]
) -> list[list[Candidate]]:
    """Split processes that claim the same rank at one address: two jobs, by their parents."""
    inside = {member.pid for member in group}
    tops = [member for member in group if inside.isdisjoint(ancestors(member.pid, tree))]
    claims = Counter(top.process.identity.rank for top in tops)
    if max(claims.values()) == 1:
        return [group]
    parents = {top.pid: top.process.parent_pid for top in tops}
    split: dict[int, list[Candidate]] = {}
    for member in group:
        top = next((pid for pid in (member.pid, *ancestors(member.pid, tree)) if pid in parents), 0)
        split.setdefault(parents.get(top, 0), []).append(member)
    return list(split.values())
