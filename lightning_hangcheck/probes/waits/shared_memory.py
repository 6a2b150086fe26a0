"""Memory that processes share: which of them could change the word that one of them waits on.

A lock, semaphore, event or queue of multiprocessing is a word of a file that all its processes map
(sem_overview(7)). Who took it nobody notes, but only who maps it can give it back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.machine.process_stat import ancestors
from lightning_hangcheck.probes.proc.files import read_table
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

READ_LIMIT_S = 1.0
"""A process that changes its mappings holds this table up; reading one takes about 1 ms, but more
than 0.2 s on a crowded machine (load 12 on two cores): then a rank seems to share nothing."""


class Mapped(NamedTuple):
    """A piece of a process's address space (proc_pid_maps(5)).

    Attributes:
        file: Device and inode, the same in each process that maps it; empty where the memory is the
            process's own.
    """

    start: int
    end: int
    file: str


class SharedMemory:
    """What processes map of what others map, too; the table of each is read at most once.

    Args:
        pids: Processes of a job; those that started them may share memory with them, too.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self._tables: dict[int, tuple[Mapped, ...]] = {}

    def file_at(self, pid: int, address: int) -> str | None:
        """Return what a process maps at an address.

        Returns:
            The empty string for memory of its own; None where the table cannot be read.
        """
        table = self._table(pid)
        return next((one.file for one in table if one.start <= address < one.end), None)

    def others_that_map(self, file: str, pid: int) -> tuple[int, ...]:
        """Return the other processes of the job, and those that started them, that map a file."""
        family = dict.fromkeys(one for own in self._pids for one in (own, *ancestors(own)))
        return tuple(
            one
            for one in family
            if one != pid and any(mapped.file == file for mapped in self._table(one))
        )

    def _table(self, pid: int) -> tuple[Mapped, ...]:
        if pid not in self._tables:
            try:
                rows = within(READ_LIMIT_S, partial(read_table, f"/proc/{pid}/maps"))
            except (NoAnswer, OSError):
                rows = []
            self._tables[pid] = tuple(_mapped(rows))
        return self._tables[pid]


def _mapped(rows: Iterable[Sequence[str]]) -> Iterator[Mapped]:
    for where, mode, _, device, inode, *_ in rows:
        start, _, end = where.partition("-")
        file = f"{device}:{inode}" if mode.endswith("s") else ""
        yield Mapped(int(start, 16), int(end, 16), file)
