"""Work that the loop leaves to threads, so that it never waits: foreign processes, and time.

While a process's memory is locked, its command line, environment and maps cannot be read. The
`Scout` reads them in a thread of its own: which processes are ranks, and which to look at. The
`Metronome` is a thread that only sleeps: if even that is late, the machine is overloaded, or the
sidecar was stopped.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck import log
from lightning_hangcheck.look.proc import command_lines, has_ended
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import RoundStart
from lightning_hangcheck.observe import discovery
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lightning_hangcheck.look.sample import Target
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.session.session import Session

BEAT_S = 0.25
LAPSE_NS = 2 * NANOSECONDS
"""A beat that is this late means that the sidecar was stopped or starved."""
STARVED = (
    "the sidecar was not run for seconds on end (an overloaded machine, or it was stopped): "
    "silence of that time does not count, so what is told comes later"
)
FRESH_NS = 2 * NANOSECONDS
"""Age up to which the known process tree serves for a look."""
LAST_SCAN_S = 2.0
"""Limit for the last scan: the job is over, and nothing else is left to do."""


class Metronome:
    """Measures the times in which this process did not run, by a thread that only sleeps.

    What delays only the loop does not delay that thread. Time is a parameter, in nanoseconds.
    """

    def __init__(self, now_ns: int) -> None:
        self._state = (0, now_ns)  # replaced as a whole: its reader is another thread
        self._read_ns = 0

    def start(self) -> Metronome:
        """Beat from now on, in a thread."""

        def run() -> None:
            while True:
                time.sleep(BEAT_S)
                self.beat(time.monotonic_ns())

        threading.Thread(target=run, name="hangcheck-metronome", daemon=True).start()
        return self

    def beat(self, now_ns: int) -> None:
        """Record that this process runs at this moment."""
        self._state = (self._starved_ns(now_ns), now_ns)

    def read(self, now_ns: int) -> int:
        """Return for how many nanoseconds this process did not run since the last call."""
        starved_ns = self._starved_ns(now_ns)
        news_ns, self._read_ns = max(0, starved_ns - self._read_ns), max(starved_ns, self._read_ns)
        if news_ns:
            log.once("starved", STARVED)
        return news_ns

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gap for the time in which this process did not run, if any."""
        what = f"{self._read_ns / NANOSECONDS:.0f} s of the job"
        return (Gap(what, None, STARVED, "watcher"),) if self._read_ns else ()

    def _starved_ns(self, now_ns: int) -> int:
        starved_ns, before_ns = self._state
        lapse_ns = now_ns - before_ns
        return starved_ns + (lapse_ns if lapse_ns > LAPSE_NS else 0)


class Scouted(NamedTuple):
    """What one scan of the job's processes found; ``beats`` are their pages, with believed ranks.

    ``gone``: ranks that left only a page. ``words``: command lines of new and guessed ranks.
    """

    processes: tuple[discovery.SeenProcess, ...]
    beats: dict[int, Beat]
    found: tuple[discovery.FoundRank, ...]
    gone: tuple[discovery.FoundRank, ...]
    words: dict[int, list[str] | Gap]


class Scout:
    """Reads foreign processes, one job at a time; ``cost_s``: processor time of the last scan."""

    def __init__(self, session: Session) -> None:
        facts = session.facts
        self._numbered = facts.numbered and not facts.restarts  # a restarting root may have no rank
        self._tree = discovery.ProcessTree(facts.root_pid, root_belongs=not facts.launched)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hangcheck-scout")
        self.cost_s = 0.0
        self._taken_ns = 0
        self._beats: dict[int, Beat] = {}
        self._scan: Future[Scouted] | None = None

    @property
    def busy(self) -> bool:
        """Whether a scan is under way."""
        return self._scan is not None

    def begin_scan(self, beats: dict[int, Beat], now_ns: int, known: Collection[int]) -> None:
        """Begin a scan of the processes, unless one is under way."""

        def look_round() -> Scouted:
            began_s = time.thread_time()
            self._beats, self._taken_ns = beats, now_ns
            processes = self._tree.take(now_ns, beats)
            ranked = discovery.believed(beats)
            found = discovery.find_ranks(processes, ranked, numbered=self._numbered)
            new = [rank.pid for rank in found if rank.guessed or rank.pid not in known]
            # a rank that came and went between two scans is known by its page; if it never learnt
            # its number, it is rank 0, provided there is no other page. A process that its parent
            # has not reaped is gone, too
            gone = tuple(
                discovery.FoundRank(
                    rank=beat.rank or 0,
                    pid=pid,
                    local_rank=beat.local_rank,
                    world_size=beat.world_size,
                    start=RoundStart(number=beat.round),
                    guessed=beat.rank is None,
                )
                for pid, beat in ranked.items()
                if (len(ranked) == 1 or beat.rank is not None) and has_ended(pid)
            )
            words = command_lines(new)
            self.cost_s = time.thread_time() - began_s
            return Scouted(processes, ranked, found, gone, words)

        if self._scan is None:
            self._scan = self._thread.submit(look_round)

    def scanned(self, *, wait: bool = False) -> Scouted | None:
        """Return the scan's findings once it is over, else None."""
        scan = self._scan
        if scan is None or not (scan.done() or wait):
            return None
        self._scan = None
        return scan.result(LAST_SCAN_S if wait else 0)

    def targets(self, ranks: Sequence[tuple[int, int]]) -> tuple[list[Target], tuple[Gap, ...]]:
        """Find the processes to look at, and why others are left out; the caller waits."""

        def find() -> tuple[list[Target], tuple[Gap, ...]]:
            now_ns = time.monotonic_ns()
            if now_ns - self._taken_ns > FRESH_NS:
                self._tree.take(now_ns, self._beats)
                self._taken_ns = now_ns
            return discovery.with_room(self._tree.targets(ranks))

        return self._thread.submit(find).result()

    def close(self) -> None:
        """Give up what is under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)
