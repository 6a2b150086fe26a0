"""The ranks of this node, kept up to date from processes, pages and exits."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.model.run import RoundStart
from lightning_hangcheck.observe.discovery import FoundRank, believed, find_ranks
from lightning_hangcheck.observe.pages import Pages
from lightning_hangcheck.observe.process_tree import ProcessTree
from lightning_hangcheck.probes.proc.exits import ExitWatcher
from lightning_hangcheck.probes.proc.vitals import has_ended, main_thread_cpu_s, vitals
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.ranks.collective_readings import CollectiveReadings
from lightning_hangcheck.watch.ranks.progress import ProcessorTime
from lightning_hangcheck.watch.ranks.rounds import WatchedRound
from lightning_hangcheck.watch.ranks.watched_rank import STOPPED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.observe.discovery import SeenProcess
    from lightning_hangcheck.observe.looking import Look, Target
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.watch.ranks.watched_rank import WatchedRank

YOUNG_S = 30.0
SCAN_YOUNG_S = 0.5
SCAN_SETTLED_S = 2.0
MOST_UNNUMBERED = 512
"""Processes whose end is watched though nobody calls them ranks; each takes a descriptor until
then, of the 1,024 that a process commonly has."""


class Roster:
    """All ranks that this node's sidecar knows.

    Args:
        session: Of the job.
        now_ns: Present time.
        rounds_before: Rounds of the run that another sidecar saw to their end.

    Attributes:
        round: The present one.
        round_began_ns: When its first rank was seen.
    """

    def __init__(self, session: Session, now_ns: int, rounds_before: int = 0) -> None:
        facts = session.facts
        self.round = WatchedRound(rounds_before)
        self.round_began_ns = now_ns
        self._root_pid = facts.root_pid
        self._numbered = facts.numbered and not facts.restarts  # that root may wait without a rank
        self._left: list[tuple[WatchedRound, RoundStart]] = []
        self._pages = Pages(session.pages)
        self._process_tree = ProcessTree(facts.root_pid, root_belongs=not facts.launched)
        self._exit_watcher = ExitWatcher()
        self._collectives = CollectiveReadings(session.torch_servers)
        self.host = socket.gethostname()
        self._exit_codes: dict[int, int | None] = {}
        self._changed_ns = now_ns
        self._scanned_ns = 0
        self._waiting_agent = 0

    @property
    def ranks(self) -> dict[int, WatchedRank]:
        """The ranks of the present round."""
        return self.round.ranks

    @property
    def alive(self) -> list[WatchedRank]:
        """Ranks whose process is there."""
        return self.round.alive

    @property
    def anyone_there(self) -> bool:
        """Whether a rank is there, or a process that recorded and was not told as a rank yet."""
        return bool(self.alive) or self._pages.any_alive()

    @property
    def suspended(self) -> bool:
        """Somebody stopped the whole job with its launcher (job control), not one rank of it."""
        if not self.alive or any(rank.state not in STOPPED for rank in self.alive):
            return False
        launcher = vitals(self._root_pid)
        return launcher is not None and launcher.state in STOPPED

    def update(self, now_ns: int, *, scan: bool = False) -> None:
        """Read pages and vital signs; every now and then read the process tree.

        Args:
            now_ns: Present time.
            scan: Read the tree in any case.
        """
        scan = scan or now_ns - self._scanned_ns >= self._scan_interval_ns(now_ns)
        if scan:
            self._pages.find_new()
        beats, _ = self._pages.read()
        self._read_beats(beats, now_ns)
        self._look_at(self.alive, now_ns)
        self._collectives.update(self.alive, now_ns)
        if scan:
            known = self.alive
            self._scan(beats, now_ns)
            self._look_at([rank for rank in self.alive if rank not in known], now_ns)
        self._drop_ended_agent()

    def left_rounds(self) -> list[tuple[WatchedRound, RoundStart]]:
        """Return the rounds that others have followed since last asked, each with what followed."""
        left, self._left = self._left, []
        return left

    def wait(self, seconds: float) -> None:
        """Wait so long, or until a rank ends: its exit code can only be read at once."""
        for ended in self._exit_watcher.wait(seconds):
            self._exit_codes[ended.pid] = ended.exit_code
            self.round.note_exit(ended.pid, ended.exit_code)

    def targets(self) -> list[Target]:
        """Return the processes to look at: every rank that is there, and its children."""
        pids = {rank.found.pid for rank in self.alive}
        return [
            target
            for rank in self.alive
            for target in self._process_tree.targets(rank.found.rank, rank.found.pid, pids)
        ]

    def add(self, look: Look) -> None:
        """Hand each rank the samples that were taken for it."""
        for rank in self.alive:
            rank.add_samples([pair for pair in look.samples if pair[0].rank == rank.found.rank])
            rank.read_flight(look.flights.get(rank.found.rank))

    def views(self, now_ns: int) -> tuple[RankView, ...]:
        """Return all ranks of the present round as rules may see them."""
        return self.round.views(self.host, now_ns)

    def forgive(self, lapse_ns: int, now_ns: int) -> None:
        """Nobody watched for so long: that silence counts for no rank."""
        for rank in self.ranks.values():
            rank.progress.forgive(lapse_ns, now_ns)

    def close(self) -> None:
        """Let go of pages, processes and what is asked of them."""
        self._pages.close()
        self._exit_watcher.close()
        self._collectives.close()

    def _read_beats(self, beats: dict[int, Beat], now_ns: int) -> None:
        for rank in self.ranks.values():
            beat = beats.get(rank.found.pid)
            if beat is not None:
                rank.read(beat, now_ns)
        self.round.note_words()

    def _look_at(self, ranks: Sequence[WatchedRank], now_ns: int) -> None:
        for rank in ranks:
            seen = vitals(rank.found.pid)
            if seen is None or not seen.is_still(rank.found.started_ticks):
                self.round.note_exit(rank.found.pid, None)
            else:
                self.round.note_alive()
                rank.read_state(seen.state, now_ns)
                main_s = main_thread_cpu_s(rank.found.pid) or 0.0
                rank.progress.read_processor(ProcessorTime(main_s, seen.cpu_s), now_ns)

    def _scan_interval_ns(self, now_ns: int) -> int:
        young = now_ns - self._changed_ns < YOUNG_S * NANOSECONDS
        return int((SCAN_YOUNG_S if young or not self.alive else SCAN_SETTLED_S) * NANOSECONDS)

    def _scan(self, beats: dict[int, Beat], now_ns: int) -> None:
        self._scanned_ns = now_ns
        processes = self._process_tree.take(now_ns, beats)
        beats = believed(beats)
        found = find_ranks(processes, beats, numbered=self._numbered)
        gone = _gone_ranks(beats)
        self._watch_unnumbered(processes)
        self._drop_strangers(processes, found, gone, beats)
        for one in sorted((*found, *gone), key=_by_round):
            self._take(one, beats, now_ns)

    def _watch_unnumbered(self, processes: Sequence[SeenProcess]) -> None:
        """Watch what may be a rank that no launcher numbered: it may end before it says so."""
        for process in processes:
            unnumbered = process.python and process.identity.launcher == "none"
            if unnumbered and len(self._exit_codes) < MOST_UNNUMBERED:
                self._exit_watcher.watch(process.pid)
                self._exit_codes.setdefault(process.pid, None)

    def _drop_strangers(
        self,
        processes: Sequence[SeenProcess],
        found: Sequence[FoundRank],
        gone: Sequence[FoundRank],
        beats: dict[int, Beat],
    ) -> None:
        """Drop what was taken for a rank and is none, such as a parent that waits for the ranks."""
        strangers = {process.pid for process in processes} - {rank.pid for rank in found}
        starters = {beats[one.pid].parent_pid for one in (*found, *gone) if one.pid in beats}
        for rank in list(self.ranks.values()):
            started_others = rank.found.guessed and rank.found.pid in starters
            if started_others or (rank.process_exit is None and rank.found.pid in strangers):
                del self.ranks[rank.found.rank]

    def _take(self, found: FoundRank, beats: dict[int, Beat], now_ns: int) -> None:
        """Take in a rank that was found, unless it is none of this round's or of a later one's."""
        if found.pid == self._waiting_agent or self.round.was_started_by(found.pid):
            agent = FoundRank(rank=0, pid=found.pid, started_ticks=found.started_ticks)
            found = replace(agent, local_rank=0, guessed=True)
        if self.round.is_after(found):
            return
        if found.guessed and self._may_be_launcher(found):
            if self.round.is_waited_out_by(found, now_ns):
                self._wait_with(found, beats)
            return
        if self.round.is_left_by(found):
            self._leave_round(found, beats, now_ns)
        is_gone = not found.started_ticks
        if is_gone and found.start.number is not None and found.pid in beats:
            self.round.note_agent(beats[found.pid].parent_pid)
        if is_gone and (found.rank in self.ranks or not self._pages.holds(found.pid)):
            return
        rank = self.round.take_in(found, now_ns)
        if rank is None:
            return
        if found.pid in beats:
            rank.read(beats[found.pid], now_ns)
        self._changed_ns = now_ns
        if is_gone:
            self.round.note_exit(found.pid, self._exit_codes.get(found.pid))
        else:
            self._exit_watcher.watch(found.pid)

    def _wait_with(self, agent: FoundRank, beats: dict[int, Beat]) -> None:
        """Begin the next round with torchrun alone, as the first one began: no rank has come."""
        began_ns = self.round.ended_ns
        start = RoundStart(launcher="torchrun")
        self._leave_round(replace(agent, guessed=False, start=start), beats, began_ns)
        self.round.take_in(agent, began_ns)
        self._exit_watcher.watch(agent.pid)
        self._waiting_agent = agent.pid

    def _drop_ended_agent(self) -> None:
        """It was no rank: how it ended blames none."""
        for rank in list(self.ranks.values()):
            alone = rank.found.guessed and self.round.is_guess_a_launcher
            agent = alone or rank.found.pid == self._waiting_agent
            if agent and rank.process_exit is not None:
                del self.ranks[rank.found.rank]

    def _leave_round(self, found: FoundRank, beats: dict[int, Beat], now_ns: int) -> None:
        number = self.round.number
        if self.round.is_repeated_by(found):
            counted = found.start.number != self.round.count
            start = found.start if counted else replace(found.start, number=None)
            self._left.append((self.round, start))
            number += 1
        self._pages.forget_gone(beats, self.round.count)
        self.round = WatchedRound(number)
        self.round_began_ns = now_ns

    def _may_be_launcher(self, guessed: FoundRank) -> bool:
        """Once ranks were told by a launcher or a page, no process that is older is one of them."""
        told = [rank.found for rank in self.ranks.values() if not rank.found.guessed]
        starts = [one.started_ticks for one in told]
        return any(start == 0 or guessed.started_ticks <= start for start in starts)


def _by_round(found: FoundRank) -> tuple[int, bool]:
    """Of one round first what said so: a launcher may only be taken for a rank without them."""
    return found.start.number or 0, found.guessed


def _gone_ranks(beats: dict[int, Beat]) -> list[FoundRank]:
    """A rank that came and went between two scans is known by the page that it left.

    One that never learnt its number is rank 0 where nobody else has left a page. A process that its
    parent has not waited for yet is gone, too.
    """
    alone = len(beats) == 1
    return [
        FoundRank(
            rank=beat.rank or 0,
            pid=pid,
            local_rank=beat.local_rank,
            world_size=beat.world_size,
            start=RoundStart(number=beat.round),
            guessed=beat.rank is None,
        )
        for pid, beat in beats.items()
        if (alone or beat.rank is not None) and has_ended(pid)
    ]
