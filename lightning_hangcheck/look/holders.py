"""Who could end the waits of a job's processes: facts that no process shows by itself."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.look.open_files import (
    Descriptors,
    Socket,
    file_locks,
    holders_of,
    sockets_seen_by,
    tcp_connections,
)
from lightning_hangcheck.look.proc import (
    io_bytes,
    memory_map,
    read_proc,
    shares_namespace,
    vitals,
)
from lightning_hangcheck.look.system_calls import ABSOLUTE, CALLS, EVENT, RESTART, descriptor_facts
from lightning_hangcheck.machine import ancestors, is_of_network, mounts_of_network
from lightning_hangcheck.model.evidence import Connection, Holder, WaitTarget
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.evidence import ProcessState, ThreadState

STAT_LIMIT_S = 0.2
INODE = re.compile(rb"^ino:\s*(\d+)$", re.MULTILINE)
MOST_CONNECTIONS = 64
"""Of one process to other machines: a ring or tree of ranks needs a few, all to all has as many as
there are ranks."""


class _Mapped(NamedTuple):
    """A piece of a process's address space (proc_pid_maps(5)), with the file's device and inode.

    These are the same in each process that maps it; empty where the memory is its own.
    """

    start: int
    end: int
    file: str


class Holders:
    """Says who could end each wait, and what was received; about 30 ms for 8 ranks on 2 busy cores.

    Each table is read at most once. Other ends of pipes and sockets are looked for among the
    processes that are looked at, sharers of memory also among their ancestors, locks everywhere.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._descriptors = Descriptors(pids)
        self._tcp = tcp_connections()
        self._locks = file_locks()
        self._maps: dict[int, tuple[_Mapped, ...]] = {}
        self._mounts: dict[int, dict[str, bool]] = {}
        self._lock_holders: dict[str, tuple[int, ...]] = {}
        self._table: dict[int, Socket] | None = None

    def complete(self, state: ProcessState) -> ProcessState:
        """Complete the state of one of the processes, as `kernel_state` read it."""
        told = self._tcp or {}
        tcp = [told[one] for one in self._descriptors.sockets(state.pid) if one in told]
        network_bytes = None
        if self._tcp is not None and shares_namespace(state.pid, "net"):
            network_bytes = sum(one.carried_bytes for one in tcp)
        # a machine talks with itself by one and the same address
        out = [one for one in tcp if one.ends[0] != one.ends[1]][:MOST_CONNECTIONS]
        return replace(
            state,
            network_bytes=network_bytes,
            connections=tuple(Connection(one.shown(0), one.shown(1)) for one in out),
            threads=tuple(
                replace(one, waits_for=self._waits(one, state.pid)) for one in state.threads
            ),
        )

    def _waits(self, thread: ThreadState, pid: int) -> tuple[WaitTarget, ...]:
        if all(target.kind == "time" for target in thread.waits_for):
            return (*self._polled_file(thread, pid), *thread.waits_for)
        found = (self._with_holders(target, pid) for target in thread.waits_for)
        return tuple(one for one in found if one is not None)

    def _with_holders(self, target: WaitTarget, pid: int) -> WaitTarget | None:
        if target.kind in ("file", "lock") and target.name:
            target = replace(target, shared_storage=self._on_network(target.name, pid))
        if target.kind == "lock":
            return replace(target, holders=_holders(self._of_lock(target, pid)) or target.holders)
        if target.kind in ("pipe", "fifo"):
            ends = self._descriptors.at_other_end(target.name, pid)
            return replace(target, holders=_holders(ends))
        if target.kind == "process":
            return replace(target, holders=_holders((int(target.name),)))
        if target.kind == "shared":
            return self._with_who_shares(target, pid)
        if target.kind == "socket":
            return self._with_remote_end(target, pid)
        if target.name.startswith(EVENT):
            # one that other processes have, too, is one end of a pipe to them; all have both
            owners = self._descriptors.owners_of_event(target.name)
            if set(owners) - {pid}:
                return replace(target, kind="pipe", holders=_holders(owners))
        return target

    def _on_network(self, path: str, pid: int) -> bool:
        """Whether a process has a path on storage that other hosts may have, too."""
        if pid not in self._mounts:
            try:
                data = within(STAT_LIMIT_S, lambda: read_proc(f"/proc/{pid}/mountinfo"), of=pid)
            except (NoAnswer, OSError):
                data = b""
            self._mounts[pid] = mounts_of_network(data.decode(errors="replace"))
        return is_of_network(path, self._mounts[pid])

    def _of_lock(self, target: WaitTarget, pid: int) -> tuple[int, ...]:
        """The kernel knows who blocks a waiter; one that polls is told by the file alone.

        Its table names who asked first, also once that one has closed the file, and a child that
        inherited the descriptor keeps the lock.
        """
        numbers = {one.number for one in self._locks if one.waiting and one.pid == pid}
        held = (one for one in self._locks if one.number in numbers and not one.waiting)
        blocking = tuple(one.pid for one in held if one.pid > 0)
        path = target.name
        if not blocking and path:
            if path not in self._lock_holders:  # its file system is asked once a look
                try:
                    seen = Path(f"/proc/{pid}/root{path}")
                    file = within(STAT_LIMIT_S, seen.stat, of=pid)
                    self._lock_holders[path] = holders_of(file, self._locks)
                except (NoAnswer, OSError):
                    self._lock_holders[path] = ()
            blocking = self._lock_holders[path]
        alive = tuple(one for one in blocking if vitals(one) is not None)
        lockers = self._descriptors.owners(path, b"\nlock:")  # by descriptors, inherited ones too
        keeping = tuple(one for one in lockers if one != pid)
        return keeping if keeping and set(keeping).isdisjoint(alive) else alive or keeping

    def _polled_file(self, thread: ThreadState, pid: int) -> tuple[WaitTarget, ...]:
        """Tell which file a sleeping thread's process has open that another keeps locked.

        SQLite tries a lock, sleeps a moment and tries again, with the file open. No proof that it
        sleeps for that: only a process of the job that has the same file open, and locked for
        itself alone, counts.
        """
        call = CALLS.get(thread.syscall) if thread.syscall is not None else None
        if call is None or "nanosleep" not in thread.wchan:
            return ()
        # native code sleeps for a time, Python (3.11 and later) until a time
        until = call.name == "clock_nanosleep" and thread.arguments[1] == ABSOLUTE
        if until or call.name not in ("nanosleep", "clock_nanosleep", RESTART):
            return ()
        owned = {one.inode: one.pid for one in self._locks if one.exclusive and not one.waiting}
        for name, opened in self._descriptors.files(pid) if owned else ():
            inode = INODE.search(descriptor_facts(pid, opened.number))  # since Linux 5.14
            holder = owned.get(int(inode[1])) if inode is not None else None
            if holder is not None and holder != pid and holder in self._descriptors.owners(name):
                found = WaitTarget(call="sleep", kind="lock", name=name, holders=_holders([holder]))
                return (found,)
        return ()

    def _with_who_shares(self, target: WaitTarget, pid: int) -> WaitTarget | None:
        """Say which processes could change the word of memory that one of them waits on.

        A lock, semaphore, event or queue of multiprocessing is a word of a file that all its
        processes map (sem_overview(7)). Who took it nobody notes, but only who maps it can give it
        back. Who joins a thread waits in its own memory, but by the same call: that is none.
        """
        address = int(target.name, 16)
        own = (one.file for one in self._map(pid) if one.start <= address < one.end)
        file = next(own, "")
        if not file:
            return None
        family = {one: None for each in self._pids for one in (each, *ancestors(each))}
        others = [
            one
            for one in family
            if one != pid and any(mapped.file == file for mapped in self._map(one))
        ]
        return replace(target, name=f"memory:[{file}]", holders=_holders(others))

    def _map(self, pid: int) -> tuple[_Mapped, ...]:
        if pid not in self._maps:
            found = []
            for where, mode, _, device, inode, *_ in memory_map(pid):
                start, _, end = where.partition("-")
                file = f"{device}:{inode}" if mode.endswith("s") else ""
                found.append(_Mapped(int(start, 16), int(end, 16), file))
            self._maps[pid] = tuple(found)
        return self._maps[pid]

    def _with_remote_end(self, target: WaitTarget, pid: int) -> WaitTarget:
        """Name both ends, and who has the other one, also where it has not accepted it yet."""
        inode = int(target.name.strip("socket:[]"))
        own = self._sockets(pid).get(inode)
        if own is None:
            return replace(target, name="")
        if not own.remote:
            return replace(target, name=own.local if target.call.startswith("accept") else "")
        address, _, port = own.remote.rpartition(":")
        other = self._connected.get((own.remote, own.local))
        if other is None and address == own.local.rpartition(":")[0]:
            other = self._listening.get(port)
        owners = () if other is None else self._descriptors.owners(f"socket:[{other}]")
        carried = (self._tcp or {}).get(inode)
        return replace(
            target,
            name=own.remote,
            own_end=own.local,
            holders=_holders([one for one in owners if one != pid]),
            connection=inode,
            carried_bytes=carried.carried_bytes if carried is not None else None,
        )

    def _sockets(self, pid: int) -> dict[int, Socket]:
        """Both ends of all sockets; all processes of a job share one network namespace."""
        if self._table is None:
            self._table = sockets_seen_by(pid)
            ends = self._table.items()
            self._connected = {(one.local, one.remote): inode for inode, one in ends}
            listening = {one.local: inode for inode, one in ends if not one.remote}
            self._listening = {end.rpartition(":")[2]: inode for end, inode in listening.items()}
        return self._table


def _holders(pids: Sequence[int]) -> tuple[Holder, ...]:
    found = []
    for pid in pids:
        alive, program = vitals(pid), ""
        with suppress(OSError):
            program = read_proc(f"/proc/{pid}/comm").decode(errors="replace").strip()
        cpu_s = (alive.cpu_s or 0.0) if alive is not None else 0.0
        moved = sum(io_bytes(pid) or ())
        found.append(Holder(pid=pid, program=program, cpu_s=cpu_s, moved_bytes=moved))
    return tuple(found)
