"""Who could end the waits of a job's processes: facts that no process shows by itself."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.look.open_files import (
    SOCKET,
    Descriptors,
    Socket,
    TcpConnection,
    file_locks,
    holders_of,
    holders_that_block,
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
from lightning_hangcheck.look.system_calls import ABSOLUTE, CALLS, EVENT, RESTART
from lightning_hangcheck.machine import ancestors, is_of_network, mounts_of_network
from lightning_hangcheck.model.evidence import Connection, Holder, WaitTarget
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.evidence import ProcessState, ThreadState

STAT_LIMIT_S = 0.2
MOST_CONNECTIONS = 64
"""Of one process to other machines: a ring or tree of ranks needs a few, all to all has as many as
there are ranks."""


class _Mapped(NamedTuple):
    """A piece of a process's address space (proc_pid_maps(5)).

    Attributes:
        file: Device and inode, the same in each process that maps it; empty where the memory is the
            process's own.
    """

    start: int
    end: int
    file: str


class Holders:
    """Says who could end each wait, and what was received; about 30 ms for 8 ranks on 2 busy cores.

    Each table is read at most once.

    Args:
        pids: Of the processes that are looked at; only among them the other ends of pipes and
            sockets are looked for, and among them and those that started them who shares memory.
            Locks are found whoever holds them.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._descriptors = Descriptors(pids)
        self._tcp = tcp_connections()
        self._locks = file_locks()
        self._maps: dict[int, tuple[_Mapped, ...]] = {}
        self._mounts: dict[int, dict[str, bool]] = {}
        self._lock_holders: dict[str, tuple[int, ...]] = {}
        self._sockets: dict[int, Socket] | None = None
        self._connected: dict[tuple[str, str], int] = {}
        self._listening: dict[str, int] = {}

    def complete(self, state: ProcessState) -> ProcessState:
        """Complete the state of one of the processes, as `kernel_state` read it."""
        tcp = self._tcp_of(state.pid)
        network_bytes = None
        if self._tcp is not None and shares_namespace(state.pid, "net"):
            network_bytes = sum(one.carried_bytes for one in tcp)
        out = [one for one in tcp if one.leads_out]
        return replace(
            state,
            network_bytes=network_bytes,
            connections=tuple(Connection(one.own, one.remote) for one in out[:MOST_CONNECTIONS]),
            threads=tuple(self._completed(thread, state.pid) for thread in state.threads),
        )

    def _tcp_of(self, pid: int) -> list[TcpConnection]:
        """TCP connections of a process."""
        told = self._tcp or {}
        return [told[one] for one in self._descriptors.sockets(pid) if one in told]

    def _completed(self, thread: ThreadState, pid: int) -> ThreadState:
        """Say of each wait of a thread who could end it."""
        if all(target.kind == "time" for target in thread.waits_for):
            polled = self._polled_file(thread, pid)
            return replace(thread, waits_for=(*polled, *thread.waits_for))
        found = (self._with_holders(target, pid) for target in thread.waits_for)
        return replace(thread, waits_for=tuple(one for one in found if one is not None))

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
        blocking = holders_that_block(pid, self._locks)
        if not blocking and target.name:
            blocking = self._of_file(target.name, pid)
        alive = tuple(one for one in blocking if vitals(one) is not None)
        keeping = tuple(one for one in self._descriptors.lockers(target.name) if one != pid)
        return keeping if keeping and set(keeping).isdisjoint(alive) else alive or keeping

    def _of_file(self, path: str, pid: int) -> tuple[int, ...]:
        """Who holds a lock on a file, whose file system is asked once a look."""
        if path not in self._lock_holders:
            try:
                file = within(STAT_LIMIT_S, lambda: Path(f"/proc/{pid}/root{path}").stat(), of=pid)
                self._lock_holders[path] = holders_of(file, self._locks)
            except (NoAnswer, OSError):
                self._lock_holders[path] = ()
        return self._lock_holders[path]

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
            holder = owned.get(opened.inode)
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
        others = [
            one
            for one in self._family
            if one != pid and any(mapped.file == file for mapped in self._map(one))
        ]
        return replace(target, name=f"memory:[{file}]", holders=_holders(others))

    @cached_property
    def _family(self) -> tuple[int, ...]:
        """The processes, and those that started them: memory may be shared with these, too."""
        return tuple({one: None for each in self._pids for one in (each, *ancestors(each))})

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
        found = SOCKET.fullmatch(target.name)
        inode = int(found[1]) if found is not None else 0
        ends = self._socket_table(pid).get(inode)
        if ends is None:
            return replace(target, name="")
        if not ends.remote:
            return replace(target, name=ends.local if target.call.startswith("accept") else "")
        carried = (self._tcp or {}).get(inode)
        return replace(
            target,
            name=ends.remote,
            own_end=ends.local,
            holders=_holders([one for one in self._owners_of_other_end(ends) if one != pid]),
            connection=inode,
            carried_bytes=carried.carried_bytes if carried is not None else None,
        )

    def _owners_of_other_end(self, own: Socket) -> tuple[int, ...]:
        """Processes of the job that a connection leads to, also one that has not accepted it."""
        address, _, port = own.remote.rpartition(":")
        inode = self._connected.get((own.remote, own.local))
        if inode is None and address == own.local.rpartition(":")[0]:
            inode = self._listening.get(port)
        return () if inode is None else self._descriptors.owners(f"socket:[{inode}]")

    def _socket_table(self, pid: int) -> dict[int, Socket]:
        """Both ends of all sockets; all processes of a job share one network namespace."""
        if self._sockets is None:
            self._sockets = sockets_seen_by(pid)
            for inode, one in self._sockets.items():
                self._connected[one.local, one.remote] = inode
                if not one.remote:
                    self._listening[one.local.rpartition(":")[2]] = inode
        return self._sockets


def _holders(pids: Sequence[int]) -> tuple[Holder, ...]:
    return tuple(_holder(pid) for pid in pids)


def _holder(pid: int) -> Holder:
    alive = vitals(pid)
    try:
        program = read_proc(f"/proc/{pid}/comm").decode(errors="replace").strip()
    except OSError:
        program = ""
    return Holder(
        pid=pid,
        program=program,
        cpu_s=(alive.cpu_s or 0.0) if alive is not None else 0.0,
        moved_bytes=sum(io_bytes(pid) or ()),
    )
