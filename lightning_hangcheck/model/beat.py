"""What a rank says of itself: one reading of its page, its step times, and how slow it is."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import astuple

from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.slugs import Phase

PARTS = ("loader", "forward", "backward, optimizer and waiting")
"""Names of the parts of a step, in the order of `StepTimes.parts`."""


class StepTimes(Struct, frozen=True, array_like=True):
    """Sums over training steps that were timed from one batch to the next.

    Steps between which something else was done (an evaluation, a save, the end of an epoch) are not
    among them, nor are a rank's first steps, which compile and connect.

    Attributes:
        steps: How many were timed: of steps that are over within milliseconds some, else all.
        loader_s: Waiting for the next batch, until it is on its device.
        forward_s: From then until backward begins; all of it the rank's own work.
        rest_s: Backward, optimizer and callbacks; in a distributed job also waiting for the others.
    """

    steps: int = 0
    loader_s: float = 0.0
    forward_s: float = 0.0
    rest_s: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.loader_s + self.forward_s + self.rest_s

    @property
    def own_s(self) -> float:
        """What no other rank has a part in."""
        return self.loader_s + self.forward_s

    @property
    def parts(self) -> tuple[float, float, float]:
        """Its seconds, part by part."""
        return self.loader_s, self.forward_s, self.rest_s

    def since(self, earlier: StepTimes) -> StepTimes:
        """Return what came after an earlier reading of the same sums."""
        pairs = zip(astuple(self), astuple(earlier), strict=True)
        return StepTimes(*(now - before for now, before in pairs))

    def a_step(self) -> StepTimes:
        """Return the mean of one step; all zero where none was timed."""
        if not self.steps:
            return self
        return StepTimes(1, *(part / self.steps for part in self.parts))


Ending = Literal["running", "finished", "raised"]
Membership = Literal["none", "member", "left"]
"""Of process groups: ``left`` once a rank that was in some has destroyed the last of them."""
Training = Literal["main", "beside", "over"]
"""In which thread a process trains: in the main one, or ``beside`` it, which serves others then;
``over`` once that thread has ended while the process goes on."""
STARTING_SERVER = "start of torch's worker server"
"""The section of ours in which torch's code starts threads: one that is refused aborts the rank."""


class OpenSection(Struct, frozen=True):
    """A section, step or tracked loop that the rank has entered and not left.

    Attributes:
        item: Of a tracked loop, the number of the item that it is at, from 1; None for all else.
        goes_on_after_s: Seconds after which a guard ends the wait in it and the program goes on;
            None where nobody does.
        in_main_thread: Entered by the thread that trains, mostly the main one: only then it tells
            where the rank is.
    """

    name: str
    since_ns: int
    item: int | None = None
    goes_on_after_s: float | None = None
    in_main_thread: bool = True

    def __str__(self) -> str:
        return self.name if self.item is None else f"{self.name}, item {self.item}"


class CheckpointMark(Struct, frozen=True):
    """The last numbered checkpoint that the rank passed."""

    number: int
    name: str
    at: str


class SaveMark(Struct, frozen=True):
    """The last checkpoint to go on from: saved well, or loaded since then to go on from.

    Attributes:
        number: How many saves there were; 0 of one that was only loaded.
        at: When it was saved or loaded, ISO 8601 UTC.
        step: Optimizer steps that it holds, None where the rank does not show its steps.
    """

    number: int
    at: str
    step: int | None = None


class Beat(Struct, frozen=True, kw_only=True):
    """One reading of a rank's page.

    Attributes:
        pid: Process that writes the page, in its own pid namespace.
        round: Which start of the job's ranks it belongs to, None where no launcher counts them.
        beats: How often the rank said that it advanced; 0 means the page only shows that the
            process is alive, and progress must be judged from outside.
        last_beat_ns: Monotonic time of the newest sign of progress of any kind (beat, checkpoint,
            section edge, phase edge).
        phase: Where in its life the rank last said it was.
        sections: Open ones of all threads, oldest first.
        save: None before the first save, where nothing was loaded either.
        pulse_ns: Monotonic time at which a Python thread of the process last ran. Far behind the
            present while the process is alive: something keeps the interpreter lock.
            0 where no such thread was started.
        ending: ``raised`` once an exception left the program or a Lightning stage, and no further
            stage or step came; ``finished`` once the interpreter began to exit without one.
        last_words: Type, message and place of that exception, redacted, in one line.
        training: In which thread it trains; where that is ``over``, ``ending`` says how it ended.
        announced: The number that it was given by who started it, if any: which of the ranks that
            this one starts it is to be, should it join.
        membership: Whether it is in a process group, as far as it was told by torch.
        handled_signals: Numbers of the signals of timers, of those that are there for programs to
            send, and of a child's end for which it has a handler in Python that is not a training
            framework's. None as long as it did not say so.
        awaiting: Of the user's own code, outermost first, the calls of the coroutine that the main
            thread's event loop is to end; none where it runs no such loop, or did not wait then.
        handling: Type, message and place of the exception that its main thread handles, as in
            ``except`` and ``finally``, redacted, in one line; empty where it handles none.
    """

    pid: int
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    round: int | None = None
    store_port: int | None = None
    beats: int = 0
    last_beat_ns: int = 0
    phase: Phase | None = None
    epoch: int | None = None
    step: int | None = None
    batch: int | None = None
    checkpoint: CheckpointMark | None = None
    sections: tuple[OpenSection, ...] = ()
    save: SaveMark | None = None
    pulse_ns: int = 0
    ending: Ending = "running"
    ended_ns: int = 0
    last_words: str = ""
    training: Training = "main"
    parent_pid: int = 0
    announced: int | None = None
    membership: Membership = "none"
    step_times: StepTimes | None = None
    handled_signals: tuple[int, ...] | None = None
    awaiting: tuple[Frame, ...] = ()
    handling: str = ""

    @property
    def main_sections(self) -> tuple[OpenSection, ...]:
        """The open sections of the main thread, outermost first."""
        return tuple(section for section in self.sections if section.in_main_thread)


class SlowRank(Struct, frozen=True, kw_only=True):
    """One rank.

    Attributes:
        before: The median of its steps while it had its own pace.
        now: The median of its steps since it has another.
        known_s: The longest that its steps took for as long as this, up to now; seconds.
        level_s: What all its steps since then took at least, but for a few; seconds.
        in_parts: Whether the parts were timed; else all of a step is in ``rest_s``.
        looks: How often its stack was looked at, at moments that follow no step.
        waited: In how many of these it waited for other ranks.
        place: Line of the user's own code at which it was most often in the others.
    """

    rank: int
    before: StepTimes
    now: StepTimes
    known_s: float
    level_s: float
    in_parts: bool = True
    looks: int = 0
    waited: int = 0
    place: Frame | None = None

    @property
    def ratio(self) -> float:
        """How many times as long a step takes as it ever did for so long."""
        return self.level_s / self.known_s if self.known_s > 0 else 1.0

    @property
    def grown(self) -> StepTimes:
        """What a step takes more, part by part."""
        return StepTimes(1, *self.now.since(self.before).parts)


class Slowness(Struct, frozen=True, kw_only=True):
    """All of them at one moment, ascending; they have been as slow for ``for_s`` seconds."""

    for_s: float
    ranks: tuple[SlowRank, ...]
