"""Who could end a wait: told by what stands at its end, never by a rule's or a library's name.

The end is looked for from process to process: a rank that reads what its child writes waits for
whatever that child waits for. Where a wait could end in several ways, the most patient one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.graph.process_edges import owing_workers
from lightning_hangcheck.diagnosis.job_processes import process_of
from lightning_hangcheck.reading.activity.process_activity import gpu_works
from lightning_hangcheck.reading.activity.rank_activity import read_process_activity
from lightning_hangcheck.reading.source import calls_collectives
from lightning_hangcheck.reading.waits.free_threads import free_threads
from lightning_hangcheck.reading.waits.kernel_targets import (
    in_own_memory,
    limited,
    steady_targets,
    tells_who,
)
from lightning_hangcheck.reading.waits.late_callers import late_callers
from lightning_hangcheck.reading.waits.thread_locks import waits_in_vain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.job_processes import Process
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.diagnosis.rules.contract import EndedBy, Situation
    from lightning_hangcheck.model.evidence import ProcessLook, WaitTarget
    from lightning_hangcheck.reading.waits.free_threads import FreeThread
    from lightning_hangcheck.reading.waits.late_callers import LateCaller

BY_PATIENCE: tuple[EndedBy, ...] = (
    *("nobody", "person", "inside", "known_pace", "outside", "circles", "unknown_pace"),
)
OUTSIDERS = frozenset(
    f"anon_inode:{one}" for one in ("inotify", "[fanotify]", "[signalfd]", "[timerfd]")
)
"""Descriptors, as /proc/PID/fd names them, at which others than the process's own threads act."""
FOR_SIGNALS = frozenset({"pause", "rt_sigsuspend", "rt_sigtimedwait"})
"""Calls that wait for a signal, which anybody may send."""
BY_ACTIVITY: dict[str, EndedBy] = {
    "gone": "nobody",
    "stopped": "person",
    "missing": "announced",
    "waiting": "inside",
    "unseen": "unknown_pace",
    "unheard": "unknown_pace",
}


def who_ends(situation: Situation, culprits: Sequence[RankReading]) -> EndedBy:
    """Say who could end what holds ranks up; of several answers the most patient one.

    Args:
        situation: At hand.
        culprits: At least one.
    """
    different = _different(situation, culprits)
    if any(_nobody_can(situation, one) for one in different):
        return "nobody"
    job = situation.job
    return _most_patient(_of_rank(job, _teller(job, one)) for one in different)


def _different(situation: Situation, culprits: Sequence[RankReading]) -> Iterable[RankReading]:
    """Leave out those that are told as another one is, and in the same circle."""
    circles = situation.graph.circles
    return {
        (one.rank if one.told_by is None else one.told_by, id(circles.get(one.rank))): one
        for one in reversed(culprits)
    }.values()


def helpers_end(job: JobReading, waiting: Sequence[RankReading]) -> EndedBy | None:
    """Say who could end a wait in collectives that helper threads of the ranks may make.

    An asynchronous save meets in a group of its own while the main threads go on; a helper may wait
    for a child first, or sleep. One whose code calls no collective from there on is none of them.
    Where the code does not tell, one that was seen to wake and went back to sleep is none either.

    Args:
        job: All ranks.
        waiting: Those that wait.

    Returns:
        None where no helper thread may come to it.
    """
    of_helpers = any(one.rank_activity.stuck is not None for one in waiting)
    tellers = {one.rank: one for one in (_teller(job, each) for each in waiting)}.values()
    among = frozenset((one.view.host, one.view.pid) for one in tellers)
    ends = [
        end
        for one in tellers
        if one.view.own_process is not None
        for caller in late_callers(one.view.own_process)
        if (calls := calls_collectives(job.case.code, caller.frames)) is not False
        for end in _Walk(job, one).of_caller(caller, among, certain=calls or of_helpers)
    ]
    return _most_patient(ends) if ends else None


def _teller(job: JobReading, reading: RankReading) -> RankReading:
    """Return the rank whose evidence this is: its processes are known by that one's host."""
    return reading if reading.told_by is None else job.ranks[reading.told_by]


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
    of_nobody_known = all(one.kind == "lock" and not tells_who(one) for one in reading.targets)
    return idle and of_nobody_known and own is not None and limited(own)


def waits_its_turn(job: JobReading, reading: RankReading, advancing: Collection[int]) -> bool:
    """Whether an idle rank may wait for what ranks that advance will bring, and for nobody else.

    A message, a key of the store, a file that it asks for again and again, word by a queue: not
    what a remote end, a person or a process outside the job owes.

    Args:
        job: All ranks.
        reading: The rank.
        advancing: Those ranks.
    """
    own = reading.view.own_process
    if reading.activity != "idle" or own is None or waits_in_vain(own):
        return False
    return reading.at_store or all(
        _may_bring(job, reading.view.host, target, advancing) for target in reading.targets
    )


def _may_bring(job: JobReading, host: str, target: WaitTarget, ranks: Collection[int]) -> bool:
    if target.kind == "socket" and not target.holders:
        return target.call.startswith("accept") or not target.name
    if target.kind in ("socket", "pipe", "fifo", "shared", "lock"):
        return any(job.processes.rank_of(host, one) in ranks for one in target.holders)
    return False


def _nobody_can(situation: Situation, reading: RankReading) -> bool:
    """A closed circle of waits: of ranks and processes, or of the rank's own threads."""
    own = reading.view.own_process
    if reading.activity != "idle" or own is None:
        return False
    return waits_in_vain(own) or bool(situation.deadlocked(reading))


def _of_rank(job: JobReading, reading: RankReading) -> EndedBy:
    if reading.activity in ("busy", "moving") or reading.kept_by_message:
        return computation(reading)
    if reading.activity != "idle":
        return BY_ACTIVITY[reading.activity]
    if reading.at_store:
        return "outside"
    walk = _Walk(job, reading)
    if reading.wait_kind == "dataloader":
        owing = owing_workers(reading)
        host = reading.view.host
        workers = (walk.of_process((host, one.look.pid)) for one in owing)
        return _most_patient(workers) if owing else "nobody"
    own = reading.view.own_process
    return walk.of_wait(reading.view.host, own, reading.targets) if own is not None else "outside"


class _Walk:
    """Follows a rank's wait from process to process; one that comes back closes inside the job."""

    def __init__(self, job: JobReading, reading: RankReading) -> None:
        self._reading = reading
        self._processes = job.processes
        self._looks = job.processes.looks
        self._threads: set[int] = set()
        self._seen: set[tuple[str, int | None]] = {(reading.view.host, reading.view.pid)}

    def of_process(self, process: Process) -> EndedBy:
        """Say who could end what a worker or child of the rank waits for."""
        look = self._looks[process]
        activity = read_process_activity(look).activity
        self._seen.add(process)
        if activity in ("busy", "moving"):
            return computation(self._reading)
        if activity != "idle":
            return BY_ACTIVITY[activity]
        return self.of_wait(process[0], look, steady_targets(look))

    def of_wait(self, host: str, look: ProcessLook, targets: Sequence[WaitTarget]) -> EndedBy:
        """Say who could end a process's wait; where nothing tells, anything may.

        Args:
            host: Of the process.
            look: At it.
            targets: What it waits for, none for a word of its own memory.
        """
        if waits_in_vain(look):
            return "nobody"
        unnamed = all(one.kind == "other" for one in targets)
        beside = [one for one in free_threads(look) if unnamed and (targets or one.timer)]
        helped = [self.of_thread(host, one) for one in beside]
        timed = limited(look)
        if not targets:
            alone = in_own_memory(look) and not timed
            return _most_patient(["inside" if alone else "outside", *helped])
        return _most_patient(
            [*(self._of_target(host, one, timed=timed) for one in targets), *helped]
        )

    def _of_target(self, host: str, target: WaitTarget, *, timed: bool) -> EndedBy:
        if target.kind == "terminal":
            return "person"
        if target.kind == "other":
            return "outside" if timed or _from_outside(target) else "inside"
        could = {process_of(host, one) for one in target.holders}
        could |= {(host, int(target.name))} if target.kind == "process" else set()
        if not could:
            alone = target.kind == "shared" and bool(target.name)
            return "nobody" if target.abandoned else "inside" if alone else "outside"
        following = [one for one in could - self._seen if one in self._looks]
        if target.kind == "process" and not could & self._looks.keys():
            return "outside"  # a child that nobody has looked at, as one just started: it may work
        if target.kind == "lock":  # whoever started it: one that sleeps with a lock is idle
            following = [one for one in following if self._looks[one].role != "child"]
        ends = list(map(self.of_process, following))
        for thread in self._processes.threads_that_could_end(host, target):
            if thread.state.tid not in self._threads:
                self._threads.add(thread.state.tid)
                ends.append(self.of_thread(host, thread))
        return _most_patient(ends)

    def of_caller(
        self, caller: LateCaller, among: frozenset[tuple[str, int | None]], *, certain: bool
    ) -> Iterator[EndedBy]:
        """Say who could end what a thread waits for that may call a collective then.

        Args:
            caller: Of the rank.
            among: Processes of all ranks that wait: what only these would bring never comes.
            certain: Whether it is known to call one. Where it is not, it is no such thread if it
                only ticks, or waits for an outsider's word, as a server does all its life.
        """
        host = self._reading.view.host
        for end in caller.ends:
            if end.runs:
                yield "unknown_pace"
            elif end.for_ranks:
                if certain:
                    yield "inside"
            elif not end.named and (certain or (end.limited and not end.ticks)):
                yield "outside"
            for target in end.named:
                could = {process_of(host, one) for one in target.holders}
                if not among.issuperset(could) or (certain and not could):
                    yield self._of_target(host, target, timed=end.limited)

    def of_thread(self, host: str, thread: FreeThread) -> EndedBy:
        """Say who could end what a free thread does, of a process that others wait for.

        Args:
            host: Of the process.
            thread: Of it.
        """
        state = thread.state
        if thread.runs:
            return "unknown_pace"
        if thread.ticks or thread.for_ranks:
            return "inside"
        named = [one for one in state.waits_for if one.kind not in ("time", "futex")]
        if not named or len(named) < len(state.waits_for):
            return "outside"
        return _most_patient(self._of_target(host, one, timed=False) for one in named)


def _from_outside(target: WaitTarget) -> bool:
    """Whether any process may bring what is waited for: a change of files, a signal, a time."""
    return target.call in FOR_SIGNALS or target.name in OUTSIDERS


def _most_patient(ends: Iterable[EndedBy]) -> EndedBy:
    """Return the most patient of several answers; where a circle gives none, it closes inside."""
    return max(ends, key=BY_PATIENCE.index, default="inside")
