"""What a rank reports: one reading of its page, its step times, and how slow it is."""

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

    Not included are steps with something else between them (an evaluation, a save, the end of an
    epoch), and a rank's first steps, which compile and connect.

    Attributes:
        steps: Number of timed steps: only some of the steps that end within milliseconds, else all.
        loader_s: Waiting for the next batch, until it is on its device.
        forward_s: From then until backward begins; only the rank's own work.
        rest_s: Backward, optimizer and callbacks; in a distributed job also waiting for others.
    """

    steps: int = 0
    loader_s: float = 0.0
    forward_s: float = 0.0
    rest_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Sum of all parts."""
        return self.loader_s + self.forward_s + self.rest_s

    @property
    def own_s(self) -> float:
        """Parts in which no other rank is involved."""
        return self.loader_s + self.forward_s

    @property
    def parts(self) -> tuple[float, float, float]:
        """Seconds of each part."""
        return self.loader_s, self.forward_s, self.rest_s

    def since(self, earlier: StepTimes) -> StepTimes:
        """Return the difference to an earlier reading of the same sums."""
        pairs = zip(astuple(self), astuple(earlier), strict=True)
        return StepTimes(*(now - before for now, before in pairs))

    def a_step(self) -> StepTimes:
        """Return the mean of one step; all zero if none was timed."""
        if not self.steps:
            return self
        return StepTimes(1, *(part / self.steps for part in self.parts))


Ending = Literal["running", "finished", "raised"]
Membership = Literal["none", "member", "left"]
"""Of process groups: ``left`` if a rank that was in some has destroyed the last of them."""
Training = Literal["main", "beside", "over"]
"""Which thread trains: the main one, or one ``beside`` it, while the main one serves others;
``over`` if that thread has ended and the process has not."""


class OpenSection(Struct, frozen=True):
    """A section, step or tracked loop that the rank has entered and not left.

    Attributes:
        item: Of a tracked loop, the number of its current item, from 1; None for all else.
        goes_on_after_s: Seconds after which a guard ends the wait in it; None without a guard.
        in_main_thread: Entered by the thread that trains, mostly the main one. Otherwise it does
            not show where the rank is.
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
    """The last checkpoint to resume from: saved successfully, or loaded since then to resume.

    Attributes:
        number: Number of saves so far; 0 if it was only loaded.
        at: When it was saved or loaded, ISO 8601 UTC.
        step: Optimizer steps that it holds; None if the rank does not show its steps.
    """

    number: int
    at: str
    step: int | None = None


class Beat(Struct, frozen=True, kw_only=True):
    """One reading of a rank's page.

    Attributes:
        pid: Process that writes the page, in its own pid namespace.
        round: Which start of the job's ranks it belongs to; None if no launcher counts them.
        beats: How often the rank said that it advanced; 0 means the page only shows that the
            process is alive, and progress must be judged from outside.
        last_beat_ns: Monotonic time of the newest sign of progress of any kind (beat, checkpoint,
            section edge, phase edge).
        phase: Phase that the rank last reported.
        sections: Open sections of all threads, oldest first.
        save: None before the first save, if nothing was loaded either.
        pulse_ns: Monotonic time at which a Python thread of the process last ran; 0 without such a
            thread. If it is far in the past, something keeps the interpreter lock of a live
            process.
        ending: ``raised`` after an exception left the program or a Lightning stage, and no further
            stage or step came; ``finished`` once the interpreter exits without one.
        last_words: Type, message and place of that exception, redacted, in one line.
        training: In which thread it trains; if ``over``, ``ending`` says how training ended.
        announced: Its number among the ranks that its parent starts, in case it joins, if the
            parent gave one.
        membership: Whether it is in a process group, as far as torch reported.
        handled_signals: Numbers of signals (of timers, of a child's end, and those that programs
            send) with a Python handler that is not a training framework's. None until reported.
        awaiting: Calls of the user's own code, outermost first, in the coroutine that the main
            thread's event loop runs; empty if it runs no such loop, or did not wait then.
        handling: Type, message and place of the exception that its main thread handles, as in
            ``except`` and ``finally``, redacted, in one line; empty if it handles none.
        thread_error: Name of the thread that an exception has ended last, and that exception as in
            ``last_words``.
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
    thread_error: str = ""

    @property
    def main_sections(self) -> tuple[OpenSection, ...]:
        """The open sections of the main thread, outermost first."""
        return tuple(section for section in self.sections if section.in_main_thread)


class SlowRank(Struct, frozen=True, kw_only=True):
    """A rank that is slower than before.

    Attributes:
        before: Median of its steps at its usual pace.
        now: Median of its steps since the pace changed.
        known_s: Longest time that its steps took before for as long as now; seconds per step.
        level_s: Time that all its steps since then took at least, with few exceptions; seconds.
        in_parts: Whether the parts were timed; else the whole step is in ``rest_s``.
        looks: How often its stack was sampled, at moments that follow no step.
        waited: In how many of these samples it waited for other ranks.
        place: The user's line at which it was most often in the other samples.
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
        """How many times longer a step takes than steps ever did for as long."""
        return self.level_s / self.known_s if self.known_s > 0 else 1.0

    @property
    def grown(self) -> StepTimes:
        """Additional time of a step, part by part."""
        return StepTimes(1, *self.now.since(self.before).parts)


class Slowness(Struct, frozen=True, kw_only=True):
    """All slow ranks at one moment, ascending; they have been slow for ``for_s`` seconds."""

    for_s: float
    ranks: tuple[SlowRank, ...]
