"""The ranks of this node, kept up to date from processes, pages and exits."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.probes.exits import ExitWatcher
from lightning_hangcheck.probes.vitals import main_thread_cpu_s, vitals
from lightning_hangcheck.sidecar.census import Census
from lightning_hangcheck.sidecar.clock import utc_now
from lightning_hangcheck.sidecar.discovery import FoundRank, find_ranks
from lightning_hangcheck.sidecar.pages import Pages
from lightning_hangcheck.sidecar.progress import NANOSECONDS, ProcessorTime
from lightning_hangcheck.sidecar.watched_rank import WatchedRank

if TYPE_CHECKING:
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.rundir.session import Session
    from lightning_hangcheck.sidecar.looking import Look, Target

YOUNG_S = 30.0
SCAN_YOUNG_S = 0.5
SCAN_SETTLED_S = 2.0


class Roster:
    """All ranks that this node's sidecar knows."""

    def __init__(self, session: Session, now_ns: int) -> None:
        facts = session.facts
        self.ranks: dict[int, WatchedRank] = {}
        self._pages = Pages(session.pages)
        self._census = Census(facts.root_pid, root_belongs=not facts.launched)
        self._exits = ExitWatcher()
        self.host = socket.gethostname()
        self._departed = 0
        self._changed_ns = now_ns
        self._scanned_ns = 0

    @property
    def alive(self) -> list[WatchedRank]:
        """Ranks whose process is there."""
        return [rank for rank in self.ranks.values() if rank.departure is None]

    @property
    def anyone_there(self) -> bool:
        """Whether a rank is there, or a process that recorded and was not told as a rank yet."""
        return bool(self.alive) or self._pages.any_alive()

    def update(self, now_ns: int) -> None:
        """Read pages and vital signs; every now and then read the process tree."""
        beats, _ = self._pages.read()
        if now_ns - self._scanned_ns >= self._scan_interval_ns(now_ns):
            self._scan(beats, now_ns)
        for rank in self.ranks.values():
            beat = beats.get(rank.found.pid)
            if beat is not None:
                rank.read(beat, now_ns)
        for rank in self.alive:
            seen = vitals(rank.found.pid)
            if seen is None or not seen.is_still(rank.found.started_ticks):
                self._depart(rank, None)
            else:
                rank.state = seen.state
                main_s = main_thread_cpu_s(rank.found.pid) or 0.0
                rank.progress.read_processor(ProcessorTime(main_s, seen.cpu_s), now_ns)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a rank ends: its exit code can only be read at once."""
        for ended in self._exits.wait(seconds):
            for rank in self.alive:
                if rank.found.pid == ended.pid:
                    self._depart(rank, ended.exit_code)

    def targets(self) -> list[Target]:
        """Return the processes to look at: every rank that is there, and its children."""
        pids = {rank.found.pid for rank in self.alive}
        return [
            target
            for rank in self.alive
            for target in self._census.targets(rank.found.rank, rank.found.pid, pids)
        ]

    def add(self, look: Look) -> None:
        """Hand each rank the samples that were taken for it."""
        for rank in self.alive:
            rank.add_samples([pair for pair in look.samples if pair[0].rank == rank.found.rank])
            rank.read_flight(look.flights.get(rank.found.rank))

    def views(self, now_ns: int) -> tuple[RankView, ...]:
        """Return all ranks as rules may see them."""
        return tuple(rank.view(self.host, now_ns) for rank in self.ranks.values())

    def forgive(self, lapse_ns: int, now_ns: int) -> None:
        """Nobody watched for so long: that silence counts for no rank."""
        for rank in self.ranks.values():
            rank.progress.forgive(lapse_ns, now_ns)

    def exit_code_of_command(self, pid: int, exit_code: int | None) -> None:
        """The launcher's word on the command that it started, which may itself be a rank."""
        for rank in self.ranks.values():
            if rank.found.pid != pid:
                continue
            if rank.departure is None:
                self._depart(rank, exit_code)
            elif rank.departure.exit_code is None:
                rank.departure = replace(rank.departure, exit_code=exit_code)

    def close(self) -> None:
        """Close pages and exits."""
        self._pages.close()
        self._exits.close()

    @property
    def _ranks_are_told(self) -> bool:
        """Whether ranks were ever told by a launcher or a page: then no launcher is one of them."""
        return any(not rank.found.guessed for rank in self.ranks.values())

    def _scan_interval_ns(self, now_ns: int) -> int:
        young = now_ns - self._changed_ns < YOUNG_S * NANOSECONDS
        return int((SCAN_YOUNG_S if young else SCAN_SETTLED_S) * NANOSECONDS)

    def _scan(self, beats: dict[int, Beat], now_ns: int) -> None:
        self._scanned_ns = now_ns
        self._pages.find_new()
        processes = self._census.take(now_ns)
        found = find_ranks(processes, beats)
        pids = {rank.pid for rank in found}
        for rank in [rank for rank in self.alive if rank.found.pid not in pids]:
            if any(process.pid == rank.found.pid for process in processes):
                del self.ranks[rank.found.rank]
        for rank_found in found:
            if not (rank_found.guessed and self._ranks_are_told):
                self._meet(rank_found, now_ns)
        self._remember_departed(beats, {process.pid for process in processes}, now_ns)

    def _remember_departed(self, beats: dict[int, Beat], present: set[int], now_ns: int) -> None:
        """A rank that came and went between two scans is known by the page that it left."""
        for pid, beat in beats.items():
            if beat.rank is None or beat.rank in self.ranks or pid in present:
                continue
            found = FoundRank(
                rank=beat.rank, pid=pid, local_rank=beat.local_rank, world_size=beat.world_size
            )
            rank = self.ranks[beat.rank] = WatchedRank(found, now_ns)
            self._depart(rank, None)

    def _meet(self, found: FoundRank, now_ns: int) -> None:
        known = self.ranks.get(found.rank)
        if known is None or known.found.pid != found.pid:
            self.ranks[found.rank] = WatchedRank(found, now_ns)
            self._exits.watch(found.pid)
            self._changed_ns = now_ns
        else:
            known.found = found

    def _depart(self, rank: WatchedRank, exit_code: int | None) -> None:
        rank.depart(self._departed, utc_now(), exit_code)
        self._departed += 1
