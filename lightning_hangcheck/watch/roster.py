"""The ranks of this node, round by round, kept up to date from processes, pages and exits.

torchrun starts all ranks again when a rank has failed; a shell loop starts the whole command again.
Ranks of two rounds are never mixed: no round waits for a rank of the round before.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.summary import end_of_round, own_end
from lightning_hangcheck.look.flight_record import Numbers, collective_numbers
from lightning_hangcheck.look.proc import ExitWatcher, has_ended, vitals
from lightning_hangcheck.model.run import RankPlace, Round, RoundStart
from lightning_hangcheck.observe.discovery import FoundRank, Pages
from lightning_hangcheck.observe.watched_rank import STOPPED, Faults, WatchedRank, WatchedRound
from lightning_hangcheck.report.start_report import render_start
from lightning_hangcheck.rundir import parse_journal
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.evidence import Gap
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.watch.workers import Scout, Scouted

VITALS_EVERY_NS = 2 * NANOSECONDS // 5
"""Processor time is judged over a second, in the kernel's ticks of 10 ms. Exits of ranks are
noticed at once, by other means."""
YOUNG_S = 30.0
SCAN_YOUNG_S, SHARE_YOUNG = 0.5, 0.1
SCAN_SETTLED_S, LONGEST_SETTLED_S, SHARE_SETTLED = 2.0, 10.0, 0.005
"""Seconds between two scans of the scout, and the share of a core that scans may take. Looks read
the processes themselves, and after a rank's start or end the job counts as young."""
MOST_UNNUMBERED = 512
"""Processes whose exit is watched though they have no rank number. Each takes a descriptor until
its exit; a process commonly has 1,024."""
NUMBERS_EVERY_S, NUMBERS_LONGEST_S, NUMBERS_LIMIT_S = 1.0, 10.0, 1.0
NUMBERS_SHARE = 0.01
"""What the answers may cost a rank: gloo's recorder writes out its whole record, 1 MB in 20 ms."""
NUMBERS_AT_ONCE = 4


class CollectiveReadings:
    """Asks silent ranks for their newest collective numbers, in threads beside the loop."""

    def __init__(self, servers: Path) -> None:
        self._servers = servers
        self._pool = ThreadPoolExecutor(NUMBERS_AT_ONCE, thread_name_prefix="numbers")
        self._pending: dict[WatchedRank, Future[tuple[Numbers, float]]] = {}
        self._begun_ns = 0
        self._interval_s = NUMBERS_EVERY_S

    def update(self, alive: Sequence[WatchedRank], now_ns: int) -> None:
        """Hand on the answers once all are in, and ask again if it is time."""

        def ask(path: Path) -> tuple[Numbers, float]:
            began_s = time.perf_counter()
            return collective_numbers(path, NUMBERS_LIMIT_S), time.perf_counter() - began_s

        if not all(answer.done() for answer in self._pending.values()):
            return
        took_s = 0.0
        for rank, answer in self._pending.items():
            numbers, seconds = answer.result()
            took_s = max(took_s, seconds)
            rank.read_numbers(numbers, self._begun_ns)
        if self._pending:
            self._interval_s = min(max(NUMBERS_EVERY_S, took_s / NUMBERS_SHARE), NUMBERS_LONGEST_S)
        self._pending = {}
        if now_ns - self._begun_ns < self._interval_s * NANOSECONDS:
            return
        for rank in alive:
            path = self._servers / str(rank.found.pid)
            silent = rank.progress.since_reported_ns(now_ns) > NUMBERS_EVERY_S * NANOSECONDS
            if silent and path.exists():
                self._pending[rank] = self._pool.submit(ask, path)
        self._begun_ns = now_ns if self._pending else self._begun_ns

    def close(self) -> None:
        """Give up pending requests; each ends at its own time limit."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Roster:
    """All ranks that this node's sidecar knows.

    The present ``round`` began when its first rank was seen. ``left``: ended rounds that nobody has
    taken yet, each with the start of the next. ``end_asked``: torchrun alone begins no new round.
    """

    def __init__(
        self, session: Session, scout: Scout, faults: Faults, now_ns: int, rounds_before: int = 0
    ) -> None:
        self.round = WatchedRound(rounds_before, session.torch_servers, faults)
        self.round_began_ns = now_ns
        self._session = session
        self.end_asked = False
        self._root_pid = session.facts.root_pid
        self._scout = scout
        self._faults = faults
        self.left: list[tuple[WatchedRound, RoundStart]] = []
        self._pages = Pages(session.pages)
        self._exit_watcher = ExitWatcher()
        self._collectives = CollectiveReadings(session.torch_servers)
        self._exit_codes: dict[int, int | None] = {}
        self._changed_ns = now_ns
        self._scanned_ns = 0
        self._waiting_agent = 0
        self._wrappers: set[int] = set()
        self._vitals_ns = 0

    @property
    def anyone_there(self) -> bool:
        """Whether a rank is alive, or a process with a page that is no known rank yet."""
        return bool(self.round.alive) or self._pages.any_alive()

    @property
    def suspended(self) -> bool:
        """Whether somebody stopped the whole job and its launcher (job control), not one rank."""
        alive = self.round.alive
        if not alive or any(rank.state not in STOPPED for rank in alive):
            return False
        launcher = vitals(self._root_pid)
        return launcher is not None and launcher.state in STOPPED

    def update(self, now_ns: int, *, last: bool = False) -> None:
        """Read pages and vital signs, take what the scout found, and send it out if that is due."""
        cost_s = self._scout.cost_s
        between_s = min(max(SCAN_SETTLED_S, cost_s / SHARE_SETTLED), LONGEST_SETTLED_S)
        if not self.round.alive or now_ns - self._changed_ns < YOUNG_S * NANOSECONDS:
            between_s = max(SCAN_YOUNG_S, cost_s / SHARE_YOUNG)
        due = last or now_ns - self._scanned_ns >= between_s * NANOSECONDS
        if due:
            self._pages.find_new()
        beats = self._pages.read()
        self._read_beats(beats, now_ns)
        if last or now_ns - self._vitals_ns >= VITALS_EVERY_NS:
            self._vitals_ns = now_ns
            self.round.read_vitals(self.round.alive, now_ns, self._exit_codes)
        self._collectives.update(self.round.alive, now_ns)
        self._take_scouted(self._scout.scanned(wait=last), now_ns)
        if due:
            self._scanned_ns = now_ns
            known = {rank.found.pid for rank in self.round.ranks.values()}
            self._scout.begin_scan(beats, now_ns, known)
            if last:
                self._take_scouted(self._scout.scanned(wait=True), now_ns)
                self._read_beats(beats, now_ns)  # of ranks too short-lived to be found before
        for rank in list(self.round.ranks.values()):
            end = rank.process_exit
            if end is not None and end.exit_code is None and not rank.ended_by_word:
                # a parent that reaped the rank before its exit code could be read has kept the code
                code = self._session.end_of(rank.found.pid)
                if code is not None:
                    self.round.note_exit(rank.found.pid, code)
            alone = rank.found.guessed and self.round.is_guess_a_launcher
            alone = alone or rank.found.pid == self._waiting_agent or self._came_before(rank.beat)
            if end is not None and alone:
                del self.round.ranks[rank.found.rank]  # it was no rank: its exit blames nobody

    def _came_before(self, beat: Beat | None) -> bool:
        """Whether a wrapper ran a process before the one that trains, which is yet to come."""
        if beat is None or (beat.ending, beat.membership) != ("finished", "none"):
            return False
        failed = bool(self._exit_codes.get(beat.pid))
        return not failed and beat.parent_pid in self._wrappers and not has_ended(beat.parent_pid)

    def wait(self, seconds: float) -> None:
        """Wait ``seconds``, or until a rank ends: its exit code can only be read at once."""
        for ended in self._exit_watcher.wait(seconds):
            self._changed_ns = ended.seen_ns
            self.note_exit(ended.pid, ended.exit_code)

    def note_exit(self, pid: int, exit_code: int | None) -> None:
        """Record how a process that may be a rank ended."""
        self._exit_codes[pid] = exit_code
        self.round.note_exit(pid, exit_code)

    def close(self) -> None:
        """Close pages and exit watcher, and give up pending requests."""
        self._pages.close()
        self._exit_watcher.close()
        self._collectives.close()

    def _read_beats(self, beats: dict[int, Beat], now_ns: int) -> None:
        for rank in self.round.ranks.values():
            beat = beats.get(rank.found.pid)
            if beat is not None:
                with self._faults.of("what it tells", rank.found.rank):
                    rank.read(beat, now_ns)
        self.round.note_words()

    def _take_scouted(self, scouted: Scouted | None, now_ns: int) -> None:
        if scouted is None:
            return
        known = self.round.alive
        for process in scouted.processes:
            # a process that no launcher numbered may be a rank, and end before it says so
            unnumbered = process.python and process.identity.launcher == "none"
            if unnumbered and len(self._exit_codes) < MOST_UNNUMBERED:
                self._exit_watcher.watch(process.pid)
                self._exit_codes.setdefault(process.pid, None)
        # processes that were taken for ranks and are none, such as a parent of ranks
        every, beats = (*scouted.found, *scouted.gone), scouted.beats
        strangers = {process.pid for process in scouted.processes}
        strangers -= {found.pid for found in scouted.found}
        starters = {beats[found.pid].parent_pid for found in every if found.pid in beats}
        numbered = (each for each in scouted.processes if each.identity.rank is not None)
        self._wrappers = {each.pid for each in numbered if not each.python}
        for rank in list(self.round.ranks.values()):
            started_others = rank.found.guessed and rank.found.pid in starters
            if started_others or (rank.process_exit is None and rank.found.pid in strangers):
                del self.round.ranks[rank.found.rank]
        # named ranks of a round first: a launcher is guessed to be a rank only without them
        for found in sorted(every, key=lambda found: (found.start.number or 0, found.guessed)):
            if found.started_ticks or not self._came_before(beats.get(found.pid)):
                self._take(found, scouted, now_ns)
        new = [rank for rank in self.round.alive if rank not in known]
        self.round.read_vitals(new, now_ns, self._exit_codes)

    def _take(self, found: FoundRank, scouted: Scouted, now_ns: int) -> None:
        """Add a found rank to this round, or begin the next round with it; else ignore it."""
        beats, words = scouted.beats, scouted.words.get(found.pid)
        if found.pid == self._waiting_agent or found.pid in self.round.agents:
            agent = FoundRank(rank=0, pid=found.pid, started_ticks=found.started_ticks)
            found = replace(agent, local_rank=0, guessed=True)
        known = self.round.ranks.get(found.rank)
        if known is not None and known.found == found and not found.guessed:
            return  # nothing new, the usual case; the rest visits all ranks
        if self.round.is_after(found):
            return
        # once a launcher or a page has named ranks, no older process is a rank
        ranks = self.round.ranks.values()
        starts = [rank.found.started_ticks for rank in ranks if not rank.found.guessed]
        if found.guessed and any(not start or found.started_ticks <= start for start in starts):
            if not self.end_asked and self.round.is_waited_out_by(found, now_ns):
                # no rank has come yet: begin the next round with torchrun alone, as the first began
                began_ns, start = self.round.ended_ns, RoundStart(launcher="torchrun")
                self._leave_round(replace(found, guessed=False, start=start), beats, began_ns)
                self.round.take_in(found, began_ns)
                self._exit_watcher.watch(found.pid)
                self._waiting_agent = found.pid
            return
        if self.round.is_left_by(found):
            self._leave_round(found, beats, now_ns, words)
        is_gone = not found.started_ticks
        if is_gone and found.start.number is not None and found.pid in beats:
            self.round.agents.add(beats[found.pid].parent_pid)
        if is_gone and (found.rank in self.round.ranks or not self._pages.holds(found.pid)):
            return
        rank = self.round.take_in(found, now_ns, words)
        if rank is None:
            return
        if found.pid in beats:
            rank.read(beats[found.pid], now_ns)
        self._changed_ns = now_ns
        if is_gone:
            self.round.note_exit(found.pid, self._exit_codes.get(found.pid))
        else:
            self._exit_watcher.watch(found.pid)

    def _leave_round(
        self,
        found: FoundRank,
        beats: dict[int, Beat],
        now_ns: int,
        words: list[str] | Gap | None = None,
    ) -> None:
        number = self.round.number
        # ranks that a launcher or a page named are the same job again, not a shell script's next
        # command; a guessed rank is that only if its command line is the same
        guessed = all(rank.found.guessed for rank in self.round.ranks.values())
        if not guessed or words == self.round.guessed_words:
            counted = found.start.number != self.round.count
            start = found.start if counted else replace(found.start, number=None)
            self.left.append((self.round, start))
            number += 1
        self._pages.forget_gone(beats, self.round.count)
        self.round = WatchedRound(number, self._session.torch_servers, self._faults)
        self.round_began_ns = now_ns


PATIENCE_NS = 10 * NANOSECONDS
"""Ranks finish creating their process group within 1 s of each other, unless one hangs."""


class _Said(msgspec.Struct, frozen=True):
    """A journal's line of a rank's state at its start."""

    pid: int
    facts: dict[str, str]


class StartStates:
    """Compares what ranks report at their start, once for each set of processes.

    ``offloaded`` are the models of which parts lie outside a GPU, for the ledger.
    """

    def __init__(self) -> None:
        self.offloaded: dict[str, None] = {}
        self._states: dict[int, dict[str, str]] = {}
        self._shown: set[int] = set()
        self._since_ns: int | None = None

    def take(self, lines: bytes) -> None:
        """Read lines of a journal on their way to the disk; any thread may call this."""
        tells = b'"kind":"state"' in lines or b'"kind":"offloaded"' in lines
        for entry in parse_journal(lines)[0] if tells else ():
            if entry.get("kind") == "offloaded":
                self.offloaded[str(entry.get("what", ""))] = None
            elif entry.get("kind") == "state":
                with suppress(msgspec.ValidationError):  # of another version of this package
                    said = msgspec.convert(entry, _Said)
                    self._states[said.pid] = said.facts

    def news(self, pids: Mapping[int, int], now_ns: int) -> str | None:
        """Return the start report once all ranks have reported or had time to, else None."""
        states = {rank: self._states[pid] for rank, pid in pids.items() if pid in self._states}
        if not states or not self._shown.isdisjoint(pids.values()):
            return None
        self._since_ns = self._since_ns or now_ns
        if len(states) < len(pids) and now_ns - self._since_ns < PATIENCE_NS:
            return None
        self._shown, self._since_ns = set(pids.values()), None
        return render_start(states, pids.keys() - states.keys())


def end_round(case: Case, started_at: str, hang: Verdict | None) -> tuple[Verdict, Round]:
    """Judge a round that has ended: the verdict to report, and the round to remember."""
    number, verdict = case.run.round, judge(case)
    if hang is None or verdict.verdict == "finished":
        alone = replace(verdict, summary=own_end(case))
        return verdict, describe_round(number, started_at, alone)
    hung = f"it hung: {hang.summary}"
    ending = replace(
        hang,
        verdict="crashed",
        detected_at=verdict.detected_at,
        stalled_since=None,
        stalled_for_s=0.0,
        ranks=verdict.ranks,
        summary=end_of_round(hung, case.run),
    )
    return ending, describe_round(number, started_at, replace(hang, summary=hung))


def describe_round(number: int, started_at: str, verdict: Verdict) -> Round:
    """Describe a round that has ended, for run.json and for later verdicts."""
    return Round(
        number=number,
        started_at=started_at,
        world_size=verdict.world_size,
        ended_at=verdict.detected_at,
        verdict=verdict.verdict,
        culprits=verdict.culprits,
        cause=verdict.cause,
        summary=verdict.summary,
        ranks=tuple(
            RankPlace(rank=state.rank, host=state.host, pid=state.pid)
            for state in verdict.ranks
            if state.pid is not None
        ),
    )
