"""One rank as rules read it: what it does, where it stands, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.diagnosis.job_processes import works_outside
from lightning_hangcheck.gather.stack_groups import latest_frames
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.evidence import Frame, ProcessLook, WaitTarget
from lightning_hangcheck.model.naming.code_owner import owner_of
from lightning_hangcheck.reading.activity.rank_activity import (
    ProcessActivity,
    RankActivity,
    has_left,
    read_process_activity,
    read_rank_activity,
)
from lightning_hangcheck.reading.last_words import raised_at
from lightning_hangcheck.reading.phase_of_life import PhaseOfLife, phase_of_life
from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.records.started_operations import MESSAGES
from lightning_hangcheck.reading.waits.kernel_targets import steady_targets, through_children
from lightning_hangcheck.reading.waits.torch_waits import Wait, find_wait, of_own_process

if TYPE_CHECKING:
    from collections.abc import Collection

    from lightning_hangcheck.diagnosis.job_processes import Process
    from lightning_hangcheck.model.naming.slugs import Phase
    from lightning_hangcheck.reading.activity.rank_activity import Activity
    from lightning_hangcheck.reading.knowledge.loading import WaitKind

LONGEST_SILENCE_S = 10 * 365 * 86_400.0
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
        return "main thread" if stuck is None else f"thread {stuck.label}"

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
    def works_in_child(self) -> bool:
        """Whether it is only busy as a process that it started is."""
        itself = self.process_activity.activity != "idle" or self.rank_activity.for_gpu
        return self.activity == "busy" and not itself

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


def read_rank(view: RankView, known: Collection[Process], now_ns: int) -> RankReading:
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
