"""What a rank says of itself: one consistent reading of its shared-memory page."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from lightning_hangcheck.model.naming.slugs import Phase
from lightning_hangcheck.model.step_times import StepTimes

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
        store_port: As in `Identity`.
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
        ended_ns: Monotonic time of that; 0 while it runs.
        last_words: Type, message and place of that exception, redacted, in one line.
        training: In which thread it trains; where that is ``over``, ``ending`` says how it ended.
        parent_pid: Process that started it.
        announced: The number that it was given by who started it, if any: which of the ranks that
            this one starts it is to be, should it join.
        membership: Whether it is in a process group, as far as it was told by torch.
        step_times: Of all steps that the rank has timed; None before the first.
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
    phase_since_ns: int = 0
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

    @property
    def main_sections(self) -> tuple[OpenSection, ...]:
        """The open sections of the main thread, outermost first."""
        return tuple(section for section in self.sections if section.in_main_thread)
