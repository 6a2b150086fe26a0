"""One rank as a sidecar knows it that watches it, or `hangcheck attach` that came late."""

from __future__ import annotations

import signal
import time
from collections import deque
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.livelock import FunctionsMet, with_what_was_seen
from lightning_hangcheck.ledger.spending import Spending
from lightning_hangcheck.look.kernel import kill_counter
from lightning_hangcheck.model.case import ProcessExit, RankView
from lightning_hangcheck.model.evidence import ProcessLook
from lightning_hangcheck.observe.progress import Progress, StepHistory
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.look.flight_record import Numbers
    from lightning_hangcheck.look.sample import Target
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import Pace
    from lightning_hangcheck.model.evidence import Sample
    from lightning_hangcheck.model.flight import FlightRecord
    from lightning_hangcheck.observe.discovery import FoundRank

SAMPLES_KEPT = 4
STOPPED = ("T", "t")
"""As the kernel's letters say it: by a signal, or by a debugger."""


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
        self._stopped_ns: int | None = None
        self.flight: FlightRecord | None = None
        self._samples: dict[Target, deque[Sample]] = {}
        self._memory_kills = kill_counter(found.pid)
        self._functions = FunctionsMet()
        self._numbers: Numbers = {}
        self._numbers_ns = 0

    def read(self, beat: Beat, now_ns: int) -> None:
        """Take a reading of the rank's page."""
        self.beat = beat
        self.progress.read_beat(beat, now_ns)
        self.spending.read(beat, now_ns)
        self.steps.read(beat)

    def read_state(self, state: str, now_ns: int) -> None:
        """Take the kernel's letter for its process, and since when it has been stopped.

        Two stops with a turn between look like one to whoever samples it every other second.
        """
        self.state = state
        if state not in STOPPED:
            self._stopped_ns = None
        elif self._stopped_ns is None:
            self._stopped_ns = now_ns

    def read_flight(self, flight: FlightRecord | None) -> None:
        """Take a flight record; a collective since the last one is movement, however short it was.

        A rank that only sleeps between its collectives would else look as if it slept all along.
        """
        before, self.flight = self.flight, flight
        if flight is None or before is None or before.taken_ns < self.progress.last_progress_ns:
            return
        now, then = (
            {
                one.group: (
                    one.last_enqueued,
                    one.last_completed,
                    max((message.seq for message in one.messages), default=0),
                )
                for one in record.groups
            }
            for record in (flight, before)
        )
        if now != then:
            self.progress.read_collectives(flight.taken_ns)

    def read_numbers(self, numbers: Numbers, moment_ns: int) -> None:
        """Take the numbers of its collectives; others than before in this silence are progress."""
        known, since_ns = self._numbers, self._numbers_ns
        self._numbers, self._numbers_ns = known | numbers, moment_ns
        if since_ns < self.progress.last_told_ns:
            return
        if any(known.get(group, told) != told for group, told in numbers.items()):
            self.progress.read_collectives(moment_ns)

    @property
    def has_trained(self) -> bool:
        """Whether its training has ended, by its own word, in a process that goes on for others."""
        return self.beat is not None and self.beat.training == "over"

    def note_exit(self, order: int, at: str, exit_code: int | None) -> None:
        """Take down the end of its process, or of its training where the process goes on.

        ``at`` is ISO 8601 UTC; ``order`` as in `ProcessExit`; no exit code where it was not seen.
        """
        kills = self._memory_kills.since() if self._memory_kills is not None else 0
        scope = self._memory_kills.scope if kills and self._memory_kills is not None else ""
        self.process_exit = ProcessExit(
            order=order,
            at=at,
            exit_code=exit_code,
            memory_kills=kills,
            memory_kills_scope=scope,
            seen_ns=time.monotonic_ns(),
        )

    def add_samples(self, samples: Sequence[tuple[Target, Sample]]) -> None:
        """Add what a look saw of this rank's processes; children that are gone are forgotten."""
        present = dict(samples)
        for target in set(self._samples) - set(present):
            del self._samples[target]
        for target, taken in samples:
            kept = self._samples.setdefault(target, deque(maxlen=SAMPLES_KEPT))
            sample = with_what_was_seen(taken, kept[-1]) if kept else taken
            if target.role == "rank":
                sample = self._with_own_word(sample, has_children=len(present) > 1)
            kept.append(sample)
            of_child = target.role != "rank"
            if not of_child and sample.kernel is not None:
                self.polls = sample.kernel.polls
            if self._functions.meet(sample, self.progress.last_new_ns, of_child=of_child):
                self.progress.saw_new(sample.taken_ns)
            if not of_child and (place := self._rare_place(sample)):
                self.progress.saw_elsewhere(place)
        # a sample from before the last progress says nothing of the present silence
        for known in self._samples.values():
            while len(known) > 1 and known[0].taken_ns < self.progress.last_evident_ns:
                known.popleft()

    def _with_own_word(self, sample: Sample, *, has_children: bool) -> Sample:
        """The kernel shows that a signal is caught; only the rank knows whose handler that is.

        Nor does any stack show where a coroutine stands while its event loop waits.
        """
        beat, stack = self.beat, sample.stack
        if beat is not None and beat.handled_signals is not None and sample.kernel is not None:
            wakes = any(one != signal.SIGCHLD or has_children for one in beat.handled_signals)
            sample = replace(sample, kernel=replace(sample.kernel, catches_timers=wakes))
        main = stack.threads[0] if stack is not None and stack.threads else None
        if beat is None or stack is None or main is None or main.tid not in (None, self.found.pid):
            return sample
        from lightning_hangcheck.judge.threads import in_event_loop

        if beat.awaiting and in_event_loop(main.frames):
            frames = (*main.frames[:-2], *beat.awaiting, *main.frames[-2:])
            threads = (replace(main, frames=frames), *stack.threads[1:])
            sample = replace(sample, stack=replace(stack, threads=threads))
        return sample

    def pace(self) -> Pace | None:
        """The pace of the place where the rank stands; None where its calls do not show that."""
        newest = [samples[-1] for target, samples in self._samples.items() if target.role == "rank"]
        return self.progress.pace(self._rare_place(newest[0])) if newest else None

    def note_activity(self, now_ns: int) -> bool:
        """Take from the looks whether the rank advances, and say whether it stands still."""
        from lightning_hangcheck.judge.activity import read_rank_activity

        seen = read_rank_activity(self.view("", now_ns))
        if seen.carried:
            self.progress.saw_new(now_ns)
        if seen.activity == "moving":
            self.progress.saw_movement(now_ns)
        return seen.activity in ("busy", "idle")

    def view(self, host: str, now_ns: int) -> RankView:
        """Return the rank as rules may see it."""
        return RankView(
            rank=self.found.rank,
            local_rank=self.found.local_rank,
            host=host,
            pid=self.found.pid,
            rivals=self.found.rivals,
            store_port=self.found.store_port,
            beat=self.beat,
            silent_for_s=_seconds(self.progress.silent_ns(now_ns)),
            idle_for_s=_seconds(self.progress.idle_ns(now_ns)),
            nothing_new_for_s=_seconds(self.progress.circling_ns(now_ns)),
            goes_round=self._functions.goes_round,
            stopped_for_s=_seconds(now_ns - self._stopped_ns) if self._stopped_ns else None,
            pace=self.pace(),
            processes=tuple(
                ProcessLook(
                    pid=target.pid, role=target.role, index=target.index, samples=tuple(samples)
                )
                for target, samples in self._samples.items()
            ),
            process_exit=self._exit_with_last_words(),
            spent=self.spending.spent() if self.beat is not None else None,
            flight=self.flight,
            steps=self.steps.newest(now_ns),
            step_sums=self.steps.sums,
        )

    def _exit_with_last_words(self) -> ProcessExit | None:
        """A page outlives its process: what it said last is read after the end was seen.

        How a process ends that served others after its training says nothing of the rank.
        """
        if self.process_exit is None or self.beat is None:
            return self.process_exit
        code = None if self.has_trained else self.process_exit.exit_code
        return replace(self.process_exit, last_words=self.beat.last_words, exit_code=code)

    def _rare_place(self, sample: Sample) -> str:
        """Knowledge of frames is read with the first look: while all is well a sidecar is small."""
        from lightning_hangcheck.judge.phase_of_life import rare_place

        return rare_place(self.beat, sample)


def _seconds(nanoseconds: int) -> float:
    return round(nanoseconds / NANOSECONDS, 3)
