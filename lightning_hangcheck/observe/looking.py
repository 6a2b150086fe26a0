"""Looks: samples of all ranks and their children, taken beside the loop so that it never waits."""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.look.flight_record import flight_record, has_nccl2
from lightning_hangcheck.look.proc import root_of, vitals
from lightning_hangcheck.look.sample import AT_ONCE, Subject, sample_all
from lightning_hangcheck.look.source import code_notes
from lightning_hangcheck.model.case import CodeNote
from lightning_hangcheck.model.code_owner import is_users
from lightning_hangcheck.model.evidence import Frame, Gap, Sample
from lightning_hangcheck.model.flight import FLIGHT_RECORD, FlightRecord
from lightning_hangcheck.session.offers import why_withheld

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

Role = Literal["rank", "worker", "child"]
FLIGHT_LIMIT_S = 2.0
"""An answer takes 10 to 25 ms; a look must not wait long for a server that gives none."""
MOST_CHILDREN = 16
"""Children looked at per rank; a DataLoader with more workers shows the same stack in each."""


class Target(Struct, frozen=True, kw_only=True):
    """A process to look at, for a rank.

    Attributes:
        python: Whether it can have Python stacks.
    """

    rank: int
    pid: int
    role: Role
    index: int = 0
    python: bool = True


class Look(Struct, frozen=True):
    """What one look brought.

    Attributes:
        flights: Flight records by rank, of those that have one.
        code: What the source says around the lines on which the ranks stand.
    """

    samples: tuple[tuple[Target, Sample], ...]
    gaps: tuple[Gap, ...]
    flights: dict[int, FlightRecord] = {}
    code: tuple[CodeNote, ...] = ()

    @property
    def closer(self) -> bool:
        """Whether it brought native calls of any process."""
        return any(sample.native_calls for _, sample in self.samples)


class Looker:
    """Takes one look at a time in a thread of its own.

    Args:
        time_limit_s: Seconds for one probe of one process.
        torch_servers: Folder of the sockets on which ranks answer for torch's flight recorder.

    Attributes:
        cost_s: Processor time of this process and of those it started, while the last look was
            under way.
    """

    def __init__(self, time_limit_s: float, torch_servers: Path) -> None:
        self._time_limit_s = time_limit_s
        self._torch_servers = torch_servers
        self._began_s = time.time()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="look")
        self._pending: Future[Look] | None = None
        self._spent_s = _spent_s()
        self.cost_s = 0.0

    @property
    def looking(self) -> bool:
        """Whether a look is under way."""
        return self._pending is not None

    def begin(
        self,
        targets: Sequence[Target],
        with_values: Collection[int] = (),
        closer: Collection[int] = (),
    ) -> None:
        """Begin a look; its result comes from `finished`.

        Args:
            targets: At what.
            with_values: Ranks of which to read local variables too.
            closer: Ranks of which to read native calls too.
        """
        subjects = [
            Subject(
                pid=one.pid,
                rank=one.rank,
                python=one.python,
                local_values=one.role == "rank" and one.rank in with_values,
                closer=one.role == "rank" and one.rank in closer,
                trains=one.role == "rank",
            )
            for one in targets
        ]
        self._spent_s = _spent_s()
        self._pending = self._thread.submit(self._look, tuple(targets), subjects)

    def finished(self) -> Look | None:
        """Return the look that was under way once it is done, else None."""
        if self._pending is None or not self._pending.done():
            return None
        pending, self._pending = self._pending, None
        self.cost_s = _spent_s() - self._spent_s
        return pending.result()

    def wait(self, time_limit_s: float) -> Look | None:
        """Wait for the look under way, at most so many seconds."""
        if self._pending is None:
            return None
        try:
            self._pending.exception(time_limit_s)
        except TimeoutError:
            return None
        return self.finished()

    def close(self) -> None:
        """Give up the look under way: its probes end by their own time limits."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look(self, targets: tuple[Target, ...], subjects: list[Subject]) -> Look:
        with ThreadPoolExecutor(1, thread_name_prefix="flights") as beside:
            asked = beside.submit(flights_of, targets, self._torch_servers, self._time_limit_s)
            taken = sample_all(subjects, self._time_limit_s)
            flights, gaps = asked.result()
        samples = tuple(
            (target, sample) for target, (sample, _) in zip(targets, taken, strict=True)
        )
        return Look(
            samples=samples,
            gaps=(*(gap for _, found in taken for gap in found), *gaps),
            flights=flights,
            code=code_notes(
                [*where_ranks_stand(samples), *where_ranks_called(flights.values())],
                self._began_s,
                self._time_limit_s,
                root_of(targets[0].pid) if targets else "",
            ),
        )


def flights_of(
    targets: Sequence[Target], servers: Path, time_limit_s: float
) -> tuple[dict[int, FlightRecord], list[Gap]]:
    """Ask all ranks at once. Where none has a server or says why not, the judgement misses it.

    Args:
        targets: Those that are no ranks are left out.
        servers: Folder of the sockets on which ranks answer for torch's flight recorder.
        time_limit_s: Seconds for each request to a rank, at most two.

    Returns:
        Flight records by rank, and why there is none of a rank that might have one.
    """
    ranks = [target for target in targets if target.role == "rank"]
    sockets = [servers / str(target.pid) for target in ranks]
    if not any(socket.exists() or why_withheld(socket) for socket in sockets):
        return {}, []
    stopped = [target for target in ranks if _is_stopped(target.pid)]
    ranks = [target for target in ranks if target not in stopped]
    time_limit_s = min(time_limit_s, FLIGHT_LIMIT_S)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="flight") as pool:
        answers = pool.map(
            lambda target: flight_record(
                servers / str(target.pid),
                target.rank,
                time_limit_s,
                nccl2=has_nccl2(target.pid),
            ),
            ranks,
        )
        flights: dict[int, FlightRecord] = {}
        gaps = [
            Gap(
                FLIGHT_RECORD,
                one.rank,
                "its process is stopped, so its server does not answer",
                "flight_record",
            )
            for one in stopped
        ]
        for target, (flight, missing) in zip(ranks, answers, strict=True):
            gaps += missing
            if flight is not None:
                flights[target.rank] = flight
    return flights, gaps


def where_ranks_stand(samples: Iterable[tuple[Target, Sample]]) -> list[Frame]:
    """Return the frames of all ranks' main threads, and the user's own of their other threads."""
    return [
        frame
        for target, sample in samples
        if target.role == "rank" and sample.stack is not None
        for number, thread in enumerate(sample.stack.threads)
        for frame in thread.frames
        if not number or is_users(frame.file)
    ]


def where_ranks_called(flights: Iterable[FlightRecord]) -> list[Frame]:
    """Return the frames from which ranks called the collectives of their records."""
    return [frame for flight in flights for site in flight.sites.values() for frame in site.frames]


def _spent_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _is_stopped(pid: int) -> bool:
    seen = vitals(pid)
    return seen is not None and seen.state in ("T", "t")
