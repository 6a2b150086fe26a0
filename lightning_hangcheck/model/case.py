"""All that a rule may see, built once and never changed: the `Case`, its ranks and the run."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from lightning_hangcheck.model.beat import Beat, Slowness, StepTimes
from lightning_hangcheck.model.evidence import Frame, Gap, ProcessLook
from lightning_hangcheck.model.flight import FlightRecord, GroupFamily
from lightning_hangcheck.model.left_behind import LeftBehind
from lightning_hangcheck.model.limits import Limits as Limits
from lightning_hangcheck.model.run import Round, RoundStart
from lightning_hangcheck.model.slugs import Phase, SeenIn


class CodeNote(Struct, frozen=True, kw_only=True):
    """A line of somebody's code, torch's and Python's own left out.

    Attributes:
        condition: Innermost test of the rank under which the line runs, as written; empty if none.
        condition_of_most: It holds for all ranks but one: who stands there is led nowhere.
        skipped_under: A test that holds for one rank, which leaves the block before the line.
        loops: First and last lines of the loops of its function that the line is in, outermost
            first; those that only wait left out.
        branches: First and last lines of the blocks of its function in which the line stands only
            if a test says so; what follows ``if ...: return`` is such a block, too.
        branch_tests: Those tests, one for each of the blocks, as one would read them out.
        with_until: Where a ``with`` that begins at the line ends: its exit shows at its beginning.
        caught: Exceptions that the innermost loop around it catches elsewhere, to go on.
        awaits: It asks for the end of something that was started before, or is in a loop that does.
        after_backward: Its function, or each pass of a loop that it is in, has called ``backward``
            before it.
        collectives_ahead: Whether its function calls collectives from there on, as do functions of
            the same file that it calls; None where that cannot be told.
    """

    file: str
    line: int
    condition: str = ""
    condition_line: int = 0
    condition_of_most: bool = False
    skipped_under: str = ""
    loops: tuple[tuple[int, int], ...] = ()
    branches: tuple[tuple[int, int], ...] = ()
    branch_tests: tuple[str, ...] = ()
    with_until: int = 0
    caught: tuple[str, ...] = ()
    awaits: bool = False
    after_backward: bool = False
    collectives_ahead: bool | None = None


Reach = Literal["answers", "goes_on", "unanswered", "unknown"]
"""What is seen of a node that is not heard: ``answers`` connections to its ranks carry something,
``goes_on`` none tells, but the other ranks advance without a pause, ``unanswered`` nothing that is
sent to its ranks is acknowledged."""


class SilentNode(Struct, frozen=True, kw_only=True):
    """A node of which something was heard, and for long nothing more.

    Attributes:
        ranks: As ranges.
        unanswered_s: Seconds for which what was sent to its ranks was not acknowledged.
        last_known: The furthest that its ranks were known to be, in words.
    """

    number: int
    ranks: str = ""
    silent_s: float
    reach: Reach = "unknown"
    unanswered_s: float = 0.0
    last_known: str = ""


class RunFacts(Struct, frozen=True, kw_only=True):
    """What is known of the run as a whole.

    Attributes:
        world_size: Number of ranks that the launcher promised; 0 while unknown.
        local_world_size: Ranks that should run on this node, None where no launcher says so.
        one_by_one: No known launcher started them, which starts all ranks of a node at once: who is
            announced may still come.
        next_start: What followed this round; None while it goes on, and for the last.
        absent_nodes: Nodes of which nobody has heard anything yet; known on the first node only.
        silent_nodes: Nodes that are no longer heard; likewise.
        machine: Which of those that may have one host name the ranks were seen on; empty where that
            is not known, and of several.
    """

    run_id: str
    command: str
    started_at: str
    world_size: int = 0
    nnodes: int = 1
    local_world_size: int | None = None
    one_by_one: bool = False
    round: int = 0
    earlier: tuple[Round, ...] = ()
    next_start: RoundStart | None = None
    absent_nodes: tuple[int, ...] = ()
    silent_nodes: tuple[SilentNode, ...] = ()
    machine: str = ""


class Pace(Struct, frozen=True, kw_only=True):
    """What this rank's silences in its present phase were like so far.

    Attributes:
        longest_pause_s: The longest silence that ended in progress.
        pauses: How many times progress was seen in this phase; the first pass of a phase teaches
            nothing, so a pace is known only from the third on.
    """

    longest_pause_s: float
    pauses: int

    @property
    def known(self) -> bool:
        """Whether there is enough history to call a silence unusual."""
        return self.pauses >= 3


class ProcessExit(Struct, frozen=True, kw_only=True):
    """How a rank's process ended.

    Attributes:
        order: 0 for the first rank of the job to go, then 1, and so on.
        seen_ns: Monotonic; 0 where it was not kept.
        clock: Of ranks with another number nobody knows whether they ended before or after.
        exit_code: As Python's subprocess gives it (negative: killed by that signal), None if
            unseen.
        memory_kills: Processes that the kernel ended for want of memory while we watched the rank.
        memory_kills_scope: Among which: those of its ``control group``, or of the ``machine``.
        met: Members of the group in which it called a collective last; none where that was in the
            group of all ranks, or is not known.
        met_at: From where it called that, outermost frame first.
    """

    order: int
    at: str
    exit_code: int | None = None
    last_words: str = ""
    memory_kills: int = 0
    memory_kills_scope: str = ""
    seen_ns: int = 0
    clock: int = 0
    met: tuple[int, ...] = ()
    met_at: tuple[Frame, ...] = ()


class AskedEnd(Struct, frozen=True, kw_only=True):
    """Somebody asked the job to end: what its ranks did from then on is no fault of theirs.

    Attributes:
        by: The rest of "ended by", for example ``SIGINT from the terminal``.
        failed_before: Ranks that had failed by themselves by then.
        suspected: Summary of the suspicion that stood then, empty if none did.
    """

    by: str
    failed_before: tuple[int, ...] = ()
    suspected: str = ""


class Aftermath(Struct, frozen=True, kw_only=True):
    """What became of a job while a proven hang stood, so many seconds after the proof.

    For example ``the job was ended by SIGINT from the terminal``.
    """

    after_s: float
    text: str


class PhaseTime(Struct, frozen=True):
    """Seconds that a rank has spent in a phase."""

    phase: Phase
    seconds: float


class Spent(Struct, frozen=True, kw_only=True):
    """What a rank did with its time, and what a restart would throw away.

    Attributes:
        phases: Longest first.
        saves: How many ended well.
        unsaved_s: Seconds since the last of them, or the loading of a checkpoint, was seen, or the
            first step where there was neither, right to one polling interval; None where nobody
            watched by then.
        steps: Made from the first step seen to the last one.
        training_s: Seconds from that to that.
        epoch_s: Seconds that an epoch takes on average; None before one was seen from its
            beginning to its end.
    """

    phases: tuple[PhaseTime, ...] = ()
    saves: int = 0
    unsaved_s: float | None = None
    steps: int = 0
    training_s: float = 0.0
    epoch_s: float | None = None


class StepMark(Struct, frozen=True, array_like=True):
    """So many optimizer steps had been made, so many seconds before the case was taken."""

    step: int
    ago_s: float


class RankView(Struct, frozen=True, kw_only=True, gc=False):
    """One rank, seen from inside (its page) and outside (probes).

    Attributes:
        pid: None where the rank never had a process on a node that we see.
        rivals: Other processes that say of themselves that they are this rank.
        store_port: Port of the store that the ranks share, as its launcher told it; None where none
            did.
        silent_for_s: Seconds since its last progress, by its page, or judged from outside where
            it has none.
        idle_for_s: Seconds since it last used the processor or moved bytes, never more than
            ``silent_for_s``; the silence that counts for an idle rank.
        nothing_new_for_s: Seconds since it last did anything new: beat, moved bytes, or was in a
            function where it had not been seen. It may move through its code all the while.
        goes_round: Since then, as far as it was looked at, its main thread was seen at several
            lines, or to run Python or to nap at one.
        slept_for_s: Seconds for which its main thread had not run when `hangcheck attach` came, by
            the kernel's scheduler; None where nobody asked, or it does not tell.
        stopped_for_s: Seconds for which its watcher has seen it stopped without a break; None where
            it is not, or nobody watched.
        processes: Its own process first (role ``rank``), then its children.
        process_exit: Set when its process is gone.
        unheard_for_s: Seconds for which nobody has heard of its node, where that is silent: what
            it does by now, nobody knows. 0 where it is heard.
        steps: The newest as its watcher saw them made, oldest first, each right to one polling
            interval; none where the rank does not show its steps.
        step_sums: The sums of its step times at moments of the run, oldest first; the newest are
            on its page.
    """

    rank: int
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None
    rivals: tuple[int, ...] = ()
    store_port: int | None = None
    beat: Beat | None = None
    silent_for_s: float = 0.0
    idle_for_s: float = 0.0
    nothing_new_for_s: float = field(default=0.0, name="circling_for_s")
    goes_round: bool = False
    slept_for_s: float | None = None
    stopped_for_s: float | None = None
    pace: Pace | None = None
    processes: tuple[ProcessLook, ...] = ()
    process_exit: ProcessExit | None = field(default=None, name="departure")
    spent: Spent | None = None
    flight: FlightRecord | None = None
    unheard_for_s: float = 0.0
    steps: tuple[StepMark, ...] = ()
    step_sums: tuple[StepTimes, ...] = ()

    @property
    def own_process(self) -> ProcessLook | None:
        """The training process itself, None where it was not seen."""
        return next((look for look in self.processes if look.role == "rank"), None)


class RankName(Struct, frozen=True, array_like=True, gc=False):
    """Which process a rank is."""

    rank: int
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None


class Alike(Struct, frozen=True, kw_only=True):
    """Ranks of a large job that stand alike: the view of one of them is told for all.

    Attributes:
        rank: The one that has a view among the case's ranks.
        ranks: All of them, it included, as ranges.
        names: Which processes they are, as far as that was told; the first few are.
        groups: For each group of that one's record, those in which they are: the record itself
            names no members then.
    """

    rank: int
    ranks: str
    names: tuple[RankName, ...] = ()
    groups: tuple[GroupFamily, ...] = ()


class Case(Struct, frozen=True, kw_only=True):
    """Evidence of all ranks at one moment, as saved in ``evidence/<n>/case.json``.

    Attributes:
        taken_ns: Monotonic time of the newest sample, on the sidecar's host.
        ended: The command that was launched has ended.
        exit_code: Of that, where we are its parent.
        code: What the source says around the lines on which ranks stand.
        left_running: Process ids of what the command started and left behind when it ended.
        asked_end: Of a case that has ended: who asked for it; None where nobody did.
        aftermath: Of the case of a hang: what happened while it stood; None as long as nothing did.
        slowness: Of ranks that advance, those far below their own pace; None where none is.
        alike: Of a job of thousands of ranks: for whom the views of some of its ranks stand, too.
        left: What a case rests on that was read from files alone; None of a job that was seen.
    """

    schema_version: int = 1
    run: RunFacts
    taken_at: str
    taken_ns: int
    ranks: tuple[RankView, ...] = ()
    gaps: tuple[Gap, ...] = ()
    limits: Limits = Limits()
    ended: bool = False
    exit_code: int | None = None
    code: tuple[CodeNote, ...] = ()
    left_running: tuple[int, ...] = ()
    asked_end: AskedEnd | None = None
    aftermath: Aftermath | None = None
    slowness: Slowness | None = None
    alike: tuple[Alike, ...] = ()
    seen_in: SeenIn = "live"
    left: LeftBehind | None = None
