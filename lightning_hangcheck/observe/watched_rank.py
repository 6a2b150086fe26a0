"""What the sidecar, or a late `attach`, knows of a rank, and of the ranks of a round.

Rounds are never mixed: a rank that is gone since the last round is not awaited in the next.
"""

from __future__ import annotations

import signal
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.identity import is_launcher
from lightning_hangcheck.judge.exits import left_well
from lightning_hangcheck.judge.livelock import FunctionsMet, with_what_was_seen
from lightning_hangcheck.ledger.spending import Spending
from lightning_hangcheck.look.kernel import kill_counter
from lightning_hangcheck.look.proc import UNREADABLE, vitals
from lightning_hangcheck.machine import read_process_stat, ticks_since_boot, which_machine
from lightning_hangcheck.model.case import Pace, ProcessExit, RankView, RunFacts
from lightning_hangcheck.model.evidence import Gap, ProcessLook, Sample
from lightning_hangcheck.observe.progress import ProcessorTime, Progress, StepHistory
from lightning_hangcheck.session.collective_notes import last_meeting
from lightning_hangcheck.text.shown import NANOSECONDS, utc_now

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from lightning_hangcheck.identity import NodePlace
    from lightning_hangcheck.look.sample import Look, Target
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.flight import FlightRecord
    from lightning_hangcheck.observe.discovery import FoundRank

SAMPLES_KEPT = 4
STOPPED = ("T", "t")  # The kernel's letters: stopped by a signal, or by a debugger
WAITED_OUT_S = 8.0
"""torchrun restarts ranks within 1 to 2 s of their end, on a busy machine later."""


class WatchedRank:
    """What is known of one rank: its process, progress, samples, and its end if it had one."""

    def __init__(self, found: FoundRank, now_ns: int) -> None:
        self.found = found
        self.progress = Progress(now_ns)
        self.spending = Spending()
        self.steps = StepHistory()
        self.beat: Beat | None = None
        self.process_exit: ProcessExit | None = None
        self.ended_by_word = False
        self.state = ""
        self.polls = False
        self.all_threads_s = 0.0
        self.main_thread_s: float | None = None
        self.flight: FlightRecord | None = None
        self._stopped_ns: int | None = None
        self._samples: dict[Target, deque[Sample]] = {}
        self._memory_kills = kill_counter(found.pid)
        self._functions = FunctionsMet()
        self._numbers: dict[str, tuple[tuple[int, ...], int]] = {}  # and when they were read

    def read(self, beat: Beat, now_ns: int) -> None:
        """Take a reading of the rank's page."""
        self.beat = beat
        self.progress.read_beat(beat, now_ns)
        self.spending.read(beat, now_ns)
        self.steps.read(beat)

    def read_state(self, state: str, now_ns: int) -> None:
        """Take the kernel's state letter of its process, and note since when it is stopped.

        Samples every other second show two stops with a run between as one.
        """
        self.state = state
        if state not in STOPPED:
            self._stopped_ns = None
        elif self._stopped_ns is None:
            self._stopped_ns = now_ns

    def stopped_ns(self, now_ns: int) -> int:
        """Return since how long it has been stopped; 0 if it runs."""
        return now_ns - self._stopped_ns if self._stopped_ns is not None else 0

    def read_flight(self, flight: FlightRecord | None) -> None:
        """Take a flight record, or that there is none now."""
        self.flight = flight
        if flight is not None:
            counts = {}
            for group in flight.groups:
                newest = max((message.seq for message in group.messages), default=0)
                counts[group.group] = group.last_enqueued, group.last_completed, newest
            self.read_numbers(counts, flight.taken_ns, self.progress.last_progress_ns)

    def read_numbers(
        self, numbers: Mapping[str, tuple[int, ...]], moment_ns: int, since_ns: int | None = None
    ) -> None:
        """Take the numbers of its collectives; a change since then is progress, however short.

        By default since it last reported anything. Otherwise a rank that only sleeps between
        collectives would look as if it always slept.
        """
        since_ns = self.progress.last_reported_ns if since_ns is None else since_ns
        known = self._numbers
        moved = any(
            known[group][0] != count and known[group][1] >= since_ns
            for group, count in numbers.items()
            if group in known
        )
        self._numbers |= {group: (count, moment_ns) for group, count in numbers.items()}
        if moved:
            self.progress.read_collectives(moment_ns)

    @property
    def has_trained(self) -> bool:
        """Whether its training has ended, by its own report, in a process that runs on."""
        return self.beat is not None and self.beat.training == "over"

    def note_exit(
        self, order: int, at: str, exit_code: int | None, servers: Path | None = None
    ) -> None:
        """Record the end of its process, or of its training if the process runs on.

        ``at`` is ISO 8601 UTC; ``order`` as in `ProcessExit`; ``exit_code`` is None if it was not
        seen; ``servers``: the folder of worker sockets, next to which its notes are.
        """
        met = last_meeting(servers / str(self.found.pid)) if servers is not None else ((), ())
        counter = self._memory_kills
        kills = counter.since() if counter is not None else 0
        self.process_exit = ProcessExit(
            order=order,
            at=at,
            exit_code=exit_code,
            memory_kills=kills,
            memory_kills_scope=counter.scope if counter is not None and kills else "",
            seen_ns=time.monotonic_ns(),
            met=met[0],
            met_at=met[1],
        )

    def add_samples(self, samples: Sequence[tuple[Target, Sample]]) -> None:
        """Add samples of this rank's processes; children that are gone are forgotten."""
        present, self._functions.in_doubt = dict(samples), False
        self._samples = {pid: kept for pid, kept in self._samples.items() if pid in present}
        for target, taken in samples:
            kept = self._samples.setdefault(target, deque(maxlen=SAMPLES_KEPT))
            sample, of_rank = with_what_was_seen(taken, kept[-1]) if kept else taken, False
            if target.role == "rank":
                of_rank = True
                sample = self._with_own_word(sample, has_children=len(present) > 1)
                self.polls = self.polls if sample.kernel is None else sample.kernel.polls
                if place := self._rare_place(sample):
                    self.progress.saw_elsewhere(place)
            kept.append(sample)
            if self._functions.meet(sample, self.progress.last_new_ns, of_child=not of_rank):
                self.progress.saw_new(sample.taken_ns)
        # a sample from before the last progress shows nothing of the present silence
        for known in self._samples.values():
            while len(known) > 1 and known[0].taken_ns < self.progress.last_evident_ns:
                known.popleft()

    def _with_own_word(self, sample: Sample, *, has_children: bool) -> Sample:
        """Add what only the rank knows: whose signal handlers it has, and where its coroutine is.

        The kernel shows only that a signal is caught; no stack shows a coroutine that is awaiting.
        """
        beat, stack = self.beat, sample.stack
        if beat is not None and beat.handled_signals is not None and sample.kernel is not None:
            wakes = any(number != signal.SIGCHLD or has_children for number in beat.handled_signals)
            alarm = signal.SIGALRM in beat.handled_signals
            kernel = replace(sample.kernel, catches_timers=wakes, catches_alarm=alarm)
            sample = replace(sample, kernel=kernel)
        main = stack.threads[0] if stack is not None and stack.threads else None
        if beat is None or stack is None or main is None or main.tid not in (None, self.found.pid):
            return sample
        from lightning_hangcheck.judge.threads import in_event_loop

        if beat.awaiting and in_event_loop(main.frames):
            frames = (*main.frames[:-2], *beat.awaiting, *main.frames[-2:])
            threads = (replace(main, frames=frames), *stack.threads[1:])
            sample = replace(sample, stack=replace(stack, threads=threads))
        return sample

    @property
    def in_doubt(self) -> bool:
        """Whether only the next look can show if the rank advanced, or still polls."""
        return self._functions.in_doubt

    def _rare_place(self, sample: Sample) -> str:
        """Imported with the first look: while all is well, the sidecar stays small."""
        from lightning_hangcheck.judge.phase_of_life import rare_place

        return rare_place(self.beat, sample)

    def pace(self) -> Pace | None:
        """The pace of the place where the rank is; None if no look has shown that."""
        newest = [samples[-1] for target, samples in self._samples.items() if target.role == "rank"]
        return self.progress.pace(self._rare_place(newest[0])) if newest else None

    @property
    def pids(self) -> list[int]:
        """The rank's processes of which there are samples."""
        return [target.pid for target in self._samples]

    def note_activity(self, now_ns: int, of_job: Collection[tuple[str, int]]) -> bool:
        """Learn from the samples whether the rank advances; return whether it is busy or idle.

        So does an idle rank if a process that is none `of_job` (host, here without a name, and
        process id) works under the lock that it waits for. What else such a process holds, it may
        use for others.
        """
        from lightning_hangcheck.judge.activity import read_rank_activity
        from lightning_hangcheck.judge.job import is_helped
        from lightning_hangcheck.judge.processes import read_process

        view = self.view(now_ns)
        seen, own = read_rank_activity(view), view.own_process
        if seen.carried:
            self.progress.saw_new(now_ns)
        helped = False
        if seen.activity == "idle" and own is not None:
            read = read_process(own)
            locks = (target for target in read.targets if target.kind == "lock")
            helped = is_helped(read, locks, view.host, of_job)
        if seen.activity == "moving" or helped:
            self.progress.saw_movement(now_ns)
        return seen.activity in ("busy", "idle")

    def view(self, now_ns: int, host: str = "") -> RankView:
        """Return the rank as rules see it."""

        def seconds(nanoseconds: int) -> float:
            return round(nanoseconds / NANOSECONDS, 3)

        ended = self.process_exit
        if ended is not None and self.beat is not None:
            # a page outlives its process: its last words are read after the end was seen. The exit
            # code of a process that served others after its training shows nothing of the rank
            code = None if self.has_trained else ended.exit_code
            ended = replace(ended, last_words=self.beat.last_words, exit_code=code)
        return RankView(
            rank=self.found.rank,
            local_rank=self.found.local_rank,
            host=host,
            pid=self.found.pid,
            rivals=self.found.rivals,
            store_port=self.found.store_port,
            beat=self.beat,
            silent_for_s=seconds(self.progress.silent_ns(now_ns)),
            idle_for_s=seconds(self.progress.idle_ns(now_ns)),
            nothing_new_for_s=seconds(self.progress.circling_ns(now_ns)),
            goes_round=self._functions.goes_round,
            stopped_for_s=seconds(self.stopped_ns(now_ns)) if self._stopped_ns else None,
            pace=self.pace(),
            processes=tuple(
                ProcessLook(
                    pid=target.pid, role=target.role, index=target.index, samples=tuple(samples)
                )
                for target, samples in self._samples.items()
            ),
            process_exit=ended,
            spent=self.spending.spent() if self.beat is not None else None,
            flight=self.flight,
            steps=self.steps.newest(now_ns),
            step_sums=self.steps.sums,
        )


class _Boundary:
    """Entered for each rank at each reading: a generator would cost four times as much."""

    __slots__ = ("_faults", "_rank", "_what")

    def __init__(self, faults: Faults, what: str, rank: int | None) -> None:
        self._faults, self._what, self._rank = faults, what, rank

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._faults.take(self._what, self._rank, error)
        return True


class Faults:
    """Failures of the watch itself: each is a gap and is logged once. The watch continues."""

    def __init__(self) -> None:
        self._gaps: dict[tuple[str, int | None], Gap] = {}

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """A gap for each failure so far."""
        return tuple(self._gaps.values())

    def of(self, what: str, rank: int | None = None) -> _Boundary:
        """Guard the block that follows: an exception in it becomes a gap, and is not raised."""
        return _Boundary(self, what, rank)

    def take(self, what: str, rank: int | None, error: Exception) -> None:
        """Record a failure."""
        why = f"the watch of it failed ({type(error).__name__}: {error})"
        whose = "" if rank is None else f" of rank {rank}"
        log.once(f"fault {what} {rank}", f"{what}{whose} is missing: {why}; the watch goes on")
        self._gaps[what, rank] = Gap(what, rank, why, "watcher")


class WatchedRound:
    """The ranks of one round on this node, and the torchrun agents that started them.

    ``guessed_words``: command line of a guessed rank. ``seen_alive_ticks``: when a rank was last
    seen, in ticks since boot. ``servers``: folder of worker servers and notes. ``faults``: failed
    readings.
    """

    def __init__(
        self, number: int, servers: Path | None = None, faults: Faults | None = None
    ) -> None:
        self.number = number
        self.host = socket.gethostname()
        self.faults = faults or Faults()
        self._servers = servers
        self.ranks: dict[int, WatchedRank] = {}
        self.started_at = utc_now()
        self.guessed_words: list[str] | Gap = []
        self.agents: set[int] = set()
        self.seen_alive_ticks = 0
        self._exit_count = 0

    @property
    def alive(self) -> list[WatchedRank]:
        """Ranks whose process has not ended."""
        return [rank for rank in self.ranks.values() if rank.process_exit is None]

    @property
    def count(self) -> int | None:
        """The launcher's own count of this round; None if it keeps none."""
        numbers = (rank.found.start.number for rank in self.ranks.values())
        return max((number for number in numbers if number is not None), default=None)

    @property
    def world_size(self) -> int:
        """The number of ranks that the launcher promised, or that were seen."""
        promised = (rank.found.world_size or 0 for rank in self.ranks.values())
        return max([len(self.ranks), *promised])

    @property
    def may_be_followed(self) -> bool:
        """Whether torchrun would restart the ranks: not all ended well, and a restart is left."""
        well = all(left_well(rank.view(0)) for rank in self.ranks.values())
        return self.restarts_left != 0 and not well

    @property
    def restarts_left(self) -> int | None:
        """How often torchrun will restart the ranks; None if no rank shows that."""
        starts = (rank.found.start for rank in self.ranks.values())
        left = [start.most - (start.number or 0) for start in starts if start.most is not None]
        return max(0, min(left)) if left else None

    @property
    def is_guess_a_launcher(self) -> bool:
        """Whether the process that was guessed to be a rank only starts ranks."""
        return isinstance(self.guessed_words, list) and is_launcher(self.guessed_words)

    @property
    def ended_ns(self) -> int:
        """When the last of the ranks was seen to end."""
        ends = (rank.process_exit for rank in self.ranks.values())
        return max((end.seen_ns for end in ends if end is not None), default=0)

    def is_left_by(self, found: FoundRank) -> bool:
        """Whether this process belongs to a later round.

        The launcher's count decides. Without a new count (torchrun does not count a change of
        nodes), all ranks must be gone, and the process must have started after one was last seen
        alive: a DataLoader worker that outlives its rank is older.
        """
        if not self.ranks or any(rank.found.pid == found.pid for rank in self.ranks.values()):
            return False
        if self.count is not None and found.start.number not in (None, self.count):
            return found.start.number > self.count
        return not self.alive and found.started_ticks > self.seen_alive_ticks

    def is_waited_out_by(self, agent: FoundRank, now_ns: int) -> bool:
        """Whether the ranks are gone for long, while torchrun, which started them, lives.

        Then it waits for other nodes. If a rank failed and no restart is left, it only ends.
        """
        if self.alive or not self.ranks or agent.pid not in self.agents:
            return False
        # an unseen code may be any: by all other signs ``sys.exit("no data")`` is a normal end
        ends = [rank.process_exit for rank in self.ranks.values()]
        codes = [None if end is None else end.exit_code for end in ends]
        if self.restarts_left == 0 and not {None, 0, -signal.SIGTERM}.issuperset(codes):
            return False
        well = all(code == 0 for code in codes)
        return now_ns - self.ended_ns >= WAITED_OUT_S * NANOSECONDS and not well

    def is_after(self, found: FoundRank) -> bool:
        """Whether this process is left from an earlier round, by the launcher's count."""
        number, count = found.start.number, self.count
        return number is not None and count is not None and number < count

    def take_in(
        self, found: FoundRank, now_ns: int, words: list[str] | Gap | None = None
    ) -> WatchedRank | None:
        """Add a rank, and return it if it is new; another process makes it another rank."""
        known = self.ranks.get(found.rank)
        if known is not None and known.found.pid == found.pid:
            known.found = found
            return None
        self.started_at = self.started_at if self.ranks else utc_now()
        # it counted as rank 0 until it knew its number: Lightning's first process of a later node
        for before in [
            number for number, rank in self.ranks.items() if rank.found.pid == found.pid
        ]:
            del self.ranks[before]
        if found.guessed:
            self.guessed_words = [] if words is None else words
        line = read_process_stat(found.pid) if found.start.launcher == "torchrun" else None
        self.agents |= {line.parent_pid} if line is not None else set()
        rank = self.ranks[found.rank] = WatchedRank(found, now_ns)
        return rank

    def note_words(self) -> None:
        """Record which ranks report the end of training, or a new start in the same process."""
        for rank in self.ranks.values():
            if rank.has_trained and rank.process_exit is None:
                self.note_exit(rank.found.pid, None)
                rank.ended_by_word = True
            elif rank.ended_by_word and not rank.has_trained:
                rank.ended_by_word, rank.process_exit = False, None

    def note_exit(self, pid: int, exit_code: int | None) -> None:
        """Record that a rank's process has ended, or its exit code that was unknown."""
        for rank in self.ranks.values():
            if rank.found.pid != pid:
                continue
            if rank.process_exit is None:
                rank.note_exit(self._exit_count, utc_now(), exit_code, self._servers)
                self._exit_count += 1
            elif rank.process_exit.exit_code is None:
                rank.process_exit = replace(rank.process_exit, exit_code=exit_code)

    def read_vitals(
        self, ranks: Sequence[WatchedRank], now_ns: int, exit_codes: Mapping[int, int | None]
    ) -> None:
        """Read what the kernel shows of ranks at any time; if a rank is gone, record its end."""
        for rank in ranks:
            pid = rank.found.pid
            with self.faults.of("its vital signs", rank.found.rank):
                seen = vitals(pid)
                if seen is None or not seen.is_still(rank.found.started_ticks):
                    self.note_exit(pid, exit_codes.get(pid))
                    continue
                self.seen_alive_ticks = ticks_since_boot()
                rank.read_state(seen.state, now_ns)
                main_s = rank.main_thread_s
                # if all its threads used no more time, neither did the main thread
                if main_s is None or seen.cpu_s != rank.all_threads_s:
                    rank.all_threads_s = seen.cpu_s
                    line = read_process_stat(pid, pid)
                    main_s = rank.main_thread_s = None if line is None else line.cpu_s
                if main_s is not None and seen is not UNREADABLE:
                    used = ProcessorTime(main_s, main_s if rank.polls else seen.cpu_s)
                    rank.progress.read_processor(used, now_ns)

    def add(self, look: Look) -> None:
        """Give each rank what a look found of it; ranks that are gone keep what was seen before."""
        for rank in self.alive:
            with self.faults.of("what a look brought", rank.found.rank):
                rank.add_samples([pair for pair in look.samples if pair[0].rank == rank.found.rank])
                rank.read_flight(look.flights.get(rank.found.rank))

    def views(self, now_ns: int) -> tuple[RankView, ...]:
        """Return all ranks as rules see them; of one that fails only its number, and a gap."""
        views = {}
        for number, rank in self.ranks.items():
            views[number] = RankView(rank=number, host=self.host, pid=rank.found.pid)
            with self.faults.of("what is known of it", number):
                views[number] = rank.view(now_ns, self.host)
        return tuple(views.values())

    def facts(
        self, run_id: str, command: str, started_at: str, place: NodePlace | None = None
    ) -> RunFacts:
        """Return what a case needs of the run; ``place``: of this node, if known."""
        found = [rank.found for rank in self.ranks.values()]
        local = [rank.local_world_size for rank in found if rank.local_world_size is not None]
        if place is not None and place.ranks and not all(rank.guessed for rank in found):
            local = [place.ranks]
        world_size = max((rank.world_size or 0 for rank in found), default=0)
        nnodes = max(1, -(-world_size // max(local))) if local else 1
        return RunFacts(
            run_id=run_id,
            command=command,
            started_at=started_at,
            world_size=world_size,
            nnodes=nnodes if place is None else place.machines or place.nnodes,
            local_world_size=max(local, default=None),
            one_by_one=any(rank.one_by_one for rank in found),
            round=self.number,
            machine=which_machine(),
        )
