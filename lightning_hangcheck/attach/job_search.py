"""Finds jobs on this machine that were started without hangcheck, and their processes."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.attach.recorded_session import beats_of, find_session
from lightning_hangcheck.errors import BadUsage, NoJobFound
from lightning_hangcheck.identity import identify, is_launcher
from lightning_hangcheck.look import proc
from lightning_hangcheck.look.programs import python_options
from lightning_hangcheck.machine import process_ids, read_status
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.observe import discovery
from lightning_hangcheck.text.shown import show_command

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet


Rendezvous = tuple[str, ...]
RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "WORLD_SIZE")
STEP_VARIABLES = ("SLURM_JOB_ID", "SLURM_STEP_ID")
GROUP_THREADS = ("pt_gloo", "pt_nccl")
"""Names of the threads of a process group's backend (torch 2.2 and later)."""
OURS = "lightning_hangcheck"
OUR_SCRIPTS = ("/hangcheck", f"/{OURS}/__main__.py", f"/{OURS}/isolation/entry.py")


class Candidate(discovery.SeenProcess, frozen=True, kw_only=True):
    """A process of this machine.

    Attributes:
        rendezvous: Where its job's ranks meet, as its environment says.
        slurm_job: The SLURM job in which it was started.
        torch: It has loaded torch, and no variable numbered it at its start.
        joined: Its threads show a process group, and still no variable numbers it.
        unseen: Why its present environment could not be read.
    """

    rendezvous: Rendezvous = ()
    slurm_job: str = ""
    torch: bool = False
    joined: bool = False
    unseen: Gap | None = None


class FoundJob(Struct, frozen=True):
    """A job: its ranks on this machine, ascending, at least one.

    ``counted``: no variable numbers them, so they are numbered in the order of their start.
    """

    ranks: tuple[discovery.FoundRank, ...]
    counted: bool = False

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
    """Return what ranks of one job share: an address to join at, or a SLURM step; else empty."""
    if "MASTER_PORT" in environment:
        return (namespace, *(environment.get(name, "") for name in RENDEZVOUS_VARIABLES))
    if all(name in environment for name in STEP_VARIABLES):
        return (namespace, *(environment[name] for name in STEP_VARIABLES))
    return ()


def group_jobs(candidates: Iterable[Candidate]) -> tuple[FoundJob, ...]:
    """Find the jobs whose launcher gave their processes a rank, the lowest process id first."""
    tree = {candidate.pid: candidate for candidate in candidates}
    agents = discovery.agents_in(tree)
    agents |= discovery.heirs_of(agents, tree)
    groups: dict[Rendezvous, list[Candidate]] = {}
    for process in tree.values():
        if process.identity.rank is not None and process.pid not in agents:
            alone = ("below", str(process.parent_pid))
            groups.setdefault(process.rendezvous or alone, []).append(process)
    jobs = []
    for group in groups.values():
        # processes that claim the same rank at one address are two jobs: told by their parents
        tops = {process.pid: process for process in group}
        for member in group:
            if any(pid in tops for pid in upwards(member.pid, tree)[1:]):
                del tops[member.pid]
        claims = Counter(top.identity.rank for top in tops.values())
        split: dict[int, dict[int, Candidate]] = {}
        for member in group:
            top = next(pid for pid in upwards(member.pid, tree) if pid in tops)
            parent = tops[top].parent_pid if max(claims.values()) > 1 else 0
            split.setdefault(parent, {})[member.pid] = member
        for inside in split.values():
            for member in list(inside.values()):
                # the plain process that started the others is Lightning's rank 0
                starter = tree.get(member.parent_pid)
                if starter is not None and member.identity.launcher == "lightning":
                    inside.setdefault(starter.pid, starter)
            jobs.append(FoundJob(discovery.find_ranks(inside.values(), {})))
    jobs += _spawned(tree, {rank.pid for job in jobs for rank in job.ranks})
    return tuple(sorted(jobs, key=lambda job: min(job.pids)))


def _spawned(tree: Mapping[int, Candidate], known: AbstractSet[int]) -> Iterator[FoundJob]:
    """Find the ranks that a script started, as `torch.multiprocessing.spawn` does.

    The script passed their numbers as arguments: only their process group shows what they are. A
    script that has joined the group itself is the first rank.
    """
    groups: dict[int, list[Candidate]] = {}
    for process in tree.values():
        parent = tree.get(process.parent_pid)
        started = process.joined and parent is not None and parent.python
        if started and known.isdisjoint(upwards(process.pid, tree)):
            groups.setdefault(process.parent_pid, []).append(process)
    for starter, group in groups.items():
        first = [tree[starter]] if tree[starter].joined else []
        ordered = sorted(group, key=lambda process: (process.started_ticks, process.pid))
        yield FoundJob(_counted([*first, *ordered]), counted=True)


def _counted(processes: Sequence[Candidate]) -> tuple[discovery.FoundRank, ...]:
    return tuple(
        discovery.FoundRank(
            rank=rank,
            pid=process.pid,
            started_ticks=process.started_ticks,
            world_size=len(processes),
            local_world_size=len(processes),
        )
        for rank, process in enumerate(processes)
    )


def upwards(pid: int, tree: Mapping[int, Candidate]) -> list[int]:
    """Return a process and those that started it, nearest first."""
    return [pid, *(process.pid for process in discovery.starters_of(pid, tree))]


class Machine(Struct, frozen=True):
    """The processes of this machine that are not ours, and ids of those that we may not read."""

    processes: dict[int, Candidate]
    closed: frozenset[int]


def look_around() -> Machine:
    """Read every process of this machine: about 0.1 ms each, 0.3 ms for Python.

    A process that has loaded torch and was not numbered at its start takes 5 ms.
    """
    runs: dict[proc.ProcessRef, tuple[bool, str]] = {}
    processes, closed = {}, set()
    for pid in process_ids():
        python, namespace, ref = False, "", proc.process_ref(pid)
        try:
            python = Path(f"/proc/{pid}/exe").readlink().name.startswith("python")
            namespace = os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 - a name, no path
        except PermissionError:
            ref = None
        except OSError:
            pass  # a kernel thread, or a process that is ending
        if ref is None:
            closed.add(pid)
        elif pid != os.getpid():
            runs[ref] = python, namespace
    of_python = [ref.pid for ref, (python, _) in runs.items() if python]
    variables, lines = proc.environments(of_python), proc.command_lines(of_python)
    ours: dict[int, int] = {}  # `hangcheck run` and sidecars may carry a launcher's variables
    for ref in runs:
        line = lines.get(ref.pid, [])
        if not isinstance(line, Gap) and _is_ours(line):
            ours[ref.pid] = ref.parent_pid
    for ref, (python, namespace) in runs.items():
        if ref.pid in ours:
            continue
        pid, parent, seen = ref.pid, ref.parent_pid, variables.get(ref.pid, {})
        for _ in ours:  # who started `hangcheck run` started the job
            parent = ours.get(parent, parent)
        environment, unseen, joined = {} if isinstance(seen, Gap) else seen, None, False
        numbered = identify(environment).launcher in ("torchrun", "environment", "lightning")
        torch = python and not numbered and proc.has_loaded(pid, discovery.TORCH)
        if torch:
            # it may train: some launchers number a process after its start
            present = proc.present_environment(pid)
            unseen = present if isinstance(present, Gap) else None
            environment = environment if isinstance(present, Gap) else present
            joined = identify(environment).rank is None and proc.has_thread(pid, *GROUP_THREADS)
        processes[pid] = Candidate(
            pid=pid,
            parent_pid=parent,
            started_ticks=ref.started_ticks,
            python=python,
            torch=torch,
            identity=identify(environment),
            rendezvous=rendezvous_of(environment, namespace),
            slurm_job=environment.get("SLURM_JOB_ID", ""),
            joined=joined,
            unseen=unseen,
        )
    return Machine(processes, frozenset(closed))


def _is_ours(line: Sequence[str]) -> bool:
    """Whether a Python runs a program of this package; the program's arguments may name it, too."""
    for letter, word in python_options(line[1:]):
        if letter == "m":
            return word.partition(".")[0] == OURS
        if not letter:
            return f"/{word}".endswith(OUR_SCRIPTS)
    return False


def find_jobs(machine: Machine, pids: Sequence[int] = ()) -> tuple[FoundJob, ...]:
    """Find the jobs on this machine, or the job to which these processes belong.

    The processes may be ranks, their workers or their launcher; several without a launcher's
    variables are ranks in the order given. NoJobFound if there is no job, or it may not be read;
    BadUsage if the processes belong to several jobs.
    """
    jobs = group_jobs(machine.processes.values())
    if not pids and not jobs:
        raise _nothing_found(machine)
    for pid in pids:
        if pid not in machine.processes:
            raise _refusal(pid, machine)

    def belongs(pid: int, job: FoundJob) -> bool:
        """Whether a process is a rank of the job, is below a rank, or has a rank below it."""
        below = any(pid in upwards(rank, machine.processes) for rank in job.pids)
        return below or not job.pids.isdisjoint(upwards(pid, machine.processes))

    wanted = [job for job in jobs if not pids or any(belongs(pid, job) for pid in pids)]
    if len(wanted) > 1 and pids:
        heads = " ".join(f"--pid {min(job.pids)}" for job in wanted)
        raise BadUsage(f"these processes belong to {len(wanted)} jobs", f"name one of: {heads}")
    for at, job in enumerate(wanted):
        if job.counted and (ranks := _paged(job.pids, machine)):
            wanted[at] = FoundJob(ranks)
    return tuple(wanted) or (_plain_job(pids, machine),)


def jobs_of_step(machine: Machine, environment: Mapping[str, str]) -> tuple[FoundJob, ...]:
    """Find the jobs in the SLURM job in which we are a step: a node may also run others.

    Empty if we are no step. NoJobFound if none of that SLURM job runs here, or may be read.
    """
    if not all(name in environment for name in STEP_VARIABLES):
        return ()
    ours, known = environment["SLURM_JOB_ID"], machine.processes
    jobs = group_jobs(known.values())
    wanted = [job for job in jobs if any(known[pid].slurm_job == ours for pid in job.pids)]
    if wanted:
        return tuple(wanted)
    node = environment.get("SLURMD_NODENAME", "this node")
    raise NoJobFound(
        f"no process of SLURM job {ours} on {node} that we may read carries a rank",
        "see where they are: scontrol listpids; or name a process: hangcheck attach --pid PID",
    )


def command_of(pid: int) -> str:
    """Return the redacted command line of a process."""
    line = proc.command_line(pid)
    if isinstance(line, Gap):
        return ""
    while line and not line[-1]:  # a process that set its own title, as Ray does
        line.pop()
    return show_command(line)


def _paged(pids: Collection[int], machine: Machine) -> tuple[discovery.FoundRank, ...]:
    """Find the ranks of processes that no variable numbers by their pages, if they have some."""
    session, _ = find_session(pids)
    beats = {} if session is None else beats_of(session, {pid: proc.born_ns(pid) for pid in pids})
    return discovery.find_ranks([machine.processes[pid] for pid in pids], beats) if beats else ()


def _plain_job(pids: Sequence[int], machine: Machine) -> FoundJob:
    known = machine.processes
    if len(pids) == 1:
        below = [pid for pid in known if pids[0] in upwards(pid, known)]
        lines = proc.command_lines(below)
        words = {pid: [] if isinstance(line, Gap) else line for pid, line in lines.items()}
        programs = [known[pid] for pid in below if not is_launcher(words[pid])]
        if ranks := _paged(below, machine) or discovery.find_ranks(programs, {}):
            return FoundJob(ranks)
    for pid in pids:
        if not known[pid].python:
            line = proc.command_line(pid)
            name = "it has ended" if proc.has_ended(pid) else "it has no command line"
            name = name if isinstance(line, Gap) else show_command(line[:1])
            raise NoJobFound(
                f"process {pid} ({name}) is not Python, and no Python runs below it",
                "name a rank of the job, or its launcher",
            )
    if len(pids) == 1:
        return FoundJob((discovery.FoundRank(rank=0, pid=pids[0]),))
    return FoundJob(_counted([known[pid] for pid in dict.fromkeys(pids)]))


def _refusal(pid: int, machine: Machine) -> NoJobFound:
    if proc.process_ref(pid) is None:
        return NoJobFound(
            f"there is no process {pid} here",
            "it has ended, or it runs in another pid namespace: then attach inside that container, "
            "or name its id on this side",
        )
    if pid not in machine.closed:
        with suppress(OSError):
            process = read_status(pid).get("Tgid", str(pid))
            if process != str(pid):
                way_out = f"name that: hangcheck attach --pid {process}"
                return NoJobFound(f"{pid} is a thread of process {process}", way_out)
        return NoJobFound(f"process {pid} is hangcheck's own", "name a process of the job")
    refusal = proc.why_unreadable(pid)
    return NoJobFound(f"process {pid} may not be read: {refusal.why}", refusal.remedy)


def _nothing_found(machine: Machine) -> NoJobFound:
    found = "no process on this machine carries a launcher's variables (RANK, LOCAL_RANK, SLURM)"
    unseen = {pid: process.unseen for pid, process in machine.processes.items()}
    hidden = {pid: why for pid, why in unseen.items() if why is not None}
    if hidden:
        why = next(iter(hidden.values()))
        pids = " ".join(f"--pid {pid}" for pid in sorted(hidden))
        return NoJobFound(
            f"{found}; {len(hidden)} that have loaded torch may have been given some after their "
            f"start, as by Ray Train, and cannot be asked: {why.why}",
            f"{why.remedy or 'name the ranks in their order'}: hangcheck attach {pids}",
        )
    if training := sorted(pid for pid, process in machine.processes.items() if process.torch):
        more = f" and {len(training) - 1} more" if len(training) > 1 else ""
        return NoJobFound(
            f"{found}; torch is loaded in {training[0]} ({command_of(training[0])}){more}",
            f"name one: hangcheck attach --pid {training[0]}",
        )
    if machine.closed:
        way_out = "run as the job's user or as root, or name a process: hangcheck attach --pid PID"
        if os.geteuid() == 0:
            way_out = proc.why_unreadable(min(machine.closed)).remedy
        return NoJobFound(
            f"{found}, and {len(machine.closed)} of the others may not be read", way_out
        )
    return NoJobFound(found, "name any process of the job: hangcheck attach --pid PID")
