"""The case as rules read it: what each rank does, where it stands, and who is not there."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.diagnosis.job_processes import (
    JobProcesses,
    job_processes,
    process_of,
    works_outside,
)
from lightning_hangcheck.diagnosis.views_of_ranks import views_of_ranks, with_groups
from lightning_hangcheck.gather.stack_groups import latest_frames
from lightning_hangcheck.model.case import Case, RankView
from lightning_hangcheck.model.code_owner import owner_of
from lightning_hangcheck.model.evidence import Frame, Gap, ProcessLook, WaitTarget
from lightning_hangcheck.reading.activity.rank_activity import (
    ProcessActivity,
    RankActivity,
    has_left,
    read_process_activity,
    read_rank_activity,
)
from lightning_hangcheck.reading.last_words import raised_at
from lightning_hangcheck.reading.phase_of_life import (
    PhaseOfLife,
    life_beside,
    phase_of_life,
    stepped_by_code,
)
from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.records.started_operations import (
    MESSAGES,
    asked_end,
    asks_peers,
    device_message,
)
from lightning_hangcheck.reading.waits.kernel_targets import steady_targets, through_children
from lightning_hangcheck.reading.waits.torch_waits import Wait, find_wait, of_own_process

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lightning_hangcheck.diagnosis.job_processes import Process
    from lightning_hangcheck.model.evidence import Holder
    from lightning_hangcheck.model.slugs import Phase
    from lightning_hangcheck.reading.activity.rank_activity import Activity
    from lightning_hangcheck.reading.knowledge.loading import WaitKind

LONGEST_SILENCE_S = 10 * 365 * 86_400.0
MOST_LISTED = 4_096
"""Unknown ranks that are listed: more say nothing new."""
COUNTS_ARRIVALS = "TCPStore__waitForWorkers"
"""What torch (TCPStore.cpp, 2.13) counts while the store's keeper waits for WORLD_SIZE clients."""


ASKS_STORE = ("TCPStore__get", "TCPStore__wait")
"""What torch counts while a thread waits for a key of a store (TCPStore.cpp, 2.13)."""


class WorkerReading(Struct, frozen=True, kw_only=True):
    """A process that a rank started with multiprocessing; ``targets`` as in `RankReading`."""

    look: ProcessLook
    process_activity: ProcessActivity
    place: Frame | None
    wait: Wait | None
    targets: tuple[WaitTarget, ...] = ()

    @property
    def activity(self) -> Activity:
        """What it does."""
        return self.process_activity.activity

    @property
    def wants_work(self) -> bool:
        """Whether it waits for its rank: such a worker holds nobody up."""
        return self.wait is not None and self.wait.kind == "index_queue"


class RankReading(Struct, frozen=True, kw_only=True, gc=False):
    """One rank, read.

    Attributes:
        place: Innermost frame of the user's own code in the thread where its wait ends; where that
            runs none, in its main thread; where an exception ended it, where that came from.
        life: Where in its life it is, and what tells so.
        silence_s: Seconds since its last progress; for an idle rank since it was last active, for
            one in a livelock since it last did anything new.
        targets: What the kernel shows an idle rank to wait for, sample after sample: where its main
            thread waits for other threads or for a child, what these wait for.
        own_targets: The same of its own process: the child itself.
        child: The child in which its wait ends, if any.
        told_by: The rank whose evidence this is, where another stands for it: what is that rank's
            alone (process ids, figures) is not its own.
    """

    view: RankView
    rank_activity: RankActivity
    place: Frame | None = None
    life: PhaseOfLife | None = None
    silence_s: float = 0.0
    workers: tuple[WorkerReading, ...] = ()
    targets: tuple[WaitTarget, ...] = ()
    own_targets: tuple[WaitTarget, ...] = ()
    child: ProcessLook | None = None
    told_by: int | None = None

    @property
    def told_by_rank(self) -> int:
        """The rank whose evidence this is, itself where no other stands for it."""
        return self.rank if self.told_by is None else self.told_by

    @property
    def waiter(self) -> str:
        """Which of its threads or children it is that waits for its targets."""
        if self.child is not None:
            return f"child pid {self.child.pid}"
        stuck = self.rank_activity.stuck
        return "main thread" if stuck is None else f"thread {stuck.name or stuck.tid}"

    def keeps_store(self, target: WaitTarget) -> bool:
        """Whether a target is the store that the ranks share: whoever serves it brings nothing."""
        port = self.view.store_port
        socket = target.kind == "socket" and not target.call.startswith("accept")
        return port is not None and socket and target.name.rpartition(":")[2] == str(port)

    @property
    def at_store(self) -> bool:
        """Whether it waits for a key of that store, which another rank could bring."""
        return self.activity == "idle" and any(map(self.keeps_store, self.targets))

    @property
    def asks_store(self) -> bool:
        """Whether it asks a store for a key, whosever that is.

        Torch counts threads that do, and it stands in a call of torch's own: the stack ends in the
        line that made it, and not in a library of connections.
        """
        counted = self.view.flight.waits if self.view.flight is not None else {}
        frames = self.rank_activity.stuck_frames or self.frames
        if self.child is not None or not frames or not any(one in counted for one in ASKS_STORE):
            return False
        owner = owner_of(frames[-1].file)
        return owner.kind == "user" or owner.package == "torch"

    @property
    def rank(self) -> int:
        """Its global rank."""
        return self.view.rank

    @property
    def phase(self) -> Phase | None:
        """Where in its life it is."""
        return self.life.phase if self.life is not None else None

    def shows(self, phase: Phase) -> bool:
        """Whether its calls show this phase, or its own sections and hooks say it."""
        life = self.life
        return life is not None and life.phase == phase and life.told_by in ("calls", "page")

    @property
    def seen_by_calls(self) -> bool:
        """Whether its calls show its phase: they tell more than the name of a section."""
        return self.life is not None and self.life.told_by == "calls"

    @property
    def activity(self) -> Activity:
        """What it does, all its processes considered."""
        return self.rank_activity.activity

    @property
    def process_activity(self) -> ProcessActivity:
        """What its own process does by itself."""
        return self.rank_activity.process_activity

    @property
    def livelocked(self) -> bool:
        """Whether it moves, but only round in a loop."""
        return self.rank_activity.livelocked

    @property
    def circling(self) -> bool:
        """Whether it computes and was seen to go round, and not in one long call."""
        return self.rank_activity.circling

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Newest frames of its main thread, outermost first."""
        return self.rank_activity.frames

    @property
    def wait(self) -> Wait | None:
        """The known wait in which its main thread stands, if any."""
        return self.rank_activity.wait

    @property
    def wait_kind(self) -> WaitKind | None:
        """Kind of the known wait in which it stands."""
        return self.wait.kind if self.wait is not None else None

    @property
    def kept_by_message(self) -> bool:
        """Whether its device may wait for a message, or work: nobody sees which it does."""
        return self.wait_kind == "device" and self.wait is not None and self.wait.name in MESSAGES

    @property
    def node(self) -> str:
        """Its node in the wait-for graph."""
        return f"rank:{self.rank}"

    @property
    def alive(self) -> bool:
        """Whether it is seen to have a process."""
        return self.activity not in ("gone", "missing", "unheard")


class JobReading(Struct, frozen=True, kw_only=True):
    """All ranks, read.

    Attributes:
        ranks: By global rank, ascending; ranks without a process included.
        elsewhere: Ranks of the job of which nothing is known, or nothing by now: they may run on
            other nodes.
        processes: Who is who among their processes.
    """

    case: Case
    ranks: dict[int, RankReading]
    elsewhere: tuple[int, ...] = ()
    gaps: tuple[Gap, ...] = ()
    processes: JobProcesses

    @property
    def alive(self) -> tuple[RankReading, ...]:
        """Ranks that have a process."""
        return tuple(reading for reading in self.ranks.values() if reading.alive)

    @property
    def world_size(self) -> int:
        """Ranks of the job, as far as known."""
        return max(self.case.run.world_size, len(self.ranks))

    @property
    def complete(self) -> bool:
        """Whether the launcher said that every rank runs on this node."""
        local = self.case.run.local_world_size
        return local is not None and local >= self.case.run.world_size

    def rank_of(self, waiter: RankReading, holder: Holder) -> RankReading | None:
        """Return the rank whose process could end a rank's wait; None where that is no rank's."""
        rank = self.processes.ranks.get(process_of(waiter.view.host, holder))
        return self.ranks.get(rank) if rank is not None else None

    def waiting_in(self, kinds: Collection[WaitKind]) -> tuple[RankReading, ...]:
        """Return the ranks that stand in a wait of these kinds."""
        seen = ((reading, reading.rank_activity) for reading in self.ranks.values())
        return tuple(
            reading
            for reading, found in seen
            if found.activity == "waiting" and found.wait is not None and found.wait.kind in kinds
        )


def read_job(case: Case) -> JobReading:
    """Read a case."""
    told, gaps = views_of_ranks(case.ranks)
    views, others = with_groups(told, case.alike) if case.alike else (told, {})
    processes = job_processes(views.values())
    known = processes.looks.keys()
    every = {**{rank: view for rank, (_, view) in others.items()}, **views}
    alone = {rank: _read_rank(views[rank], known, case.taken_ns) for rank in sorted(views)}
    read = {rank: _in_operation(one, case, every) for rank, one in alone.items()}
    if 0 in read:
        read[0] = _as_store_keeper(read[0], read)
    read = {rank: _beside(_circling_with(one, read), case) for rank, one in read.items()}
    ranks = _with_others(read, alone, others, case, every) if others else read
    seen = {rank for rank, one in ranks.items() if not one.view.unheard_for_s}
    absent = (rank for rank in range(case.run.world_size) if rank not in seen)
    return JobReading(
        case=case,
        ranks=ranks,
        elsewhere=tuple(islice(absent, MOST_LISTED)),
        gaps=gaps,
        processes=processes,
    )


def _with_others(
    read: Mapping[int, RankReading],
    alone: Mapping[int, RankReading],
    others: Mapping[int, tuple[int, RankView]],
    case: Case,
    every: Mapping[int, RankView],
) -> dict[int, RankReading]:
    """Read the ranks that are told by one of them as that one, each with its own view.

    Where it takes the counts of a rank's peers to say for what it waits, each is asked by itself.

    Args:
        read: The ranks that have a view.
        alone: The same before others were considered.
        others: As `with_groups` returns them.
        case: Of the job.
        every: The views of all.
    """
    by_peers = {rank for rank, one in alone.items() if _hangs_on_peers(one, case)}
    ways: dict[tuple[int, Wait | None], RankReading] = {}
    found = dict(read)
    for rank, (told_by, view) in others.items():
        reading = read[told_by]
        if told_by in by_peers:
            own = _in_operation(replace(alone[told_by], view=view), case, every)
            way = told_by, own.wait
            if way not in ways:
                ways[way] = _beside(_circling_with(own, read), case)
            reading = ways[way]
        found[rank] = replace(reading, view=view, told_by=told_by)
    return {rank: found[rank] for rank in sorted(found)}


def _hangs_on_peers(reading: RankReading, case: Case) -> bool:
    """Whether it takes what others have posted to say in which operation a rank is."""
    still = reading.activity in ("idle", "busy") and reading.wait is None
    return still and asks_peers(case.code, reading.view, reading.frames)


def _read_rank(view: RankView, known: Collection[Process], now_ns: int) -> RankReading:
    """Read a rank. One that is idle while a process outside the job works for it, works.

    So does one that advanced after it was sampled: where it stood then, it stands no more.

    Args:
        view: The rank.
        known: Processes of the job: whether these work, their own samples tell.
        now_ns: When the case was taken, as `Case` has it.
    """
    found, own = read_rank_activity(view), view.own_process
    targets = steady_targets(own) if own is not None else ()
    child, at_end = through_children(view, targets)
    idle = found.activity == "idle"
    if (idle and works_outside(view, targets, known)) or has_left(view, found, now_ns):
        found = replace(found, activity="moving")
    return RankReading(
        view=view,
        rank_activity=found,
        place=raised_at(view) or users_place(found.stuck_frames) or users_place(found.frames),
        life=phase_of_life(view, (*found.frames, *found.stuck_frames)),
        silence_s=min(max(0.0, _silence_s(view, found)), LONGEST_SILENCE_S),
        workers=tuple(
            _read_worker(look, of_livelocked=found.livelocked)
            for look in view.processes
            if look.role == "worker"
        ),
        targets=at_end if found.activity == "idle" else (),
        own_targets=targets if found.activity == "idle" else (),
        child=child if found.activity == "idle" else None,
    )


def _beside(reading: RankReading, case: Case) -> RankReading:
    """Read where in its life a rank is by the others' records, or by the code in which it stands.

    That is for one whose own record is not to be had, as of a job that was started without us.
    """
    view, life = reading.view, reading.life
    told = life_beside(view, life, case.ranks)
    if not told and not stepped_by_code(view, life, case.code, reading.frames):
        return reading
    return replace(reading, life=PhaseOfLife("training_step", "life"))


def _as_store_keeper(reading: RankReading, ranks: Mapping[int, RankReading]) -> RankReading:
    """Read rank 0 that counts in the store it keeps who has come: it does so in the same call.

    Torch's own counter tells; without counters, a rank that has found the store.
    """
    wait = reading.wait
    if wait is None or wait.kind != "rendezvous_connect":
        return reading
    counted = reading.view.flight.waits if reading.view.flight is not None else {}
    found = any(one.wait_kind == "rendezvous_peers" for one in ranks.values())
    if COUNTS_ARRIVALS not in counted if counted else not found:
        return reading
    peers = replace(reading.rank_activity, wait=Wait("rendezvous_peers", wait.name, wait.frame))
    return replace(reading, rank_activity=peers)


def _circling_with(reading: RankReading, ranks: Mapping[int, RankReading]) -> RankReading:
    """Read a rank that is busy in the same functions as one that goes round: so does it."""
    if reading.activity != "busy" or reading.circling or not reading.frames:
        return reading
    own = _functions(reading)
    if not any(one.circling and _functions(one) == own for one in ranks.values()):
        return reading
    return replace(reading, rank_activity=replace(reading.rank_activity, circling=True))


def _functions(reading: RankReading) -> list[tuple[str, str]]:
    return [(frame.function, frame.file) for frame in reading.frames]


def _in_operation(reading: RankReading, case: Case, every: Mapping[int, RankView]) -> RankReading:
    """Read a rank that waits, without a frame of torch, for an operation that it started before."""
    if reading.activity not in ("idle", "busy") or reading.wait is not None:
        return reading
    wait = asked_end(case.code, every, reading.view, reading.frames)
    if wait is None and reading.activity == "busy":
        wait = device_message(every, reading.view)
    if wait is None:
        return reading
    activity = replace(reading.rank_activity, activity="waiting", wait=wait)
    return replace(reading, rank_activity=activity, targets=())


def _silence_s(view: RankView, found: RankActivity) -> float:
    if found.livelocked:
        return view.nothing_new_for_s
    return view.idle_for_s if found.activity == "idle" else view.silent_for_s


def _read_worker(look: ProcessLook, *, of_livelocked: bool) -> WorkerReading:
    """Read a worker; one that moves is busy, no more, where its rank is in a livelock by it."""
    frames = of_own_process(latest_frames(look))
    activity = read_process_activity(look)
    if of_livelocked and activity.activity == "moving":
        activity = replace(activity, activity="busy")
    return WorkerReading(
        look=look,
        process_activity=activity,
        place=users_place(frames),
        wait=find_wait(frames),
        targets=steady_targets(look) if activity.activity == "idle" else (),
    )
