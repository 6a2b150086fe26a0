"""Looks: samples of all ranks and their children, taken beside the loop so that it never waits."""

from __future__ import annotations

import os
import threading
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

    from lightning_hangcheck.time_limit import Looked

Role = Literal["rank", "worker", "child"]
FLIGHT_LIMIT_S = 2.0
"""An answer takes 10 to 25 ms; a look must not wait long for a server that gives none."""
MOST_CHILDREN = 16
"""Children looked at per rank; a DataLoader with more workers shows the same stack in each."""


class Target(Struct, frozen=True, kw_only=True):
    """A process to look at, for a rank; ``python``: whether it can have Python stacks."""

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
        self._given_up = threading.Event()
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
        """Begin a look at these; its result comes from `finished`.

        Of some ranks local variables are read too, of those to look closer at native calls.
        """
        self._spent_s = _spent_s()
        self._pending = self._thread.submit(
            self._look, tuple(targets), frozenset(with_values), frozenset(closer)
        )

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
        """Give up the look under way: what has begun ends by its own limits, the rest is left."""
        self._given_up.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look(
        self, targets: tuple[Target, ...], with_values: frozenset[int], closer: frozenset[int]
    ) -> Look:
        subjects = []
        for one in targets:
            of_rank = one.role == "rank"
            subject = Subject(
                pid=one.pid,
                rank=one.rank,
                python=one.python,
                local_values=of_rank and one.rank in with_values,
                closer=of_rank and one.rank in closer,
                trains=of_rank,
            )
            subjects.append(subject)
        with ThreadPoolExecutor(1, thread_name_prefix="flights") as beside:
            asked = beside.submit(flights_of, targets, self._torch_servers, self._time_limit_s)
            taken = sample_all(subjects, self._time_limit_s, self._given_up.is_set)
            flights, gaps = asked.result()
        samples = tuple(
            (target, sample) for target, (sample, _) in zip(targets, taken, strict=True)
        )
        called = (site.frames for flight in flights.values() for site in flight.sites.values())
        return Look(
            samples=samples,
            gaps=(*(gap for _, found in taken for gap in found), *gaps),
            flights=flights,
            code=code_notes(
                [*where_ranks_stand(samples), *(frame for frames in called for frame in frames)],
                self._began_s,
                self._time_limit_s,
                root_of(targets[0].pid) if targets else "",
            ),
        )


def flights_of(
    targets: Sequence[Target], servers: Path, time_limit_s: float
) -> tuple[dict[int, FlightRecord], list[Gap]]:
    """Ask all ranks at once. Where none has a server or says why not, the judgement misses it.

    A request takes two seconds at most. The folder holds the sockets on which ranks answer.

    Returns:
        Flight records by rank, and why there is none of a rank that might have one.
    """
    sockets = {one.rank: servers / str(one.pid) for one in targets if one.role == "rank"}
    if not any(socket.exists() or why_withheld(socket) for socket in sockets.values()):
        return {}, []

    def ask(rank: int) -> Looked[FlightRecord]:
        seen = vitals(int(sockets[rank].name))
        if seen is not None and seen.state in "Tt":
            why = "its process is stopped, so its server does not answer"
            return None, (Gap(FLIGHT_RECORD, rank, why, "flight_record"),)
        nccl2 = has_nccl2(int(sockets[rank].name))
        return flight_record(sockets[rank], rank, min(time_limit_s, FLIGHT_LIMIT_S), nccl2=nccl2)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="flight") as pool:
        answers = dict(zip(sockets, pool.map(ask, sockets), strict=True))
    flights = {rank: flight for rank, (flight, _) in answers.items() if flight is not None}
    return flights, [gap for _, missing in answers.values() for gap in missing]


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


def _spent_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system
