"""Who could end a wait, and the contract's table: what to report after how much silence.

Every wait has enders: of some *any* suffices (a lock, a queue, a pipe, a socket), of others *all*
are needed (a collective waits for each member that has not come). `Enders` orders them by patience:
nobody < person < inside < known pace < outside < unknown pace. The patience of a wait is the
largest of its enders' if any suffices, the smallest if all are needed. The least fixed point
counts, so a closed circle is ended by nobody. Such graphs are known as AND-OR wait-for graphs
(Knapp 1987; used for MPI by Hilbrich et al. 2009).
"""

from __future__ import annotations

import math
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from lightning_hangcheck.judge.activity import LIVELOCK_AFTER_S, gpu_works, read_process_activity
from lightning_hangcheck.judge.frames import (
    calls_collectives,
    find_wait,
    may_call_later,
    waits_for_ranks,
)
from lightning_hangcheck.judge.job import could_end
from lightning_hangcheck.judge.operations import (
    MAKING_GROUP,
    PAIRED,
    awaited_peers,
    entered_by,
    record_of,
)
from lightning_hangcheck.judge.processes import (
    READS,
    ProcessReading,
    endless,
    is_being_started,
    read_process,
    shows_who,
)
from lightning_hangcheck.model.code_owner import is_ours, owner_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lightning_hangcheck.judge.job import JobReading, Process, RankReading
    from lightning_hangcheck.judge.rule import Finding
    from lightning_hangcheck.judge.threads import Thread
    from lightning_hangcheck.model.case import Limits
    from lightning_hangcheck.model.evidence import WaitTarget
    from lightning_hangcheck.model.slugs import VerdictKind

    Actor: TypeAlias = "int | Process | Helper | Coming"
    """A rank by its number, a process by host and pid, a free thread of a process, or a rank that
    any of its threads may bring to a collective."""

EndedBy = Literal[
    "nobody",
    "person",
    "inside",
    "outside",
    "known_pace",
    "circles",
    "unknown_pace",
    "announced",
    "last_call",
    "never_coming",
    "moving",
    "pace",
]
"""Who could end a wait, a word for each row of the contract's table (`row_of`). ``inside``: only
something in the job. ``known_pace``, ``circles``, ``unknown_pace``: a computation, by what is known
of it. ``announced``: ranks that have not come; ``last_call`` if the job goes on without them later,
``never_coming`` if they cannot come. ``moving`` is no wait at all, nor is ``pace``: steps are made,
far below the ranks' own pace."""
BY_PATIENCE: tuple[EndedBy, ...] = (
    *("nobody", "person", "inside", "known_pace", "outside", "circles", "unknown_pace"),
)
"""Enders, the least patient first; ranks that were announced are no enders."""
BY_ACTIVITY: dict[str, EndedBy] = {"gone": "nobody", "stopped": "person"}
"""For processes that neither run nor wait; the pace of an unseen process is unknown."""
FED = frozenset({"pipe", "socket", "fifo", "shared"})
"""What any thread of a process may feed, whatever its main thread waits for. But a lock is released
by its taker, and a process ends with its main thread."""


LOADER_POLLS_S = 5.0


class Helper(NamedTuple):
    """A free thread of a process, by its kernel id."""

    process: Process
    tid: int | None


class Coming(NamedTuple):
    """A rank that has yet to enter a collective; any of its threads may make the call."""

    rank: int


class Enders(NamedTuple):
    """What could end a wait.

    Attributes:
        known: Enders whose patience is known at once.
        actors: Ranks, processes and threads whose own waits tell their patience.
        needed: Whether ``any`` of all these suffices, or ``all`` are needed.
    """

    known: tuple[EndedBy, ...] = ()
    actors: tuple[Actor, ...] = ()
    needed: Literal["any", "all"] = "any"

    @classmethod
    def any_of(cls, found: Sequence[Enders]) -> Enders:
        """Return the enders of a wait that any of several waits' enders would end."""
        return cls(
            tuple(end for enders in found for end in enders.known),
            tuple(actor for enders in found for actor in enders.actors),
        )

    def solved_by(self, solved: Mapping[Actor, EndedBy]) -> EndedBy:
        """Return the ender that counts, given the solution for each actor."""
        ends = (*self.known, *(solved[actor] for actor in self.actors))
        choose = max if self.needed == "any" else min
        return choose(ends, key=BY_PATIENCE.index, default="nobody")


class Patience:
    """Knows the enders of each actor of a job, and solves what they lead to.

    Args:
        job: All ranks.
        circles: For each rank of a closed circle of the graph, all its ranks.
    """

    def __init__(
        self, job: JobReading, circles: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    ) -> None:
        self.circles = circles
        self._job = job
        self._processes = job.processes

    def who_ends(self, culprits: Sequence[RankReading]) -> EndedBy:
        """Say who could end the waits of culprits; of several answers the most patient one.

        If nobody could end one idle culprit's wait, all that need it wait in vain: then nobody.
        """
        # represented ranks of one circle are asked once
        different = {
            (reading.representative, id(self.circles.get(reading.rank))): reading
            for reading in reversed(culprits)
        }
        ends = [
            (reading.activity, self._solve(Enders((), (reading.rank,))))
            for reading in different.values()
        ]
        if ("idle", "nobody") in ends:
            return "nobody"
        return max((end for _, end in ends), key=BY_PATIENCE.index)

    def _solve(self, wanted: Enders, idle: Collection[Actor] = ()) -> EndedBy:
        """Return the ender that counts: the least fixed point over all actors reached.

        Those in ``idle`` bring nothing.
        """
        reached: dict[Actor, Enders] = dict.fromkeys(idle, Enders())
        pending = list(wanted.actors)
        for actor in pending:
            if actor not in reached:
                reached[actor] = self._enders(actor)
                pending += reached[actor].actors
        solved: dict[Actor, EndedBy] = {}
        newer: dict[Actor, EndedBy] = dict.fromkeys(reached, "nobody")
        while newer != solved:
            solved, newer = newer, {**newer}
            for actor, found in reached.items():
                newer[actor] = found.solved_by(newer)
        return wanted.solved_by(solved)

    def _enders(self, actor: Actor) -> Enders:
        """A rank's own process is that rank: children wait for whatever it does."""
        if isinstance(actor, int):
            return self._of_rank(self._job.ranks[actor])
        if isinstance(actor, Coming):
            reading = self._job.ranks[self._job.ranks[actor.rank].representative]
            process, own = (reading.view.host, reading.own.look.pid), reading.own
            helpers = (Helper(process, thread.tid) for thread in own.free_threads)
            return Enders((), (actor.rank, *helpers))
        if isinstance(actor, Helper):
            free = read_process(self._processes.looks[actor.process]).free_threads
            thread = next(thread for thread in free if thread.tid == actor.tid)
            if thread.runs:
                return Enders(("unknown_pace",))
            if thread.for_ranks:
                return self._of_meeting(actor.process, thread) or Enders(("inside",))
            if thread.ticks and thread.stack.bystander:
                return Enders(("inside",))  # it brought nothing when it woke
            named = [target for target in thread.targets if target.kind not in ("time", "futex")]
            if not named or len(named) < len(thread.targets):
                return Enders(("outside",))
            return Enders.any_of([self._of_target(actor.process, target) for target in named])
        if (rank := self._processes.ranks.get(actor)) is not None:
            return Enders(actors=(rank,))
        look = self._processes.looks[actor]
        activity = read_process_activity(look).activity
        if activity in ("busy", "moving"):
            return Enders((computation(self._job.ranks[self._processes.owners[actor]]),))
        if activity != "idle":
            return Enders((BY_ACTIVITY.get(activity, "unknown_pace"),))
        read = read_process(look)
        if waits_for_ranks(read.frames):  # no ranks of this job
            peers = self._processes.alike(actor)
            return Enders(("inside" if peers else "outside",), peers)
        return self._of_wait(actor, read, read.targets)

    def _of_rank(self, reading: RankReading) -> Enders:
        if reading.activity in ("busy", "moving") or reading.kept_by_message:
            return Enders((computation(reading),))
        if reading.activity == "waiting":
            if self.gives_up(reading):
                return Enders(("outside",))
            members = self.circles.get(reading.rank, ())
            closed = members and reading.process_activity.activity != "moving"
            others = tuple(member for member in members if member != reading.rank)
            return Enders((), others, "all") if closed else Enders(("inside",))
        if reading.activity != "idle":
            return Enders((BY_ACTIVITY.get(reading.activity, "unknown_pace"),))
        if reading.at_store:
            return Enders(("outside",))
        reading = self._job.ranks[reading.representative]  # the rank that has these processes
        host, own = reading.view.host, reading.own
        # a loader without workers has a thread of its own, whose wait counts as any other
        if reading.wait_kind == "dataloader" and (reading.workers or own.polls_for_s):
            # a DataLoader without a time limit of its own polls for 5 s at a time (torch 2.13)
            stall_s = self._job.case.limits.stall_timeout
            gives_up = LOADER_POLLS_S < own.polls_for_s < stall_s
            workers = tuple((host, look.pid) for look in reading.owing_workers)
            may_go_on = gives_up or reading.unseen_workers
            return Enders(("outside",) if may_go_on else (), workers)
        if reading.called_by_ranks or reading.wait_kind in ("call", "last_calls"):
            peers = (other.rank for other in self._job.alive if other.rank != reading.rank)
            helpers = (Helper((host, own.look.pid), thread.tid) for thread in own.free_threads)
            # a thread of its own to which its wait leads may answer, as a timer does
            own_end: EndedBy = "outside" if own.gives_up else "inside"
            called_by = Enders((own_end,), (*peers, *helpers))
            return Enders.any_of([called_by, *self._listened_by((host, own.look.pid), own)])
        return self._of_wait((host, own.look.pid), own, reading.own_targets)

    def _of_wait(
        self, process: Process, own: ProcessReading, targets: Sequence[WaitTarget]
    ) -> Enders:
        """If nothing tells what a process waits for, anything may end the wait."""
        if own.waits_in_vain:
            return Enders()
        others_end = any(target.kind in ("lock", "file", "fifo", "terminal") for target in targets)
        helpers = tuple(
            Helper(process, thread.tid)
            for thread in (() if others_end else own.free_threads)
            if thread.timer or ((targets or own.in_foreign_call) and not thread.stack.bystander)
        )
        if not targets:
            alone = own.in_own_memory and not own.limited
            itself = Enders(("inside" if alone else "outside",), helpers)
            return Enders.any_of([itself, *self._listened_by(process, own)])
        # a call that waits for several things may have had another that nobody saw; readline polls
        # the terminal alone, but an event loop is woken by more
        sole = endless(targets) or all(
            target.kind == "terminal" and not target.call.startswith("epoll") for target in targets
        )
        unseen = Enders(() if sole else ("inside",), helpers)
        unseen = Enders(("outside",)) if own.gives_up or self._leaves_loop(own) else unseen
        return Enders.any_of([*(self._of_target(process, target) for target in targets), unseen])

    def _leaves_loop(self, own: ProcessReading) -> bool:
        """Whether the main thread polls its threads in a loop that ends by itself."""
        mains = (moment.threads[0] for moment in own.complete[-1:] if moment.threads)
        places = [main.place for main in mains if main.for_threads and main.limited]
        ending = {(note.file, note.line) for note in self._job.case.code if note.loop_ends}
        return any(place is not None and (place.file, place.line) in ending for place in places)

    def _listened_by(self, process: Process, own: ProcessReading) -> list[Enders]:
        """What libraries' threads listen to may be what the main thread waits for."""
        return [self._of_target(process, target) for target in own.heard]

    def _of_target(self, waiter: Process, target: WaitTarget) -> Enders:
        host = waiter[0]
        if target.kind == "terminal":
            return Enders(("person",))
        if target.kind == "other":  # a signal, changed files, an unknown call
            return Enders(("outside",))
        could = {*could_end(host, target)}
        if target.kind == "process":
            could.add((host, int(target.name)))
        looks = self._processes.looks
        if not could:
            if target.abandoned:
                return Enders()
            of_python = waiter not in looks or read_process(looks[waiter]).in_pythons_lock(target)
            alone = target.kind == "shared" and target.name[:1] not in ("", "/") and of_python
            owners = self._processes.owners
            # a process that starts may still map a word that only the waiter has mapped
            coming = tuple(
                process
                for process, look in looks.items()
                if alone and owners[process] == owners.get(waiter) and is_being_started(look)
            )
            return Enders(("inside" if alone else "outside",), coming)
        known = [process for process in sorted(could) if process in looks and process != waiter]
        if target.kind == "process" and not known:
            return Enders(("outside",))  # not looked at, as it may have just started
        if target.kind == "lock":  # an idle child that waits for nothing is its starter's
            known = [
                process
                for process in known
                for read in [read_process(looks[process])]
                if looks[process].role != "child"
                or (read.asks_anew or read.targets or read.called_back)
                or read.wakes_within(self._job.case.limits.stall_timeout)
            ]
        complete = len(known) == len(could - {waiter})
        # an unseen process may do anything, and anybody may use what has a path
        commanded = target.kind == "fifo" and target.call in READS and not known
        commanded = commanded or (target.kind == "shared" and target.name.startswith("/"))
        listening = not complete and any(holder.listens for holder in target.holders)
        if commanded or listening or (target.kind in FED and not complete):
            return Enders(("outside",))
        holders = [(process, looks[process]) for process in sorted(could) if process in looks]
        if target.kind in FED and any(read_process(look).called_back for _, look in holders):
            return Enders(("outside",))
        free = [
            (process, thread)
            for process, look in holders
            for thread in read_process(look).free_threads
        ]
        # source shows a write to a file, not that this is a FIFO
        if target.kind == "fifo" and any(thread.stack.bystander for _, thread in free):
            return Enders(("outside",))
        helpers = tuple(Helper(process, thread.tid) for process, thread in free)
        # a sole holder has only its own threads left, and the free ones are asked
        alone = complete and target.kind != "shared"
        ends = Enders(() if alone else ("inside",), (*known, *helpers))
        if target.kind != "lock" and target.kind not in FED:
            return ends
        # a library's thread may hold the lock or feed the pipe, and wait for what comes to it
        listened = (self._listened_by(process, read_process(look)) for process, look in holders)
        return Enders.any_of([ends, *chain.from_iterable(listened)])

    def _of_meeting(self, process: Process, thread: Thread) -> Enders | None:
        """All ranks that have not come to a helper thread's collective; None if unknown.

        Of a message, the ranks that have posted fewer.
        """
        rank, wait = self._processes.ranks.get(process), find_wait(thread.frames)
        if rank is None or wait is None:
            return None
        reading = self._job.ranks[rank]
        if wait.name in PAIRED:
            peers = awaited_peers(self._job.views, reading.view, wait.name)
            return Enders((), tuple(map(Coming, peers))) if peers else None
        found = entered_by(reading.view, thread.stack.ident)
        if found is None or not found[0].ranks:
            return None
        record, entry = found
        every = ((rank, self._job.ranks.get(rank)) for rank in record.ranks)
        late = []
        for member, other in every:
            own = record_of(other, record.group) if other is not None else None
            late += [member] if own is None or own.newest < entry.seq else []
        coming = tuple(Coming(member) for member in late if member in self._job.ranks)
        unseen: tuple[EndedBy, ...] = ("outside",) if len(coming) < len(late) else ()
        return Enders(unseen, coming, "all") if late else None

    def gives_up(self, reading: RankReading) -> bool:
        """Whether its own code gave a rank's wait a time limit, as ``barrier(timeout=...)`` does.

        That of a new group is the group's, for what comes later. The main thread may have given one
        to its wait for the thread that is in the collective, too.
        """
        if reading.stuck is not None and (reading.own.gives_up or self._leaves_loop(reading.own)):
            return True
        frames = reading.stuck_frames or reading.frames
        calls = (frame for frame in reversed(frames) if owner_of(frame.file).package != "torch")
        line = next(((call.file, call.line) for call in calls if not is_ours(call.file)), None)
        here = (note for note in self._job.case.code if (note.file, note.line) == line)
        makes_group = reading.wait is None or reading.wait.name == MAKING_GROUP
        return not makes_group and any(note.limited for note in here)

    def helpers_end(self, waiting: Sequence[RankReading]) -> EndedBy | None:
        """Say who could end a wait in collectives that helper threads may make; None for none.

        An asynchronous save meets in a group of its own; its thread may first wait for a child or
        sleep. A thread whose code calls no collective from there on does not count. If the code
        does not tell, a periodic thread counts only for what it does once its loop has ended, and
        one that waits for an outsider's word, as a server does all its life, not at all. What only
        waiting ranks would bring never comes.
        """
        of_helpers = any(reading.stuck is not None for reading in waiting)
        ranks = self._job.ranks
        representatives = {
            reading.representative: ranks[reading.representative] for reading in waiting
        }.values()
        among = frozenset((reading.view.host, reading.view.pid) for reading in representatives)
        found: list[EndedBy] = []
        idle = {reading.rank for reading in waiting}
        in_timers = any(note.collectives_timed for note in self._job.case.code)
        for reading in representatives:
            process = host, _ = reading.view.host, reading.own.look.pid
            nothing_new = reading.view.nothing_new_for_s >= LIVELOCK_AFTER_S
            for caller, ends in reading.own.late_callers():
                calls = calls_collectives(self._job.case.code, caller.frames)
                calls = None if caller.runs_any else (caller.timed and in_timers) or calls
                certain = bool(calls) or of_helpers or (caller.runs_any and caller.has_task)
                may_call = caller.may_train or caller.runs_any
                later = caller.ticks and may_call_later(self._job.case.code, caller.frames)
                for end in ends if calls or (calls is None and may_call) else ():
                    if end.for_ranks:
                        met = self._of_meeting(process, end)
                        known = met is not None or (certain and end is not caller)
                        found += [self._solve(met or Enders(("inside",)), idle)] if known else []
                        continue
                    # without a call, a thread that came round with nothing new makes no operation
                    if end.runs and not (nothing_new and end.came_round):
                        found.append("unknown_pace")
                    elif end.runs:
                        found += ["circles"] if certain else []
                    elif not end.named and (certain or later or (end.limited and not end.ticks)):
                        found.append("outside")
                    for target in end.named:
                        could = {*could_end(host, target)}
                        if not among.issuperset(could) or (certain and not could):
                            found.append(self._solve(self._of_target((host, 0), target)))
        found = [end for end in found if end != "nobody"]
        return max(found, key=BY_PATIENCE.index) if found else None

    def waits_its_turn(self, reading: RankReading, advancing: Collection[int]) -> bool:
        """Whether an idle rank may wait for what advancing ranks bring, and nothing else."""
        if reading.activity != "idle" or not reading.own.moments or reading.own.waits_in_vain:
            return False

        def may_be_brought(target: WaitTarget) -> bool:
            if target.kind == "socket" and not target.holders:
                return target.call.startswith("accept") or not target.name
            ranks = (
                self._processes.rank_of(reading.view.host, holder) for holder in target.holders
            )
            return target.kind in FED | {"lock"} and any(rank in advancing for rank in ranks)

        return reading.at_store or all(map(may_be_brought, reading.targets))


def computation(reading: RankReading) -> EndedBy:
    """Return the patience for a rank's computation, by whether it goes round and its pace.

    One long call, or ever new code, may come once in many steps: no pace tells about that. A
    working GPU counts as going round, as nobody sees what it does.
    """
    pace, for_gpu = reading.view.pace, gpu_works(reading.own.look)
    if not reading.circling and not for_gpu:
        return "unknown_pace"
    paced = pace is not None and pace.known and not reading.livelocked
    return "known_pace" if paced else "circles"


def asks_again(reading: RankReading) -> bool:
    """Whether a rank only sleeps between requests: it may ask anybody for anything."""
    idle = reading.activity == "idle" and reading.wait_kind != "dataloader"
    of_nobody_known = all(
        target.kind == "lock" and not shows_who(target) for target in reading.targets
    )
    return idle and of_nobody_known and reading.own.limited


# The contract's table.

GUARD_MARGIN_S = 5.0
"""How late a guard may be: it ends a service process, and makes another logger instead."""


IDLE, BUSY = (2, 0.8, 2.0), (3, 2.0, 5.0)
"""Least evidence for a suspicion, the last three columns of `Row`. Two samples a second apart tell
a loop from a wait. Three in two seconds tell a loop from a computation that was caught twice in one
function. All looks since a circle began have seen it, however few of their samples are kept."""


class Row(NamedTuple):
    """A row of the contract's table.

    Attributes:
        suspect_s: Silence from which a rank is suspected, seconds.
        hang_s: Silence from which a hang is reported, seconds.
        samples: Samples needed of each culprit for a suspicion; 0 if none are.
        span_s: Seconds needed from the first to the last of them.
        surprise: Silence needed, in multiples of the culprits' longest known pause.
    """

    suspect_s: float
    hang_s: float
    samples: int = 0
    span_s: float = 0.0
    surprise: float = 0.0


def decide(finding: Finding, limits: Limits) -> VerdictKind:
    """Return the verdict for a finding: ``healthy`` if the silence is too short for more."""
    if finding.ended_by == "pace":
        return "slow"
    row, silence_s = row_of(finding, limits), finding.silence_s
    if finding.ended_by == "moving":
        return "slow" if finding.waited_for and silence_s >= row.hang_s else "healthy"
    if silence_s >= row.hang_s:
        return "dead" if finding.gone and finding.cause == "process_dead" else "hang"
    if silence_s < row.suspect_s or silence_s < finding.span_s:
        return "healthy"
    if not row.samples:
        return "suspect"
    # worth a line: awaited, silent for longer than usual, and seen often enough
    seen_s = max(finding.span_s, min(finding.slept_s, silence_s))
    enough = finding.samples >= row.samples and seen_s >= row.span_s
    known = finding.pace is not None and finding.pace.known
    pause_s = finding.pace.longest_pause_s if finding.pace is not None and known else 0.0
    unusual = silence_s >= row.surprise * pause_s
    matters = finding.waited_for or finding.standstill
    return "suspect" if matters and unusual and (enough or finding.gone) else "healthy"


def row_of(finding: Finding, limits: Limits) -> Row:
    """Return the table's row for a finding."""
    goes_on_s = finding.goes_on_after_s
    guarded_s = goes_on_s + GUARD_MARGIN_S if goes_on_s else 0.0
    stall_s = limits.stall_timeout
    paced_s = stall_s
    if finding.pace is not None and finding.pace.known:
        paced_s = max(limits.busy_floor, limits.busy_factor * finding.pace.longest_pause_s)
    rows: dict[EndedBy, Row] = {
        "nobody": Row(limits.suspect_proven_after, limits.proven_after),
        "person": Row(limits.suspect_person_after, limits.person_after),
        "inside": Row(limits.suspect_idle_after, max(limits.idle_after, guarded_s), *IDLE),
        "outside": Row(limits.suspect_outside_after, max(stall_s, guarded_s), *IDLE),
        "known_pace": Row(limits.suspect_busy_after, paced_s, *BUSY),
        "circles": Row(limits.suspect_busy_after, stall_s, *BUSY),
        "unknown_pace": Row(math.inf, stall_s),
        "moving": Row(math.inf, paced_s),
        "announced": Row(limits.suspect_absent_after, stall_s),
        "last_call": Row(max(limits.suspect_absent_after, guarded_s), max(stall_s, guarded_s)),
        "never_coming": Row(limits.suspect_absent_after, limits.absent_after),
    }
    return rows[finding.ended_by]
