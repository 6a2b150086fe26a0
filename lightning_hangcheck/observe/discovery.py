"""Finds which processes of this machine are ranks: by process tree, environment and pages."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck import machine
from lightning_hangcheck.files import is_apart
from lightning_hangcheck.identity import ROUND_COUNTS, Identity, identify
from lightning_hangcheck.look import proc
from lightning_hangcheck.look.sample import AT_ONCE, Role, Target
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import Limits
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import RoundStart
from lightning_hangcheck.recorder.page_reader import PageReader
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lightning_hangcheck.settings import Settings


LAUNCHED_BELOW: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"torchrun": ("slurm", "environment"), "environment": ("slurm",)}
)
"""By what gave a process its rank: what the variables of its launcher may look like."""


def patience_of(settings: Settings) -> Limits:
    """Return the limits in force: the figures of the settings times ``patience``."""
    factor = settings.patience
    return Limits(**{name: getattr(settings, name) * factor for name in Limits.__struct_fields__})


class SeenProcess(Struct, frozen=True, kw_only=True):
    """A process of the job's tree.

    ``trains``: it may be all that the command runs, or torch is loaded in it. What a script starts
    and runs alongside, such as an exporter of metrics, is no rank.
    """

    pid: int
    parent_pid: int
    started_ticks: int
    python: bool = False
    trains: bool = True
    identity: Identity = Identity()


class FoundRank(Struct, frozen=True, kw_only=True):
    """A rank and its process; ``started_ticks`` is 0 if that was gone before.

    ``guessed``: the first Python process of a job without ranks. ``rivals`` claim the same rank.
    """

    rank: int
    pid: int
    started_ticks: int = 0
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    one_by_one: bool = False
    start: RoundStart = RoundStart()
    guessed: bool = False
    store_port: int | None = None
    rivals: tuple[int, ...] = ()


def believed(beats: Mapping[int, Beat]) -> dict[int, Beat]:
    """Give announced processes their ranks, if they are seen to be ranks.

    They are if a process with the same parent has joined, which also shows the first rank of this
    node, or if the parent itself failed: it had only waited for them.
    """
    ranks_known = {beat.rank for beat in beats.values()}
    found = dict(beats)
    for pid, beat in beats.items():
        if beat.rank is not None or beat.announced is None:
            continue
        siblings = (sibling for sibling in beats.values() if sibling.parent_pid == beat.parent_pid)
        firsts = {
            sibling.rank - sibling.announced
            for sibling in siblings
            if sibling.rank is not None and sibling.announced is not None
        }
        parent = beats.get(beat.parent_pid)
        if not firsts and parent is not None and parent.ending == "raised":
            firsts = {0}
        rank = firsts.pop() + beat.announced if len(firsts) == 1 else None
        if rank is not None and rank not in ranks_known:
            found[pid] = replace(beat, rank=rank, local_rank=beat.announced)
    return found


def find_ranks(
    processes: Iterable[SeenProcess], beats: Mapping[int, Beat], *, numbered: bool = False
) -> tuple[FoundRank, ...]:
    """Find the ranks among the processes of one node, without our own: ascending, each once.

    Pages (by process id) of ended processes are ignored. ``numbered``: no rank is guessed.
    """
    tree = {process.pid: process for process in processes}
    topmost_first = _topmost_first(tree)
    # a SLURM task that starts ranks itself, one for each GPU, is of a smaller job than they are
    agents = agents_in(tree) | {
        above.pid
        for pid, beat in beats.items()
        for above in starters_of(pid, tree)
        if above.identity.world_size is not None
        and above.identity.world_size < (beat.world_size or 0)
    }
    ranked = {pid: beat.rank for pid, beat in beats.items() if pid in tree and pid not in agents}
    by_pid = {pid: rank for pid, rank in ranked.items() if rank is not None}
    found: dict[int, FoundRank] = {}
    # what inherited variables from a rank with a page, or from a launcher, is no rank by these
    others = {*by_pid, *agents}
    others |= heirs_of(others, tree)
    for process in topmost_first:
        rank = process.identity.rank
        if process.pid not in others and process.python and rank is not None:
            found.setdefault(rank, _found_rank(process, None))
    numbered_ranks = {pid: _found_rank(tree[pid], beats[pid]) for pid in by_pid}
    sizes = Counter(rank.store_port for rank in numbered_ranks.values())
    if len(sizes) > 1 and len({*by_pid.values()}) < len(by_pid):
        # launches of one command, each with a store of its own: the largest is watched, or the
        # first of these; a script may train alone before it starts ranks
        watched = min(
            numbered_ranks.values(),
            key=lambda rank: (-sizes[rank.store_port], rank.started_ticks, rank.pid),
        ).store_port
        numbered_ranks = {
            pid: rank for pid, rank in numbered_ranks.items() if rank.store_port == watched
        }
    for pid, one in numbered_ranks.items():
        rivals = tuple(other for other, its in by_pid.items() if its == one.rank and other != pid)
        found[one.rank] = replace(one, rivals=rivals)
    if 0 not in found:  # rank 0 may have no variables of a launcher
        plain = [
            process
            for process in topmost_first
            if process.python and process.identity.launcher == "none"
        ]
        if found or numbered:
            launched = (
                process for process in tree.values() if process.identity.launcher == "lightning"
            )
            parents = {process.parent_pid for process in launched if process.identity.rank}
            plain = [process for process in plain if process.pid in parents]
        else:
            plain = [process for process in plain if process.trains or process.pid in beats]
        for main in plain[:1]:
            found[0] = FoundRank(
                rank=0,
                pid=main.pid,
                started_ticks=main.started_ticks,
                local_rank=0,
                world_size=next((rank.world_size for rank in found.values()), None),
                guessed=not found,
            )
    # a launcher has started all of its node, but a wrapper may do something before Python
    coming = {process.identity.rank for process in tree.values() if process.pid not in others}
    if not found.keys() >= coming - {None}:
        found = {number: replace(rank, one_by_one=True) for number, rank in found.items()}
    return tuple(sorted(found.values(), key=lambda rank: rank.rank))


def starters_of(pid: int, tree: Mapping[int, SeenProcess]) -> Iterator[SeenProcess]:
    """Yield the process that started a process, and so on; ends even if ids form a circle."""
    process = tree.get(pid)
    for _ in tree:
        process = tree.get(process.parent_pid) if process is not None else None
        if process is None:
            return
        yield process


def _topmost_first(tree: Mapping[int, SeenProcess]) -> list[SeenProcess]:
    depths = {pid: sum(1 for _ in starters_of(pid, tree)) for pid in tree}
    return sorted(tree.values(), key=lambda process: (depths[process.pid], process.started_ticks))


def agents_in(tree: Mapping[int, SeenProcess]) -> frozenset[int]:
    """Return the launchers that have a rank's variables: the ranks are below them.

    Examples: a SLURM task that is torchrun or another launcher; torchrun in a pod with RANK and
    WORLD_SIZE from its operator, which count pods (Kubeflow's PyTorchJob).
    """
    return frozenset(
        above.pid
        for process in tree.values()
        if process.identity.launcher in LAUNCHED_BELOW
        for above in starters_of(process.pid, tree)
        if above.identity.launcher in LAUNCHED_BELOW[process.identity.launcher]
    )


def heirs_of(pids: Collection[int], tree: Mapping[int, SeenProcess]) -> frozenset[int]:
    """Return what only inherited rank variables: a rank's workers, Ray's daemons in SLURM tasks."""
    inside = set(pids)
    for process in _topmost_first(tree):
        parent = tree.get(process.parent_pid)
        if parent is not None and parent.pid in inside and process.identity == parent.identity:
            inside.add(process.pid)
    return frozenset(inside.difference(pids))


def _found_rank(process: SeenProcess, beat: Beat | None) -> FoundRank:
    identity = process.identity
    who = identity if beat is None else beat
    # a SLURM task that is a rank knows how many are here; one that starts ranks does not
    local_world_size = identity.local_world_size
    if identity.launcher == "slurm" and identity.world_size != who.world_size:
        local_world_size = None
    elif local_world_size is None and identity.launcher == "lightning" and identity.all_here:
        local_world_size = identity.world_size
    return FoundRank(
        rank=who.rank or 0,
        pid=process.pid,
        started_ticks=process.started_ticks,
        local_rank=who.local_rank,
        world_size=who.world_size,
        local_world_size=local_world_size,
        one_by_one=identity.launcher == "environment",
        start=RoundStart(
            launcher=identity.launcher if identity.launcher in ROUND_COUNTS else "",
            number=identity.round,
            most=identity.most_restarts,
        ),
        store_port=identity.store_port if who.store_port is None else who.store_port,
    )


class Pages:
    """Reads every page of a session; a page outlives its process until the session is removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[int, tuple[int, PageReader]] = {}  # with each page's inode

    def find_new(self) -> None:
        """Open new pages, also of a process that reuses a number; a missing folder has none."""
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                name, _, ending = entry.name.rpartition(".")
                if ending != "page" or not name.isdecimal():
                    continue
                inode, reader = self._readers.get(int(name), (0, None))
                if inode != entry.inode():
                    if reader is not None:
                        reader.close()
                    new = PageReader(self._folder / entry.name)
                    self._readers[int(name)] = entry.inode(), new

    def read(self) -> dict[int, Beat]:
        """Read all pages, by process id; a page that cannot be read this time is left out."""
        readings = ((pid, reader.read()) for pid, (_, reader) in self._readers.items())
        return {pid: reading for pid, reading in readings if isinstance(reading, Beat)}

    def holds(self, pid: int) -> bool:
        """Whether the page of this process is read."""
        return pid in self._readers

    def any_alive(self) -> bool:
        """Whether any process with a page still runs."""
        return not all(proc.has_ended(pid) for pid in self._readers)

    def forget_gone(self, beats: Mapping[int, Beat], count: int | None) -> None:
        """Remove pages of ended processes, except of rounds later than the launcher's count."""
        for pid, beat in beats.items():
            later = beat.round is not None and count is not None and beat.round > count
            if not later and proc.has_ended(pid):
                self._readers.pop(pid)[1].close()
                with suppress(OSError):
                    (self._folder / f"{pid}.page").unlink()

    def close(self) -> None:
        """Close all pages."""
        for _, reader in self._readers.values():
            reader.close()


TORCH = "libtorch"
MOST_CHILDREN = 16
"""Children looked at per rank, first those that the kernel has wait elsewhere than most: further
DataLoader workers show the same stack."""
TASKS_OF_LOOK, TASKS_OF_PROBE = 5, 3
"""Threads of a look, and of each process in it: a probe, its py-spy, a bounded read."""
SETTLED_AFTER_S = 10.0
"""Age at which a process's environment is trusted: between fork and exec it is the parent's."""


class ProcessTree:
    """Lists the processes below a job's roots, without the sidecar; roots may belong to the job."""

    def __init__(self, *root_pids: int, root_belongs: bool) -> None:
        self._root_pids = root_pids
        self._root_belongs = root_belongs
        self._known: dict[proc.ProcessRef, tuple[SeenProcess, int]] = {}
        self._roles: dict[tuple[int, int], Role] = {}
        # a parent's end gives its children another parent, and changes nothing else
        refs = filter(None, map(proc.process_ref, root_pids))
        self._started = {(ref.pid, ref.started_ticks) for ref in refs}
        self._root_was_there = True

    def take(self, now_ns: int, recording: Iterable[int] = ()) -> tuple[SeenProcess, ...]:
        """Read the tree, and the facts of new processes.

        Once the root was killed, known processes and those with a page are left, if they live.
        """
        refs = filter(None, map(proc.process_ref, self._root_pids))
        roots = [ref for ref in refs if (ref.pid, ref.started_ticks) in self._started]
        if roots:
            below = _without_our_own(proc.descendants(*self._root_pids), self._root_pids)
            present = list(dict.fromkeys([*roots, *below])) if self._root_belongs else below
        else:
            pids = {ref.pid for ref in self._known if proc.process_ref(ref.pid) in self._known}
            pids |= set(recording) if self._root_was_there else set()
            self._root_was_there = False
            pids |= {ref.pid for ref in proc.descendants(*pids)}
            left = filter(None, map(proc.process_ref, sorted(pids)))
            present = _without_our_own(left, self._root_pids)
        self._known = self._read(present, now_ns)
        there = {(ref.pid, ref.started_ticks) for ref in present}
        self._roles = {name: role for name, role in self._roles.items() if name in there}
        children = Counter(ref.parent_pid for ref in present)
        found = []
        for ref, (process, seen_ns) in self._known.items():
            # may it be a rank that no launcher numbered? Loading torch takes a while, but a shell
            # waits for what it starts: a process without siblings is waited for
            if process.python and process.identity.launcher == "none" and not process.trains:
                top = not {ref.pid, ref.parent_pid}.isdisjoint(self._root_pids)
                waited_for = top or children[ref.parent_pid] == 1
                if waited_for or proc.has_loaded(ref.pid, TORCH):
                    process = replace(process, trains=True)
                if process.trains and not waited_for:
                    self._known[ref] = process, seen_ns
            found.append(process)
        return tuple(found)

    def targets(self, ranks: Sequence[tuple[int, int]]) -> list[Target]:
        """Return the processes to look at: each rank (number, process id), then its children.

        A rank below another rank is no child of it.
        """
        top = {pid: pid for _, pid in ranks}  # the rank that each process is below
        below: dict[int, list[SeenProcess]] = {pid: [] for pid in top}
        for process, _ in self._known.values():
            rank_pid = top.get(process.parent_pid)
            if rank_pid is not None and process.pid not in below:
                top[process.pid] = rank_pid
                below[rank_pid].append(process)
        for processes in below.values():
            processes.sort(key=lambda process: (process.started_ticks, process.pid))
        new = {
            process.pid: pid
            for pid, processes in below.items()
            for process in processes
            if (process.pid, process.started_ticks) not in self._roles
        }
        lines = proc.command_lines([*new.values(), *new])
        targets = []
        for rank, pid in ranks:
            targets.append(Target(rank=rank, pid=pid, role="rank"))
            counts: Counter[Role] = Counter()
            children = []
            for process in below[pid]:
                role = self._role(process, lines.get(process.pid, []), lines.get(pid, []))
                child = Target(rank=rank, pid=process.pid, role=role, index=counts[role])
                children.append(replace(child, python=process.python))
                counts[role] += 1
            if len(children) > MOST_CHILDREN:
                places = {child.pid: _kernel_place(child.pid) for child in children}
                alike = Counter(places.values())
                children.sort(key=lambda child: alike[places[child.pid]])
            targets += children[:MOST_CHILDREN]
        return targets

    def _role(self, process: SeenProcess, line: list[str] | Gap, of_rank: list[str] | Gap) -> Role:
        """Return a child's role; it is read once, after its command line has settled.

        A fork keeps its parent's command line; spawn and forkserver name multiprocessing in it.
        """
        name = process.pid, process.started_ticks
        role = self._roles.get(name)
        if role is None:
            role = "child"
            if process.python and not isinstance(line, Gap):
                text = " ".join(line)
                spawned = "multiprocessing.spawn" in text or "multiprocessing.forkserver" in text
                role = "worker" if spawned or line == of_rank else "child"
            if (
                machine.ticks_since_boot() - process.started_ticks
                > SETTLED_AFTER_S * machine.TICKS_PER_SECOND
            ):
                self._roles[name] = role
        return role

    def _read(
        self, present: Sequence[proc.ProcessRef], now_ns: int
    ) -> dict[proc.ProcessRef, tuple[SeenProcess, int]]:
        found: dict[proc.ProcessRef, tuple[SeenProcess, int] | None] = {}
        programs: dict[int, str] = {}
        for ref in present:
            known = found[ref] = self._known.get(ref)
            if known is not None:
                settled = now_ns - known[1] > SETTLED_AFTER_S * NANOSECONDS
                if settled or known[0].identity.rank is not None:
                    continue
            program = machine.read_link(f"/proc/{ref.pid}/exe").rpartition("/")[2]
            if known is None or program:  # an ending process loses these first
                programs[ref.pid] = program
        by_pid = proc.environments(programs)
        for ref, known in found.items():
            if ref.pid in programs:
                environment = by_pid[ref.pid]
                process = SeenProcess(
                    pid=ref.pid,
                    parent_pid=ref.parent_pid,
                    started_ticks=ref.started_ticks,
                    python=programs[ref.pid].startswith("python"),
                    trains=False,
                    identity=identify({} if isinstance(environment, Gap) else environment),
                )
                found[ref] = process, now_ns if known is None else known[1]
        return {ref: known for ref, known in found.items() if known is not None}


def _kernel_place(pid: int) -> bytes:
    """Return the function of the kernel in which a process's main thread waits; empty for none."""
    with suppress(OSError):
        return machine.read_proc(f"/proc/{pid}/wchan")
    return b""


def with_room(targets: list[Target]) -> tuple[list[Target], tuple[Gap, ...]]:
    """Return as many processes as a look may start threads for, ranks first; the rest is a gap."""
    most, why = len(targets), ""
    while most:
        try:
            machine.require_room(TASKS_OF_LOOK + TASKS_OF_PROBE * min(AT_ONCE, most))
            break
        except machine.NoRoom as refusal:
            most, why = most // 2, str(refusal)
        except OSError:
            break
    if most == len(targets):
        return targets, ()
    kept = sorted(targets, key=lambda target: target.role != "rank")[:most]
    left_out = f"stacks of {len(targets) - most} processes"
    reason = f"a look at them would take the room that training may need: {why}"
    return kept, (Gap(left_out, None, reason, "stack", "raise that limit"),)


def _without_our_own(
    refs: Iterable[proc.ProcessRef], root_pids: Collection[int]
) -> list[proc.ProcessRef]:
    """Drop the sidecar and the py-spy processes that it starts, which may be below the root.

    Its helpers for storage are orphans, which `hangcheck run` adopts as it does the job's.
    """
    ours, others = {os.getpid()}, []
    for ref in refs:
        adopted = ref.parent_pid in root_pids and is_apart(ref.pid)
        if adopted or ref.pid in ours or ref.parent_pid in ours:
            ours.add(ref.pid)
        else:
            others.append(ref)
    return others
