"""The job's processes as they come and go, with what was read of each once."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.files.apart import is_apart
from lightning_hangcheck.identity import identify
from lightning_hangcheck.look.proc import (
    ProcessRef,
    command_line,
    descendants,
    has_loaded,
    process_ref,
    read_environment,
    read_link,
)
from lightning_hangcheck.look.sample import Role, Target
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.observe.discovery import SeenProcess
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

TORCH = "libtorch"
MOST_CHILDREN = 16
"""Children looked at per rank; a DataLoader with more workers shows the same stack in each."""
SETTLED_AFTER_S = 10.0
"""Age at which a process's environment is believed: between fork and exec it shows its parent's."""


class ProcessTree:
    """Counts the processes below the job's root, which may be one of it, without the sidecar."""

    def __init__(self, root_pid: int, *, root_belongs: bool) -> None:
        self._root_pid = root_pid
        self._root_belongs = root_belongs
        self._known: dict[ProcessRef, tuple[SeenProcess, int]] = {}
        root = process_ref(root_pid)
        self._root_ticks = root.started_ticks if root is not None else None
        self._root_was_there = True

    def take(self, now_ns: int, recording: Iterable[int] = ()) -> tuple[SeenProcess, ...]:
        """Read the tree, and what is new in it.

        Processes that have a page are, with what was known, all that is left to go by once the root
        was killed.
        """
        root = process_ref(self._root_pid)
        if root is not None and root.started_ticks == self._root_ticks:
            below = _without_our_own(descendants(self._root_pid), self._root_pid)
            present = [root, *below] if self._root_belongs else below
        else:
            present = self._left(recording)
        self._known = {ref: self._read(ref, now_ns) for ref in present}
        children = Counter(ref.parent_pid for ref in present)
        return tuple(self._told_apart(ref, children) for ref in present)

    def _left(self, recording: Iterable[int]) -> list[ProcessRef]:
        """Find what a killed root has left, and all below that. A page may outlive its process."""
        pids = {ref.pid for ref in self._known if process_ref(ref.pid) in self._known}
        if self._root_was_there:
            self._root_was_there = False
            pids |= set(recording)
        pids |= {ref.pid for ref in descendants(*pids)}
        refs = tuple(filter(None, map(process_ref, sorted(pids))))
        return _without_our_own(refs, self._root_pid)

    def _told_apart(self, ref: ProcessRef, children: Mapping[int, int]) -> SeenProcess:
        """Say whether a process may be a rank that no launcher numbered; imports take a while.

        A shell waits for what it starts: who has no process beside it is waited for.
        """
        process, seen_ns = self._known[ref]
        unnumbered = process.python and process.identity.launcher == "none"
        if not unnumbered or process.trains:
            return process
        top = self._root_pid in (ref.pid, ref.parent_pid)
        if top or children[ref.parent_pid] == 1:
            return replace(process, trains=True)
        if has_loaded(ref.pid, TORCH):
            process = replace(process, trains=True)
            self._known[ref] = process, seen_ns
        return process

    def targets(self, rank: int, pid: int, ranks: Collection[int]) -> list[Target]:
        """Return the processes to look at for a rank: itself, then its children.

        A rank below another one, by the process ids of all ranks, is no child of it.
        """
        targets = [Target(rank=rank, pid=pid, role="rank")]
        counts: dict[Role, int] = {}
        inside, below = {pid}, []
        for process, _ in self._known.values():
            if process.parent_pid in inside and process.pid not in ranks:
                inside.add(process.pid)
                below.append(process)
        below.sort(key=lambda process: (process.started_ticks, process.pid))
        for process in below[:MOST_CHILDREN]:
            role = _role(process, pid)
            index = counts.get(role, 0)
            counts[role] = index + 1
            targets.append(
                Target(rank=rank, pid=process.pid, role=role, index=index, python=process.python)
            )
        return targets

    def _read(self, ref: ProcessRef, now_ns: int) -> tuple[SeenProcess, int]:
        known = self._known.get(ref)
        if known is not None:
            process, seen_ns = known
            settled = now_ns - seen_ns > SETTLED_AFTER_S * NANOSECONDS
            if settled or process.identity.rank is not None:
                return known
        executable = read_link(f"/proc/{ref.pid}/exe").rpartition("/")[2]
        if known is not None and not executable:
            return known  # it is ending: its memory and its executable go before it does
        environment = read_environment(ref.pid)
        process = SeenProcess(
            pid=ref.pid,
            parent_pid=ref.parent_pid,
            started_ticks=ref.started_ticks,
            python=executable.startswith("python"),
            trains=False,
            identity=identify({} if isinstance(environment, Gap) else environment),
        )
        return process, known[1] if known is not None else now_ns


def _without_our_own(refs: tuple[ProcessRef, ...], root_pid: int) -> list[ProcessRef]:
    """The sidecar may itself be below the root, with the py-spy processes that it starts.

    What works on storage for it is an orphan, which `hangcheck run` adopts as it does the job's.
    """
    ours, others = {os.getpid()}, []
    for ref in refs:
        adopted = ref.parent_pid == root_pid and is_apart(ref.pid)
        if adopted or ref.pid in ours or ref.parent_pid in ours:
            ours.add(ref.pid)
        else:
            others.append(ref)
    return others


def _role(process: SeenProcess, rank_pid: int) -> Role:
    """A fork keeps its parent's command line; spawn and forkserver name multiprocessing in it."""
    line, parent_line = command_line(process.pid), command_line(rank_pid)
    if isinstance(line, Gap) or not process.python:
        return "child"
    text = " ".join(line)
    spawned = "multiprocessing.spawn" in text or "multiprocessing.forkserver" in text
    return "worker" if spawned or line == parent_line else "child"
