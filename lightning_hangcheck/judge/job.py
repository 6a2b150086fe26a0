"""The case as rules read it: what each rank does, where it stands, and who is not there. Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from lightning_hangcheck.judge.activity import (
    Activity,
    RankActivity,
    read_process_activity,
    read_rank_activity,
)
from lightning_hangcheck.judge.alike import Members, alike_records, latest_frames, with_members
from lightning_hangcheck.judge.exits import raised_at
from lightning_hangcheck.judge.frames import (
    Wait,
    find_wait,
    functions_in,
    of_own_process,
    users_place,
)
from lightning_hangcheck.judge.phase_of_life import PhaseOfLife, life_beside, phase_of_life
from lightning_hangcheck.judge.records import MESSAGES, asked_end, device_message
from lightning_hangcheck.judge.threads import serves_calls
from lightning_hangcheck.judge.waits import steady_targets, through_children, works
from lightning_hangcheck.judge.wording import UNTOLD_S
from lightning_hangcheck.model.case import Case, RankName, RankView
from lightning_hangcheck.model.code_owner import owner_of, program_of
from lightning_hangcheck.model.evidence import Frame, Gap, Holder, ProcessLook, WaitTarget
from lightning_hangcheck.text.shown import NANOSECONDS, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lightning_hangcheck.judge.knowledge import WaitKind
    from lightning_hangcheck.model.slugs import Phase

    Process = tuple[str, int]

Node = int | str
"""In the wait-for graph: a rank by its number, else a name as `model.verdict.Edge` has it."""
MOST_LISTED = 4_096
"""Unknown ranks that are listed: more say nothing new."""
SURE = ("calls", "page")
"""What tells a phase surely: frames of known code, the rank's own sections and hooks."""
COUNTS_ARRIVALS = "TCPStore__waitForWorkers"
"""What torch (TCPStore.cpp, 2.13) counts while the store's keeper waits for WORLD_SIZE clients."""
ASKS_STORE = ("TCPStore__get", "TCPStore__wait")
"""What torch counts while a thread waits for a key of a store (TCPStore.cpp, 2.13)."""


class JobProcesses:
    """The processes of all ranks, by host and number.

    Containers number their processes alike, so process 17 may be a rank on each of many nodes. What
    is said of a process in a view is said of its host, unless it names another.

    Attributes:
        ranks: Whose own process each is.
        owners: The rank that each belongs to.
        looks: What was seen of each.
    """

    def __init__(self, views: Collection[RankView]) -> None:
        self.ranks: dict[Process, int] = {
            (one.host, one.pid): one.rank for one in views if one.pid is not None
        }
        self.owners: dict[Process, int] = {}
        self.looks: dict[Process, ProcessLook] = {}
        self._nodes: dict[Process, Node] = {**self.ranks}
        for view in views:
            for look in view.processes:
                process = view.host, look.pid
                self.looks[process], self.owners[process] = look, view.rank
                if look.role == "worker":
                    self._nodes[process] = f"worker:{view.rank}/{look.index}"
        self._several_hosts = len({view.host for view in views if view.host}) > 1

    def node(self, host: str, pid: int) -> Node:
        """Return the node of a process in the wait-for graph: 3, ``pid:17@node1``."""
        return self._nodes.get((host, pid), f"pid:{pid}{self._at(host)}")

    def rank_of(self, host: str, holder: Holder) -> int | None:
        """Return the rank whose own process could end a wait; None where it is no rank's."""
        return self.ranks.get(process_of(host, holder))

    def file_node(self, host: str, target: WaitTarget) -> str:
        """Return the node of a file: of the same path on two hosts' own disks there are two."""
        return f"file:{target.name}{'' if target.shared_storage else self._at(host)}"

    def _at(self, host: str) -> str:
        return f"@{host}" if self._several_hosts and host else ""


def process_of(host: str, holder: Holder) -> Process:
    """Return the process that could end a wait, by its host and number."""
    return holder.host or host, holder.pid


class WorkerReading(Struct, frozen=True, kw_only=True):
    """A process that a rank started with multiprocessing; ``targets`` as in `RankReading`."""

    look: ProcessLook
    activity: Activity
    place: Frame | None
    wait: Wait | None
    targets: tuple[WaitTarget, ...] = ()

    @property
    def wants_work(self) -> bool:
        """Whether it waits for its rank: such a worker holds nobody up."""
        return self.wait is not None and self.wait.kind == "index_queue"

    @property
    def serves_library(self) -> bool:
        """Whether it is a helper of multiprocessing's own, such as a fork server: it owes nothing.

        These are the only functions called ``main`` in which a worker waits for work.
        """
        return self.wants_work and self.wait is not None and self.wait.name == "main"


class RankReading(RankActivity, frozen=True, kw_only=True, gc=False):
    """One rank, read: what it does, all its processes considered, and where it stands.

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
    def seen_s(self) -> float:
        """For how long it was seen as it is, by its samples or by the kernel: how it slept."""
        slept_s = min(self.view.slept_for_s or 0.0, self.silence_s)
        return max(self.process_activity.span_s, slept_s)

    @property
    def waiter(self) -> str:
        """Which of its threads or children it is that waits for its targets."""
        if self.child is not None:
            return f"child pid {self.child.pid}"
        return "main thread" if self.stuck is None else f"thread {self.stuck.label}"

    @property
    def shared_objects(self) -> tuple[WaitTarget, ...]:
        """The words of shared memory at which it waits; a loader's lead to its workers."""
        if self.wait_kind == "dataloader":
            return ()
        return tuple(one for one in self.own_targets if one.kind == "shared" and one.holders)

    @property
    def owing_workers(self) -> Sequence[WorkerReading]:
        """The workers that may owe its batch: those that don't wait for work themselves.

        All of them where each waits for work, because then nothing tells.
        """
        return [one for one in self.workers if not one.wants_work] or self.workers

    def worker_node(self, worker: WorkerReading) -> str:
        """Return the node of a worker of it in the wait-for graph."""
        return f"worker:{self.rank}/{worker.look.index}"

    def keeps_store(self, target: WaitTarget) -> bool:
        """Whether a target is the store that the ranks share: whoever serves it brings nothing."""
        port = self.view.store_port
        socket = target.kind == "socket" and not target.call.startswith("accept")
        return port is not None and socket and target.name.rpartition(":")[2] == str(port)

    @property
    def at_store(self) -> bool:
        """Whether it waits for a key of that store, or of one of the program's own.

        Another rank could bring it, or anybody: the rank that serves a store does so in a thread of
        torch's, whatever it waits for itself.
        """
        sockets = [one for one in self.targets if one.kind == "socket" and one.call != "connect"]
        return self.activity == "idle" and (
            any(map(self.keeps_store, self.targets)) or (bool(sockets) and self.asks_store)
        )

    @property
    def asks_store(self) -> bool:
        """Whether it asks a store for a key, whosever that is.

        Torch counts threads that do, and it stands in a call of torch's own: the stack ends in the
        line that made it, and not in a library of connections.
        """
        counted = self.view.flight.waits if self.view.flight is not None else {}
        frames = self.stuck_frames or self.frames
        if self.child is not None or not frames or not any(one in counted for one in ASKS_STORE):
            return False
        owner = owner_of(frames[-1].file)
        return owner.kind == "user" or owner.package == "torch"

    @property
    def handling(self) -> str:
        """The exception that its main thread handles, by its own word; empty if none."""
        return self.view.beat.handling if self.view.beat is not None else ""

    @property
    def rank(self) -> int:
        """Its global rank."""
        return self.view.rank

    @property
    def phase(self) -> Phase | None:
        """Where in its life it is."""
        return self.life.phase if self.life is not None else None

    @property
    def shown_by_calls(self) -> bool:
        """Whether its calls show its phase: they tell more than the name of a section."""
        return self.life is not None and self.life.told_by == "calls"

    def shows(self, phase: Phase) -> bool:
        """Whether its calls show this phase, or its own sections and hooks say it."""
        return self.phase == phase and self.life is not None and self.life.told_by in SURE

    @property
    def works_in_child(self) -> bool:
        """Whether it is only busy as a process that it started is."""
        itself = self.process_activity.activity != "idle" or self.for_gpu
        return self.activity == "busy" and not itself

    @property
    def wait_kind(self) -> WaitKind | None:
        """Kind of the known wait in which it stands."""
        return self.wait.kind if self.wait is not None else None

    @property
    def kept_by_message(self) -> bool:
        """Whether its device may wait for a message, or work: nobody sees which it does."""
        return self.wait_kind == "device" and self.wait is not None and self.wait.name in MESSAGES

    @property
    def serving(self) -> bool:
        """Whether it stands still while a thread of it is in what another rank called."""
        own = self.view.own_process
        return self.activity == "idle" and own is not None and serves_calls(own)

    @property
    def alive(self) -> bool:
        """Whether it is seen to have a process."""
        return self.activity not in ("gone", "missing", "unheard")


def read_rank(view: RankView, known: Collection[Process], now_ns: int) -> RankReading:
    """Read a rank. One that is idle while a process outside the job works for it, works.

    So does one that advanced after it was sampled: where it stood then, it stands no more. A worker
    that moves is busy, no more, where its rank is in a livelock by it.
    """
    found, own = read_rank_activity(view), view.own_process
    targets = steady_targets(own) if own is not None else ()
    child, at_end = through_children(view, targets)
    helped = found.activity == "idle" and any(
        own is not None and process_of(view.host, holder) not in known and works(own, holder)
        for target in targets
        for holder in target.holders
    )
    sampled_ns = own.samples[-1].taken_ns if own is not None and own.samples else now_ns
    has_left = view.silent_for_s * NANOSECONDS < now_ns - sampled_ns
    if helped or (has_left and found.activity in ("idle", "busy", "waiting")):
        found = replace(found, activity="moving")
    idle = found.activity == "idle"
    silence_s = view.idle_for_s if idle else view.silent_for_s
    silence_s = view.nothing_new_for_s if found.livelocked else silence_s
    workers = []
    for look in view.processes:
        if look.role == "worker":
            frames, activity = latest_frames(look), read_process_activity(look).activity
            worker = WorkerReading(
                look=look,
                activity="busy" if found.livelocked and activity == "moving" else activity,
                place=users_place(of_own_process(frames), program_of(functions_in(frames))),
                wait=find_wait(of_own_process(frames)),
                targets=steady_targets(look) if activity == "idle" else (),
            )
            workers += [] if worker.serves_library else [worker]
    return RankReading(
        **asdict(found),
        view=view,
        place=raised_at(view)
        or users_place(found.stuck_frames, program_of(functions_in(found.frames)))
        or users_place(found.frames),
        life=phase_of_life(view, (*found.frames, *found.stuck_frames)),
        silence_s=min(max(0.0, silence_s), UNTOLD_S),
        workers=tuple(workers),
        targets=at_end if idle else (),
        own_targets=targets if idle else (),
        child=child if idle else None,
    )


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
    def complete(self) -> bool:
        """Whether the launcher said that every rank runs on this node."""
        local = self.case.run.local_world_size
        return local is not None and local >= self.case.run.world_size

    @property
    def alive(self) -> tuple[RankReading, ...]:
        """Ranks that have a process."""
        return tuple(reading for reading in self.ranks.values() if reading.alive)

    @property
    def world_size(self) -> int:
        """Ranks of the job, as far as known."""
        return max(self.case.run.world_size, len(self.ranks))

    def rank_of(self, waiter: RankReading, holder: Holder) -> RankReading | None:
        """Return the rank whose process could end a rank's wait; None where that is no rank's."""
        rank = self.processes.rank_of(waiter.view.host, holder)
        return self.ranks.get(rank) if rank is not None else None

    def waiting_in(self, kinds: Collection[WaitKind]) -> tuple[RankReading, ...]:
        """Return the ranks that stand in a wait of these kinds."""
        return tuple(
            reading
            for reading in self.ranks.values()
            if reading.activity == "waiting" and reading.wait_kind in kinds
        )


def read_job(case: Case) -> JobReading:
    """Read a case: first the ranks with a view of their own, then those that one of them tells for.

    A view that says that it is a rank which another one is, or that cannot be, becomes a gap.
    """
    views: dict[int, RankView] = {}
    gaps: list[Gap] = []
    for view in case.ranks:
        if view.rank in views or view.rank < 0:
            why = f"it says that it is rank {view.rank}, which another process is, or which "
            why += "cannot be; its evidence was left out"
            rank = view.rank if view.rank >= 0 else None
            gaps.append(Gap(f"process {view.pid}", rank, why, "rank"))
        else:
            views[view.rank] = view
    others = _told_by_others(case, views)
    processes = JobProcesses(views.values())
    known = processes.looks.keys()
    every = {**{rank: view for rank, (_, view) in others.items()}, **views}
    alone = {rank: read_rank(views[rank], known, case.taken_ns) for rank in sorted(views)}
    asked = {rank: _in_operation(one, case, every) for rank, one in alone.items()}
    read = dict(asked)
    if 0 in read:
        read[0] = _as_store_keeper(read[0], read)
    read = {rank: _beside(one, case, read) for rank, one in read.items()}
    ranks = dict(read)
    ways: dict[tuple[int, Wait | None], RankReading] = {}
    for rank, (told_by, view) in others.items():
        # of what a rank waits for, only the counts of its own peers may tell
        reading = read[told_by]
        if view.flight is not None and view.flight.messages is not None:
            own = _in_operation(replace(alone[told_by], view=view), case, every)
            way = told_by, own.wait
            if own.wait != asked[told_by].wait and way not in ways:
                ways[way] = _beside(own, case, read)
            reading = ways.get(way, reading)
        ranks[rank] = replace(reading, view=view, told_by=told_by)
    seen = {rank for rank, one in ranks.items() if not one.view.unheard_for_s}
    absent = (rank for rank in range(case.run.world_size) if rank not in seen)
    return JobReading(
        case=case,
        ranks={rank: ranks[rank] for rank in sorted(ranks)},
        elsewhere=tuple(islice(absent, MOST_LISTED)),
        gaps=tuple(gaps),
        processes=processes,
    )


def _told_by_others(case: Case, views: dict[int, RankView]) -> dict[int, tuple[int, RankView]]:
    """Return who tells for each rank without a view of its own, and a view made from that.

    Each has its own groups, and those that tell are given the members of theirs.
    """
    told, known = dict(views), Members()
    others: dict[int, tuple[int, RankView]] = {}
    for one in case.alike:
        if one.rank not in told:
            continue
        views[one.rank] = with_members(told[one.rank], one.groups, known)
        ranks = [rank for rank in parse_ranks(one.ranks) if rank not in told]
        names, flight = {name.rank: name for name in one.names}, told[one.rank].flight
        records = alike_records(flight, one.rank, one.groups, ranks, known) if flight else {}
        for rank in ranks:
            name = asdict(names.get(rank, RankName(rank)))
            others[rank] = one.rank, replace(told[one.rank], **name, flight=records.get(rank))
    return others


def _beside(reading: RankReading, case: Case, ranks: Mapping[int, RankReading]) -> RankReading:
    """Read a rank by the others: busy in the same functions as one that goes round, it does too.

    And its life, where its own record is not to be had, as of a job that was started without us.
    """
    view, life, own = reading.view, reading.life, functions_in(reading.frames)
    if reading.activity == "busy" and not reading.circling and own:
        alike = any(one.circling and functions_in(one.frames) == own for one in ranks.values())
        reading = replace(reading, circling=True) if alike else reading
    return replace(reading, life=life_beside(view, life, case, reading.frames))


def _as_store_keeper(reading: RankReading, ranks: Mapping[int, RankReading]) -> RankReading:
    """Read rank 0 that counts in the store it keeps who has come: it does so in the same call.

    Torch's own counter tells; without counters, a rank that has found the store.
    """
    wait, flight = reading.wait, reading.view.flight
    counted = flight.waits if flight is not None else {}
    found = any(one.wait_kind == "rendezvous_peers" for one in ranks.values())
    counts = COUNTS_ARRIVALS in counted if counted else found
    if wait is None or wait.kind != "rendezvous_connect" or not counts:
        return reading
    return replace(reading, wait=Wait("rendezvous_peers", wait.name, wait.frame))


def _in_operation(reading: RankReading, case: Case, every: Mapping[int, RankView]) -> RankReading:
    """Read a rank that waits, without a frame of torch, for an operation that it started before."""
    at_device, wait = reading.wait_kind == "device", None
    if reading.activity in ("idle", "busy") and reading.wait is None:
        wait = asked_end(case.code, every, reading.view, reading.frames)
        at_device = reading.activity == "busy"
    if wait is None and at_device:
        wait = device_message(every, reading.view)
    if wait is None:
        return reading
    return replace(reading, activity="waiting", wait=wait, targets=())
