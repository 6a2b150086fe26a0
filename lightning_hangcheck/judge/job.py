"""The case as rules read it: what each rank does, where it is, and which ranks are absent. Pure."""

from __future__ import annotations

import math
from hashlib import blake2b
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from lightning_hangcheck.judge.activity import (
    Activity,
    RankActivity,
    gpu_works,
    read_process_activity,
    read_rank_activity,
)
from lightning_hangcheck.judge.alike import (
    alike_records,
    in_order,
    latest_frames,
    offsets_of,
    root_of,
    roots_apart,
    with_members,
)
from lightning_hangcheck.judge.exits import page_of, raised_at
from lightning_hangcheck.judge.frames import Wait, functions_in, of_own_process, users_place
from lightning_hangcheck.judge.operations import (
    MESSAGES,
    asked_end,
    behind_helper,
    device_message,
    helper_threads,
    is_behind,
)
from lightning_hangcheck.judge.phase_of_life import PhaseOfLife, completed_phase, phase_of_life
from lightning_hangcheck.judge.processes import (
    ProcessReading,
    pids_here,
    read_process,
    through_children,
)
from lightning_hangcheck.judge.wording import UNKNOWN_S
from lightning_hangcheck.model.case import Case, RankName, RankView
from lightning_hangcheck.model.code_owner import owner_of, program_of
from lightning_hangcheck.model.codec import encode_packed
from lightning_hangcheck.model.evidence import Frame, Gap, Holder, ProcessLook, WaitTarget
from lightning_hangcheck.model.flight import SAME_SIZES
from lightning_hangcheck.text.shown import NANOSECONDS, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lightning_hangcheck.judge.knowledge import WaitKind
    from lightning_hangcheck.judge.threads import Thread
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.flight import CallSite, CollectiveRecord
    from lightning_hangcheck.model.slugs import Phase

    Process = tuple[str, int]

Node = int | str
"""A node of the wait-for graph: a rank's number, or a name as in `model.verdict.Edge`."""
UNSEEN = ProcessLook(pid=0, role="rank")
MOST_LISTED = 4_096
"""Unknown ranks that are listed: more say nothing new."""
SURE = ("calls", "page")
"""Sure signs of a phase: frames of known code, and the rank's own sections and hooks."""
UNLIKE = 0
"""Situation of a rank like no other: it waits for a process of its node, or a process for it, or
one place calls from the same root in several of its groups."""
ADDRESSES = frozenset({"futex", "pipe", "shared"})
"""Kinds of wait whose names differ from process to process."""
NO_OPERATION = frozenset({"file", "fifo", "lock", "pipe", "process", "terminal"})
"""Kinds of wait that no collective is."""
MOST = (1 << 63) - 1
COUNTS_ARRIVALS = "TCPStore__waitForWorkers"
"""torch counts this (TCPStore.cpp, 2.13) while the store's keeper waits for WORLD_SIZE clients."""
ASKS_STORE = ("TCPStore__get", "TCPStore__wait")
"""torch counts these while a thread waits for a key of a store (TCPStore.cpp, 2.13)."""


class JobProcesses:
    """The processes of all ranks, by host and process id.

    Containers number their processes alike: process 17 may be a rank on each of many nodes. A
    process named in a view is one of that view's host, unless the view names another host.
    """

    def __init__(self, views: Collection[RankView]) -> None:
        self.ranks: dict[Process, int] = {
            (view.host, view.pid): view.rank for view in views if view.pid is not None
        }
        self.owners: dict[Process, int] = {}
        self.looks: dict[Process, ProcessLook] = {}
        self._nodes: dict[Process, Node] = {**self.ranks}
        self._alike: dict[tuple[tuple[str, str], ...], list[Process]] = {}
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

    def alike(self, process: Process) -> tuple[Process, ...]:
        """Return the processes that ranks started for the same as this one: to save, together."""

        def begun(of: Process) -> tuple[tuple[str, str], ...]:
            return tuple(functions_in(of_own_process(latest_frames(self.looks[of]))[:2]))

        if not self._alike:
            for other in sorted(self.looks.keys() - self.ranks.keys()):
                self._alike.setdefault(begun(other), []).append(other)
        return tuple(other for other in self._alike[begun(process)] if other != process)

    def rank_of(self, host: str, holder: Holder) -> int | None:
        """Return the rank whose own process could end a wait, or None."""
        return self.ranks.get(process_of(host, holder))

    def file_node(self, host: str, target: WaitTarget) -> str:
        """Return a file's node; the same path on local disks of two hosts is two files."""
        return f"file:{target.name}{'' if target.shared_storage else self._at(host)}"

    def _at(self, host: str) -> str:
        return f"@{host}" if self._several_hosts and host else ""


def process_of(host: str, holder: Holder) -> Process:
    """Return the process that could end a wait, by its host and number."""
    return holder.host or host, holder.pid


def could_end(host: str, target: WaitTarget) -> tuple[Process, ...]:
    """Return the processes that could end a wait: for a launcher that joins some, these instead.

    Who inherited a pipe and waits for something else will not use it before that is there.
    """
    each = (
        [process_of(host, holder)] if not holder.awaits else [(host, pid) for pid in holder.awaits]
        for holder in target.holders
    )
    return tuple(dict.fromkeys(chain.from_iterable(each)))


class RankReading(RankActivity, frozen=True, kw_only=True, gc=False):
    """One rank: what it does, with all its processes, and where it is.

    Attributes:
        place: Innermost frame of the user's own code in the thread where the wait ends, else in the
            main thread; of a rank that an exception ended, where that was raised.
        life: The phase that the rank is in, and what told so.
        silence_s: Seconds since its last progress; of an idle rank since it was last active, of one
            in a livelock since it last did anything new.
        targets: What the kernel shows an idle rank to wait for, in several samples; if its main
            thread waits for other threads or a child, what these wait for.
        own_targets: The same of its own process, which may be the child itself.
        child: The child in which its wait ends, if any.
        representative: The rank whose evidence this is, mostly its own number. If another rank
            stands for it, process ids and figures are that rank's.
    """

    view: RankView
    place: Frame | None = None
    life: PhaseOfLife | None = None
    silence_s: float = 0.0
    workers: tuple[ProcessLook, ...] = ()
    targets: tuple[WaitTarget, ...] = ()
    own_targets: tuple[WaitTarget, ...] = ()
    child: ProcessLook | None = None
    representative: int

    @property
    def waiter(self) -> str:
        """Which of its threads or children waits for its targets."""
        if self.child is not None:
            return f"child pid {self.child.pid}"
        return "main thread" if self.stuck is None else f"thread {self.stuck.label}"

    @property
    def shared_objects(self) -> tuple[WaitTarget, ...]:
        """The words of shared memory it waits at (none in a loader: these lead to workers)."""
        if self.wait_kind == "dataloader":
            return ()
        return tuple(
            target for target in self.own_targets if target.kind == "shared" and target.holders
        )

    @property
    def owing_workers(self) -> Sequence[ProcessLook]:
        """The workers that may owe its batch: those that do not wait for work, else all.

        Whoever has the other end of the pipe that it reads is a worker; a fork server is none.
        """
        workers = [look for look in self.workers if look.pid in self._writers] or self.workers
        return [look for look in workers if not read_process(look).wants_work] or workers

    @property
    def unseen_workers(self) -> list[int]:
        """Those that owe its batch, but were not looked at: all others want work."""
        if not all(read_process(look).wants_work for look in self.owing_workers):
            return []
        return sorted(self._writers - {look.pid for look in self.view.processes})

    @property
    def _writers(self) -> set[int]:
        pipes = (target for target in self.own_targets if target.kind == "pipe")
        return {pid for target in pipes for pid in pids_here(target)}

    def activity_of(self, worker: ProcessLook) -> Activity:
        """What a worker does; a moving worker of a livelocked rank counts as busy."""
        activity = read_process_activity(worker).activity
        return "busy" if self.livelocked and activity == "moving" else activity

    def worker_node(self, worker: ProcessLook) -> str:
        """Return the node of one of its workers in the wait-for graph."""
        return f"worker:{self.rank}/{worker.index}"

    def keeps_store(self, target: WaitTarget) -> bool:
        """Whether a target is the ranks' shared store; who serves that brings nothing by itself."""
        port = self.view.store_port
        socket = target.kind == "socket" and not target.call.startswith("accept")
        return port is not None and socket and target.name.rpartition(":")[2] == str(port)

    @property
    def at_store(self) -> bool:
        """Whether it waits for a key of the shared store, or of a store of the program's own.

        Another rank could set the key, or anybody. The rank that serves a store does so in a thread
        of torch's, whatever it waits for itself.
        """
        if self.activity != "idle":
            return False
        own = any(target.kind == "socket" and target.call != "connect" for target in self.targets)
        return any(map(self.keeps_store, self.targets)) or (own and self.asks_store)

    @property
    def called_by_ranks(self) -> bool:
        """Whether, as far as is shown, only another rank could end its wait, by torch's RPC."""
        return not self.targets and self.own.called_by_ranks and not self.own.waits_in_vain

    @property
    def asks_store(self) -> bool:
        """Whether it asks a store: torch counts such threads, and its stack fits."""
        counted = self.view.flight.waits if self.view.flight is not None else {}
        frames = self.stuck_frames or self.frames
        if self.child is not None or not frames or not any(ask in counted for ask in ASKS_STORE):
            return False
        owner = owner_of(frames[-1].file)
        return owner.kind == "user" or owner.package == "torch"

    @property
    def own(self) -> ProcessReading:
        """Its own process; an unseen one, if nothing was seen of it."""
        return read_process(self.view.own_process or UNSEEN)

    @property
    def beat(self) -> Beat:
        """Its page; an empty one, if it has none."""
        return page_of(self.view)

    @property
    def handling(self) -> str:
        """The exception that its main thread handles, as it reported; empty if none."""
        return self.beat.handling

    @property
    def rank(self) -> int:
        """Its global rank."""
        return self.view.rank

    @property
    def phase(self) -> Phase | None:
        """The phase that it is in."""
        return self.life.phase if self.life is not None else None

    @property
    def shown_by_calls(self) -> bool:
        """Whether its calls show its phase, which says more than a section's name."""
        return self.life is not None and self.life.basis == "calls"

    def shows(self, phase: Phase) -> bool:
        """Whether its calls show this phase, or its own sections and hooks say it."""
        return self.phase == phase and self.life is not None and self.life.basis in SURE

    @property
    def works_in_child(self) -> bool:
        """Whether it is busy only because a process that it started is."""
        itself = self.process_activity.activity != "idle" or self.for_gpu
        return self.activity == "busy" and not itself

    @property
    def wait_kind(self) -> WaitKind | None:
        """Kind of the known wait that it is in."""
        return self.wait.kind if self.wait is not None else None

    @property
    def in_wait(self) -> str:
        """The known wait that it is in, as ``in barrier``; empty for none."""
        return f"in {self.wait.name}" if self.wait is not None else ""

    @property
    def kept_by_message(self) -> bool:
        """Whether its device may wait for a message or may work: nobody sees which."""
        return self.wait_kind == "device" and self.wait is not None and self.wait.name in MESSAGES

    @property
    def alive(self) -> bool:
        """Whether its process was seen."""
        return self.activity not in ("gone", "missing", "unheard")


def is_helped(
    own: ProcessReading, targets: Iterable[WaitTarget], host: str, known: Collection[Process]
) -> bool:
    """Whether a process outside the job, of which all are known, works at what a rank waits for."""
    return any(
        process_of(host, holder) not in known and own.works(holder)
        for target in targets
        for holder in target.holders
    )


def read_rank(view: RankView, known: Collection[Process], now_ns: int) -> RankReading:
    """Read one rank.

    An idle rank for which a process outside the job works counts as moving. So does a rank that
    advanced after it was sampled: it is no longer where the sample shows it.
    """
    found, own = read_rank_activity(view), read_process(view.own_process or UNSEEN)
    child, at_end = through_children(view, own.targets)
    helped = found.activity == "idle" and is_helped(own, own.targets, view.host, known)
    sampled_ns = own.moments[-1].sample.taken_ns if own.moments else now_ns
    has_left = view.silent_for_s * NANOSECONDS < now_ns - sampled_ns
    if helped or (has_left and found.activity in ("idle", "busy", "waiting")):
        found = replace(found, activity="moving")
    idle = found.activity == "idle"
    silence_s = view.idle_for_s if idle else view.silent_for_s
    silence_s = view.nothing_new_for_s if found.livelocked else silence_s
    workers = (look for look in view.processes if look.role == "worker")
    return RankReading(
        **asdict(found),
        view=view,
        representative=view.rank,
        place=raised_at(view)
        or users_place(found.stuck_frames, program_of(functions_in(found.frames)))
        or users_place(found.frames),
        life=phase_of_life(view, (*found.frames, *found.stuck_frames)),
        silence_s=min(max(0.0, silence_s), UNKNOWN_S),
        workers=tuple(look for look in workers if not read_process(look).serves_library),
        targets=at_end if idle else (),
        own_targets=own.targets if idle else (),
        child=child if idle else None,
    )


class JobReading(Struct, frozen=True, kw_only=True):
    """All ranks by global rank, ascending; ranks without a process included.

    Attributes:
        elsewhere: Ranks of which nothing is known, or nothing any more: they may run on other
            nodes.
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

    @property
    def views(self) -> dict[int, RankView]:
        """What is known of each rank."""
        return {rank: reading.view for rank, reading in self.ranks.items()}

    def rank_of(self, waiter: RankReading, holder: Holder) -> RankReading | None:
        """Return the rank whose process could end a rank's wait, or None."""
        rank = self.processes.rank_of(waiter.view.host, holder)
        return self.ranks.get(rank) if rank is not None else None

    def waiting_in(self, kinds: Collection[WaitKind]) -> tuple[RankReading, ...]:
        """Return the ranks that are in a wait of these kinds."""
        return tuple(
            reading
            for reading in self.ranks.values()
            if reading.activity == "waiting" and reading.wait_kind in kinds
        )


def read_job(case: Case) -> JobReading:
    """Read a case: ranks with a view, then ranks represented by another. Second views are gaps."""
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
    rivals = sorted({pid for view in views.values() for pid in view.rivals})
    if rivals:
        why = "they say that they are ranks which other processes are: they were not watched"
        remedy = "start each of several launches by a hangcheck run of its own"
        gaps.append(Gap(f"processes {', '.join(map(str, rivals))}", None, why, "rank", remedy))
    others = _represented(case, views)
    processes = JobProcesses(views.values())
    known = processes.looks.keys()
    every = {**{rank: view for rank, (_, view) in others.items()}, **views}
    alone = {rank: read_rank(views[rank], known, case.taken_ns) for rank in sorted(views)}
    asked = {rank: _in_operation(reading, case, every) for rank, reading in alone.items()}
    read = dict(asked)
    if 0 in read:
        read[0] = _as_store_keeper(read[0], read)
    read = {rank: _refined(reading, case, read) for rank, reading in read.items()}
    ranks = dict(read)
    ways: dict[tuple[int, Wait | None], RankReading] = {}
    for rank, (representative, view) in others.items():
        # only the counts of its own peers may show what a rank waits for
        reading = read[representative]
        if view.flight is not None and view.flight.messages is not None:
            own = _in_operation(replace(alone[representative], view=view), case, every)
            way = representative, own.wait
            if own.wait != asked[representative].wait and way not in ways:
                ways[way] = _refined(own, case, read)
            reading = ways.get(way, reading)
        ranks[rank] = replace(reading, view=view, representative=representative)
    seen = {rank for rank, reading in ranks.items() if not reading.view.unheard_for_s}
    absent = (rank for rank in range(case.run.world_size) if rank not in seen)
    return JobReading(
        case=case,
        ranks={rank: ranks[rank] for rank in sorted(ranks)},
        elsewhere=tuple(islice(absent, MOST_LISTED)),
        gaps=tuple(gaps),
        processes=processes,
    )


def _represented(case: Case, views: dict[int, RankView]) -> dict[int, tuple[int, RankView]]:
    """For each rank without its own view, return who stands for it, and a view with its groups."""
    own_views = dict(views)
    others: dict[int, tuple[int, RankView]] = {}
    for alike in case.alike:
        if alike.rank not in own_views:
            continue
        views[alike.rank] = with_members(own_views[alike.rank], alike.groups)
        ranks = [rank for rank in parse_ranks(alike.ranks) if rank not in own_views]
        names, flight = {name.rank: name for name in alike.names}, own_views[alike.rank].flight
        records = alike_records(flight, alike.rank, alike.groups, ranks) if flight else {}
        for rank in ranks:
            name = asdict(names.get(rank, RankName(rank)))
            others[rank] = (
                alike.rank,
                replace(own_views[alike.rank], **name, flight=records.get(rank)),
            )
    return others


def _refined(reading: RankReading, case: Case, ranks: Mapping[int, RankReading]) -> RankReading:
    """Refine a rank's reading by the others'.

    A busy rank circles if a rank in the same functions does; its phase may come from the others,
    too.
    """
    view, life, own = reading.view, reading.life, functions_in(reading.frames)
    if reading.activity == "busy" and not reading.circling and own:
        alike = any(rank.circling and functions_in(rank.frames) == own for rank in ranks.values())
        reading = replace(reading, circling=True) if alike else reading
    return replace(reading, life=completed_phase(view, life, case, reading.frames))


def _as_store_keeper(reading: RankReading, ranks: Mapping[int, RankReading]) -> RankReading:
    """Read rank 0 while it counts arrivals in the store it keeps, by torch's counter if any."""
    wait, flight = reading.wait, reading.view.flight
    counted = flight.waits if flight is not None else {}
    found = any(rank.wait_kind == "rendezvous_peers" for rank in ranks.values())
    counts = COUNTS_ARRIVALS in counted if counted else found
    if wait is None or wait.kind != "rendezvous_connect" or not counts:
        return reading
    return replace(reading, wait=Wait("rendezvous_peers", wait.name, wait.frame))


def _in_operation(reading: RankReading, case: Case, every: Mapping[int, RankView]) -> RankReading:
    """Read a rank that waits for an operation started earlier, without a frame of torch.

    A rank that is behind in backward waits for no rank, but for what would enter the operation.
    """
    in_backward = reading.wait_kind == "backward" and not gpu_works(reading.own.look)
    if in_backward and is_behind(every, reading.view):
        targets = reading.own.targets
        return replace(reading, activity="idle", wait=None, targets=targets, own_targets=targets)
    unknown, wait = reading.wait is None, None
    at_device = reading.wait_kind == "device" or (unknown and reading.activity == "busy")
    if at_device:
        wait = device_message(every, reading.view)
    elsewhere = any(target.kind in NO_OPERATION for target in reading.targets)
    if wait is None and unknown and not elsewhere and reading.activity in ("idle", "busy"):
        wait = asked_end(case.code, every, reading.view, reading.frames)
    if wait is None and at_device:
        wait = behind_helper(every, reading.view)
    if wait is None:
        return reading
    return replace(reading, activity="waiting", wait=wait, targets=())


# Which ranks are in the same situation, so that one can stand for all? Those that are equal in what
# they do, where, what they wait for, their phase of life, and every collective. Moments, process
# ids and addresses do not count, nor which of many groups of one shape it is.


def situation_numbers(views: Sequence[RankView], now_ns: int) -> list[int]:
    """Return equal numbers for ranks in the same situation; `UNLIKE` for a rank like no other.

    Args:
        views: The ranks of a node as that node sees them.
        now_ns: When the case was taken, as in `Case`.
    """
    awaited = {
        holder.pid
        for view in views
        for look in view.processes
        for target in read_process(look).targets
        for holder in target.holders
    }

    def is_alone(view: RankView) -> bool:
        if view.rivals or (view.flight is not None and roots_apart(view.flight)):
            return True
        return any(
            look.pid in awaited
            or any(
                target.holders or target.kind == "process" for target in read_process(look).targets
            )
            for look in view.processes
        )

    return [UNLIKE if is_alone(view) else _situation_number(view, now_ns) for view in views]


def _situation_number(view: RankView, now_ns: int) -> int:
    silences = view.silent_for_s, view.idle_for_s, view.nothing_new_for_s, view.slept_for_s or 0.0
    # silences within a factor of two of each other are alike, mostly
    brackets = [round(math.log2(silence)) if silence > 1.0 else 0 for silence in silences]
    seen, beat, pace, doing, page = view.process_exit, view.beat, view.pace, None, None
    end = seen and (seen.order, seen.exit_code, seen.last_words, seen.memory_kills > 0)
    if view.processes:
        read = read_rank(view, (), now_ns)
        process, stuck = read.process_activity, read.stuck
        doing = (
            (read.activity, read.carried, read.livelocked, read.circling, read.for_gpu),
            (process.activity, process.samples, process.starved),
            (read.frames, read.wait, (stuck.name, stuck.frames) if stuck is not None else None),
            read.life,
            [_of_look(look) for look in view.processes],
        )
    if beat is not None:  # without what changes in each step, as that is never equal
        steps, mark, saved = None, beat.checkpoint, beat.save
        if view.processes:
            sections = [
                (section.name, section.item, section.goes_on_after_s, section.in_main_thread)
                for section in beat.sections
            ]
            marked = (mark.number, mark.name) if mark is not None else None
            number = saved.number if saved is not None else None
            steps = beat.epoch, beat.step, number, marked, sections
        page = (
            (beat.beats > 0, beat.pulse_ns > 0, beat.world_size, beat.round, beat.phase),
            (beat.ending, beat.last_words, beat.thread_error, beat.membership, steps),
        )
    known = view.pid is None, view.store_port, view.goes_round, view.slept_for_s is None
    paced = pace is not None and pace.known
    facts = known, paced, page, end, raised_at(view), brackets, doing, _of_flight(view)
    digest = blake2b(encode_packed(facts), digest_size=8).digest()
    return max(1, int.from_bytes(digest, "big") & MOST)


def _of_look(look: ProcessLook) -> tuple[Any, ...]:
    frames, read = latest_frames(look), read_process(look)
    free = [_of_thread(thread, thread.targets) for thread in read.free_threads]
    late = [
        (caller.frames, [_of_thread(end, end.named) for end in ends])
        for caller, ends in read.late_callers()
    ]
    return (
        look.role,
        read_process_activity(look).activity,
        frames,
        read.wait,
        _of_targets(read.targets),
        (read.limited, read.asks_anew, read.in_own_memory, read.waits_in_vain),
        [(thread.name, thread.frames) for thread in read.locked],
        (read.called_back, free, late),
    )


def _of_thread(thread: Thread, targets: Iterable[WaitTarget]) -> tuple[Any, ...]:
    acts = thread.runs, thread.ticks, thread.timer, thread.scheduled
    return (*acts, thread.limited, thread.for_ranks, _of_targets(targets))


def _of_targets(targets: Iterable[WaitTarget]) -> list[Any]:
    names = ((target, "" if target.kind in ADDRESSES else target.name) for target in targets)
    return [(target.call, target.kind, name, target.abandoned) for target, name in names]


def _of_flight(view: RankView) -> tuple[Any, ...] | None:
    """Describe a record so that ranks in the same situation are equal.

    A group counts by its shape, and by its place among groups with the same members; else by its
    name.
    """
    flight = view.flight
    if flight is None:
        return None
    helpers, records = helper_threads(view), in_order(flight.groups)

    def which(record: CollectiveRecord) -> Any:  # noqa: ANN401 - name or shape
        if not record.ranks:
            return record.group
        names = [
            (len(group.group), group.group) for group in records if group.ranks == record.ranks
        ]
        return offsets_of(record), sorted(names).index((len(record.group), record.group))

    def from_first(call: CallSite, record: CollectiveRecord) -> int | str:
        root = root_of(call)
        return root - record.ranks[0] if root is not None and root in record.ranks else call.root

    entries = sorted(
        (entry.created_ns, at, entry.seq)
        for at, record in enumerate(records)
        for entry in record.entries
    )
    in_turn = [(at, seq) for _, at, seq in entries]
    groups = [
        (
            (record.description, which(record), record.on_device),
            (record.last_enqueued, record.last_completed),
            [
                (
                    (entry.seq, entry.op, entry.dtypes, entry.retired),
                    entry.sizes if entry.op in SAME_SIZES else len(entry.sizes),
                    (entry.thread == 0, entry.thread in helpers),
                    (call.frames, from_first(call, record), call.reduction),
                )
                for entry in record.entries
                for call in [flight.call_of(entry)]
            ],
            [(message.away, message.sends, message.retired) for message in record.messages],
        )
        for record in records
    ]
    posted, counts = None, flight.messages
    if counts is not None:  # peers by their distance; newest messages with their direction
        own = view.rank - counts.moved
        sent, received = (
            sorted((peer - own, count) for peer, count in counted.items())
            for counted in (counts.sent, counts.received)
        )
        newest = [
            [(message > 0, abs(message) - 1 - own) for message in thread]
            for thread in counts.newest
        ]
        posted = sent, received, newest
    return groups, in_turn, flight.waits, posted, flight.reduced, flight.repeated
