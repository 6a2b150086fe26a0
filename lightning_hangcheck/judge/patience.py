"""Who could end a wait, and the contract's table of what that is called after so much silence.

Every wait has its enders: of some *any* suffices (a lock, a queue, a pipe, a socket), of others
*all* are needed (a collective waits for each member that has not come). `Enders` orders what could
end a wait by its patience, nobody < person < inside < known pace < outside < unknown pace. That of
a wait is the largest of its enders' where any suffices, the smallest where all are needed: the
least such solution, so that a closed circle is ended by nobody. Such graphs are known as AND-OR
wait-for graphs (Knapp 1987; used for MPI by Hilbrich et al. 2009).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from lightning_hangcheck.judge import waits
from lightning_hangcheck.judge.activity import LIVELOCK_AFTER_S, gpu_works, read_process_activity
from lightning_hangcheck.judge.job import process_of
from lightning_hangcheck.judge.source import calls_collectives
from lightning_hangcheck.judge.threads import free_threads, late_callers
from lightning_hangcheck.judge.waits import limited, steady_targets, waits_in_vain

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lightning_hangcheck.judge.graph import WaitGraph
    from lightning_hangcheck.judge.job import JobReading, Process, RankReading
    from lightning_hangcheck.judge.rule import Finding, Situation
    from lightning_hangcheck.judge.threads import Thread
    from lightning_hangcheck.model.case import Limits
    from lightning_hangcheck.model.evidence import ProcessLook, WaitTarget
    from lightning_hangcheck.model.slugs import VerdictKind

    Actor: TypeAlias = "int | Process | Helper"
    """A rank by its number, a process of the job by host and pid, or a free thread of one."""

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
"""Who could end a wait, a word for each row of the contract's table (`row_of`): ``inside``
only something inside the job; ``known_pace``, ``circles`` and ``unknown_pace`` a computation, by
what is known of it; ``announced`` ranks that have not come, ``last_call`` where the job goes on
without them after a while, ``never_coming`` where they can't; ``moving`` is no wait at all, nor is
``pace``: steps are made, far below the ranks' own pace."""
BY_PATIENCE: tuple[EndedBy, ...] = (
    *("nobody", "person", "inside", "known_pace", "outside", "circles", "unknown_pace"),
)
"""Enders, the one with the least patience first; ranks that were announced are no enders."""
BY_ACTIVITY: dict[str, EndedBy] = {
    "gone": "nobody",
    "stopped": "person",
    "missing": "unknown_pace",
    "unseen": "unknown_pace",
    "unheard": "unknown_pace",
}


FED = frozenset({"pipe", "socket", "fifo", "shared"})
"""What any thread of a process may feed, whatever its main thread waits for; a lock is given back
by whoever took it, and a process ends as its main thread does."""


class Helper(NamedTuple):
    """A free thread of a process, by its kernel id."""

    process: Process
    tid: int | None


class Enders(NamedTuple):
    """What could end a wait.

    Attributes:
        known: Ends of which nothing more is asked.
        actors: Others, whose own waits tell: ranks, and processes and threads of theirs.
        needed: Whether ``any`` of all these suffices, or ``all`` are needed.
    """

    known: tuple[EndedBy, ...] = ()
    actors: tuple[Actor, ...] = ()
    needed: Literal["any", "all"] = "any"

    @classmethod
    def any_of(cls, found: Sequence[Enders]) -> Enders:
        """Return the enders of a wait that any of several things ends."""
        return cls(
            tuple(end for one in found for end in one.known),
            tuple(actor for one in found for actor in one.actors),
        )

    def solved_by(self, solved: Mapping[Actor, EndedBy]) -> EndedBy:
        """Return whose patience counts, where that of the actors is known."""
        ends = (*self.known, *(solved[one] for one in self.actors))
        choose = max if self.needed == "any" else min
        return choose(ends, key=BY_PATIENCE.index, default="nobody")


class Patience:
    """Solves the graph of one job.

    Args:
        job: All ranks.
        graph: Their waits for each other, where these are known by now.
    """

    def __init__(self, job: JobReading, graph: WaitGraph | None = None) -> None:
        self._job = job
        self._processes = job.processes
        self._circles = graph.circles if graph is not None else {}

    def of(self, wanted: Enders) -> EndedBy:
        """Return who of some enders counts: the least fixed point over all that they lead to."""
        reached: dict[Actor, Enders] = {}
        pending = list(wanted.actors)
        for actor in pending:
            if actor in reached:
                continue
            if isinstance(actor, int):
                reached[actor] = self._of_rank(self._job.ranks[actor])
            elif isinstance(actor, Helper):
                free = free_threads(self._processes.looks[actor.process])
                thread = next(one for one in free if one.tid == actor.tid)
                reached[actor] = self._of_thread(actor.process, thread)
            else:
                reached[actor] = self._of_process(actor)
            pending += reached[actor].actors
        solved: dict[Actor, EndedBy] = {}
        newer: dict[Actor, EndedBy] = dict.fromkeys(reached, "nobody")
        while newer != solved:
            solved, newer = newer, {**newer}
            for actor, found in reached.items():
                newer[actor] = found.solved_by(newer)
        return wanted.solved_by(solved)

    def _of_rank(self, reading: RankReading) -> Enders:
        if reading.activity in ("busy", "moving") or reading.kept_by_message:
            return Enders((computation(reading),))
        if reading.activity == "waiting":
            members = self._circles.get(reading.rank, ())
            closed = members and reading.process_activity.activity != "moving"
            others = tuple(one for one in members if one != reading.rank)
            return Enders((), others, "all") if closed else Enders(("inside",))
        if reading.activity != "idle":
            return Enders((BY_ACTIVITY[reading.activity],))
        if reading.at_store:
            return Enders(("outside",))
        reading = self._job.ranks[reading.told_by_rank]  # whose processes these are
        host, own = reading.view.host, reading.view.own_process
        if reading.wait_kind == "dataloader":
            return Enders((), tuple((host, one.look.pid) for one in reading.owing_workers))
        if own is None:
            return Enders(("outside",))
        called = not reading.targets and waits.called_by_ranks(own) and not waits_in_vain(own)
        if called or reading.wait_kind in ("call", "last_calls"):
            peers = (one.rank for one in self._job.alive if one.rank != reading.rank)
            helpers = (Helper((host, own.pid), one.tid) for one in free_threads(own))
            return Enders(("inside",), (*peers, *helpers))
        return self._of_wait((host, own.pid), own, reading.targets)

    def _of_process(self, process: Process) -> Enders:
        """A rank's own process is that rank; what it does for its children, they wait for."""
        rank = self._processes.ranks.get(process)
        if rank is not None:
            return Enders(actors=(rank,))
        look = self._processes.looks[process]
        activity = read_process_activity(look).activity
        if activity in ("busy", "moving"):
            return Enders((computation(self._job.ranks[self._processes.owners[process]]),))
        if activity != "idle":
            return Enders((BY_ACTIVITY[activity],))
        return self._of_wait(process, look, steady_targets(look))

    def _of_wait(
        self, process: Process, look: ProcessLook, targets: Sequence[WaitTarget]
    ) -> Enders:
        """Where nothing tells what a process waits for, anything may end it."""
        if waits_in_vain(look):
            return Enders()
        unnamed = all(one.kind == "other" for one in targets)
        helpers = tuple(
            Helper(process, one.tid)
            for one in (free_threads(look) if unnamed else ())
            if targets or one.timer
        )
        if not targets:
            alone = waits.in_own_memory(look) and not limited(look)
            return Enders(("inside" if alone else "outside",), helpers)
        # one call that waits for several things may have had another that nobody saw
        unseen = Enders(() if waits.endless(tuple(targets)) else ("inside",), helpers)
        return Enders.any_of([*(self.of_target(process, one) for one in targets), unseen])

    def of_target(self, waiter: Process, target: WaitTarget) -> Enders:
        """Return what could end a process's wait for one thing."""
        host = waiter[0]
        if target.kind == "terminal":
            return Enders(("person",))
        if target.kind == "other":  # a signal, a change of files, a call that we do not know
            return Enders(("outside",))
        could = {process_of(host, one) for one in target.holders}
        if target.kind == "process":
            could.add((host, int(target.name)))
        looks = self._processes.looks
        if not could:
            if target.abandoned:
                return Enders()
            of_python = waiter not in looks or waits.in_pythons_lock(looks[waiter], target)
            alone = target.kind == "shared" and bool(target.name) and of_python
            return Enders(("inside" if alone else "outside",))
        known = [one for one in sorted(could) if one in looks and one != waiter]
        if target.kind == "process" and not known:
            return Enders(("outside",))  # nobody has looked at it, as at one just started
        if target.kind == "lock":  # whoever started it: idle with a lock, unless it goes round
            known = [
                one for one in known if looks[one].role != "child" or waits.asks_anew(looks[one])
            ]
        # one that holds it alone has only its own threads left, and the free ones are asked
        complete = len(known) == len(could - {waiter}) and target.kind != "shared"
        # a process that nobody has looked at may do anything, or anybody may write to its path
        commanded = target.kind == "fifo" and target.call in waits.READS and not known
        if commanded or (target.kind in FED - {"shared"} and not complete):
            return Enders(("outside",))
        holders = [(one, looks[one]) for one in sorted(could) if one in looks]
        if target.kind in FED and any(waits.called_back(look) for _, look in holders):
            return Enders(("outside",))
        helpers = tuple(
            Helper(one, thread.tid) for one, look in holders for thread in free_threads(look)
        )
        return Enders(() if complete else ("inside",), (*known, *helpers))

    def _of_thread(self, process: Process, thread: Thread) -> Enders:
        if thread.runs:
            return Enders(("unknown_pace",))
        if (thread.ticks and not thread.stack.wakes) or thread.for_ranks:
            return Enders(("inside",))
        named = [one for one in thread.targets if one.kind not in ("time", "futex")]
        if not named or len(named) < len(thread.targets):
            return Enders(("outside",))
        return Enders.any_of([self.of_target(process, one) for one in named])


def who_ends(situation: Situation, culprits: Sequence[RankReading]) -> EndedBy:
    """Say who could end what holds ranks up; of several answers the most patient one.

    But where nobody could end what one of them waits for, all that need it wait in vain.
    """
    job, circles = situation.job, situation.graph.circles
    # those that are told as another one is, in the same circle, are asked once
    different = {(one.told_by_rank, id(circles.get(one.rank))): one for one in reversed(culprits)}
    solver = Patience(job, situation.graph)
    ends = [(one.activity, solver.of(Enders((), (one.rank,)))) for one in different.values()]
    if ("idle", "nobody") in ends:
        return "nobody"
    return max((end for _, end in ends), key=BY_PATIENCE.index)


def helpers_end(job: JobReading, waiting: Sequence[RankReading]) -> EndedBy | None:
    """Say who could end a wait in collectives that helper threads of the ranks may make.

    An asynchronous save meets in a group of its own while the main threads go on; a helper may wait
    for a child first, or sleep. One whose code calls no collective from there on is none of them.
    Where the code does not tell, one that ticks is none either, nor one that waits for an
    outsider's word, as a server does all its life. What only ranks that wait would bring never
    comes.

    None where no helper thread may come to it.
    """
    of_helpers = any(one.stuck is not None for one in waiting)
    tellers = {one.told_by_rank: job.ranks[one.told_by_rank] for one in waiting}.values()
    among = frozenset((one.view.host, one.view.pid) for one in tellers)
    solver = Patience(job)
    found: list[EndedBy] = []
    for one in tellers:
        host, own = one.view.host, one.view.own_process
        nothing_new = one.view.nothing_new_for_s >= LIVELOCK_AFTER_S
        for caller, ends in late_callers(own) if own is not None else ():
            calls = calls_collectives(job.case.code, caller.frames)
            certain = bool(calls) or of_helpers
            for end in ends if calls is not False else ():
                # one that went round while its process did nothing new, without a call, makes none
                if end.runs and not (nothing_new and end.came_round):
                    found.append("unknown_pace")
                elif end.runs or end.for_ranks:
                    found += (["circles"] if end.runs else ["inside"]) if certain else []
                elif not end.named and (certain or (end.limited and not end.ticks)):
                    found.append("outside")
                for target in end.named:
                    could = {process_of(host, holder) for holder in target.holders}
                    if not among.issuperset(could) or (certain and not could):
                        found.append(solver.of(solver.of_target((host, 0), target)))
    return max(found, key=BY_PATIENCE.index) if found else None


def computation(reading: RankReading) -> EndedBy:
    """Say with which patience a rank's computation is met: by whether it goes round, and its pace.

    One long call, or ever new code, may be what comes once in many steps: no pace tells of that.
    What its GPU does, nobody sees: that counts as going round, as long as it works.
    """
    pace, own = reading.view.pace, reading.view.own_process
    for_gpu = own is not None and gpu_works(own)
    if not reading.circling and not for_gpu:
        return "unknown_pace"
    paced = pace is not None and pace.known and not reading.livelocked
    return "known_pace" if paced else "circles"


def asks_again(reading: RankReading) -> bool:
    """Whether a rank only sleeps between its questions: it may ask for anything, of anybody."""
    own = reading.view.own_process
    idle = reading.activity == "idle" and reading.wait_kind != "dataloader"
    of_nobody_known = all(
        one.kind == "lock" and not waits.tells_who(one) for one in reading.targets
    )
    return idle and of_nobody_known and own is not None and limited(own)


def waits_its_turn(job: JobReading, reading: RankReading, advancing: Collection[int]) -> bool:
    """Whether an idle rank may wait for what ranks that advance will bring, and for nobody else.

    A message, a key of the store, a file that it asks for again and again, word by a queue: not
    what a remote end, a person or a process outside the job owes.
    """
    own, host = reading.view.own_process, reading.view.host
    if reading.activity != "idle" or own is None or waits_in_vain(own):
        return False

    def may_be_brought(target: WaitTarget) -> bool:
        if target.kind == "socket" and not target.holders:
            return target.call.startswith("accept") or not target.name
        held = target.kind in ("socket", "pipe", "fifo", "shared", "lock")
        ranks = (job.processes.rank_of(host, one) for one in target.holders)
        return held and any(rank in advancing for rank in ranks)

    return reading.at_store or all(map(may_be_brought, reading.targets))


# The contract's table.

GUARD_MARGIN_S = 5.0
"""What a guard may be late by: it ends a service process, and makes another logger instead."""


class Least(NamedTuple):
    """Least evidence for a suspicion.

    Samples of each culprit, seconds from the first to the last of them, and the multiple of the
    culprits' longest pause, where it is known.
    """

    samples: int
    span_s: float
    surprise: float


IDLE, BUSY = Least(2, 0.8, 2.0), Least(3, 2.0, 5.0)
"""Two samples a second apart tell a loop from a wait; three in two seconds tell a loop from a
computation that happened to be caught twice in one function. What goes in circles was seen by all
looks since it began, however few of their samples are kept."""


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        suspect_s: Silence from which it is suspected, seconds.
        hang_s: Silence from which it is called, seconds.
        least: Without it nothing is suspected; None where it is, whoever waits.
    """

    suspect_s: float
    hang_s: float
    least: Least | None = None


def decide(finding: Finding, limits: Limits) -> VerdictKind:
    """Say what a finding is called: ``healthy`` where the silence is too short for anything."""
    if finding.ended_by == "pace":
        return "slow"
    row, silence_s = row_of(finding, limits), finding.silence_s
    if finding.ended_by == "moving":
        return "slow" if finding.waited_for and silence_s >= row.hang_s else "healthy"
    if silence_s >= row.hang_s:
        return "dead" if finding.gone and finding.cause == "process_dead" else "hang"
    if silence_s < row.suspect_s or silence_s < finding.span_s:
        return "healthy"
    if row.least is None:
        return "suspect"
    # worth a line: awaited, silent for longer than usual, and seen often enough
    enough = finding.samples >= row.least.samples and finding.span_s >= row.least.span_s
    known = finding.pace is not None and finding.pace.known
    pause_s = finding.pace.longest_pause_s if finding.pace is not None and known else 0.0
    unusual = silence_s >= row.least.surprise * pause_s
    matters = finding.waited_for or finding.standstill
    return "suspect" if matters and unusual and (enough or finding.gone) else "healthy"


def row_of(finding: Finding, limits: Limits) -> Row:
    """Return the row of the table that a finding is in."""
    goes_on_s = finding.goes_on_after_s
    guarded_s = goes_on_s + GUARD_MARGIN_S if goes_on_s else 0.0
    stall_s = limits.stall_timeout
    paced_s = stall_s
    if finding.pace is not None and finding.pace.known:
        paced_s = max(limits.busy_floor, limits.busy_factor * finding.pace.longest_pause_s)
    rows: dict[EndedBy, Row] = {
        "nobody": Row(limits.suspect_proven_after, limits.proven_after),
        "person": Row(limits.suspect_person_after, limits.person_after),
        "inside": Row(limits.suspect_idle_after, max(limits.idle_after, guarded_s), IDLE),
        "outside": Row(limits.suspect_outside_after, max(stall_s, guarded_s), IDLE),
        "known_pace": Row(limits.suspect_busy_after, paced_s, BUSY),
        "circles": Row(limits.suspect_busy_after, stall_s, BUSY),
        "unknown_pace": Row(math.inf, stall_s),
        "moving": Row(math.inf, paced_s),
        "announced": Row(limits.suspect_absent_after, stall_s),
        "last_call": Row(max(limits.suspect_absent_after, guarded_s), max(stall_s, guarded_s)),
        "never_coming": Row(limits.suspect_absent_after, limits.absent_after),
    }
    return rows[finding.ended_by]
