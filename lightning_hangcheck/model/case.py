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
from lightning_hangcheck.model.verdict import MOST_RANKS, KnownRank, WorldSize
from lightning_hangcheck.text.shown import parse_ranks


class CodeNote(Struct, frozen=True, kw_only=True):
    """A line of source code, except torch's and Python's own.

    Attributes:
        condition: Innermost test of the rank under which the line runs, as written; empty if none.
        condition_of_most: It holds for all ranks but one, or is a table in which every rank may
            find a call, so it hardly explains why a rank is there.
        skipped_under: A test that holds for one rank, which then leaves the block before the line.
        loops: First and last lines of the loops of its function around the line, outermost first,
            without loops that only wait.
        branches: First and last lines of the blocks of its function in which the line runs only if
            a test says so; what follows ``if ...: return`` is such a block, too.
        branch_tests: The tests of these blocks, one each, in readable words.
        with_until: Last line of a ``with`` that begins here: its exit shows at its beginning.
        caught: Exceptions that the innermost loop around the line catches elsewhere, to continue.
        awaits: It waits for the end of something started before, or is in a loop that asks for
            that.
        limited: A call there is given a time limit.
        after_backward: Its function, or each pass of its loop, called ``backward`` before the line.
        collectives_ahead: Whether its function calls collectives from the line on, itself or
            through functions of the same file; None if unknown.
        collectives_timed: Whether what its file hands to a timer of Python's calls collectives.
        loop_ends: Whether the innermost loop around the line ends without another thread's word;
            None outside of loops.
        collectives_behind: As ``collectives_ahead``, once that loop has ended.
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
    limited: bool = False
    after_backward: bool = False
    collectives_ahead: bool | None = None
    collectives_timed: bool | None = False
    loop_ends: bool | None = None
    collectives_behind: bool | None = None


Reach = Literal["answers", "goes_on", "unanswered", "unknown"]
"""What is seen of a silent node. ``answers``: connections to its ranks carry data. ``goes_on``: no
connection shows that, but other ranks advance without a pause. ``unanswered``: nothing sent to its
ranks is acknowledged."""


class SilentNode(Struct, frozen=True, kw_only=True):
    """A node that reported at first, and has been silent for long.

    Attributes:
        ranks: As ranges.
        unanswered_s: Seconds for which data sent to its ranks was not acknowledged.
        last_known: The furthest known progress of its ranks, in words.
    """

    number: int
    ranks: str = ""
    silent_s: float
    reach: Reach = "unknown"
    unanswered_s: float = 0.0
    last_known: str = ""

    def __post_init__(self) -> None:
        parse_ranks(self.ranks, MOST_RANKS)


class RunFacts(Struct, frozen=True, kw_only=True):
    """What is known of the run as a whole.

    Attributes:
        world_size: Number of ranks that the launcher promised; 0 while unknown.
        local_world_size: Ranks that should run on this node; None if no launcher says so.
        one_by_one: No known launcher started the ranks (a launcher starts all ranks of a node at
            once), or a wrapper that it started has not reached Python. An announced rank may still
            come.
        next_start: What followed this round; None for a round that is running or was the last.
        absent_nodes: Nodes that have never reported; known on the first node only.
        silent_nodes: Nodes that no longer report; likewise.
        machine: Machine of the ranks, as several machines may have one host name; empty if unknown,
            or for several machines.
    """

    run_id: str
    command: str
    started_at: str
    world_size: WorldSize = 0
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
    """Silences of this rank in its present phase so far.

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
        seen_ns: Monotonic; 0 if not kept.
        clock: Between ranks with different clock numbers, the order of ends is unknown.
        exit_code: As Python's subprocess gives it (negative: killed by that signal), None if
            unseen.
        memory_kills: Processes that the kernel killed for lack of memory while we watched the rank.
        memory_kills_scope: Where these were: in its ``control group``, or on the ``machine``.
        met: Members of the group of its last collective; empty if unknown, or the group of all
            ranks.
        met_at: Frames from which it called that collective, outermost first.
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
    """Somebody asked the job to end: what its ranks did afterwards is not their fault.

    Attributes:
        by: The rest of "ended by", for example ``SIGINT from the terminal``.
        failed_before: Ranks that had already failed by themselves.
        suspected: Summary of the suspicion at that time; empty if there was none.
    """

    by: str
    failed_before: tuple[int, ...] = ()
    suspected: str = ""


class Aftermath(Struct, frozen=True, kw_only=True):
    """What happened to a job during a proven hang, ``after_s`` seconds after the proof.

    For example ``the job was ended by SIGINT from the terminal``.
    """

    after_s: float
    text: str


class PhaseTime(Struct, frozen=True):
    """Seconds that a rank has spent in a phase."""

    phase: Phase
    seconds: float


class Spent(Struct, frozen=True, kw_only=True):
    """How a rank spent its time, and what a restart would lose.

    Attributes:
        phases: Longest first.
        saves: Number of successful saves.
        unsaved_s: Seconds since the last save or load of a checkpoint was seen, or since the first
            step if there was none; exact to one polling interval. None if nobody watched.
        steps: Steps made from the first step seen to the last one.
        training_s: Seconds between these two steps.
        epoch_s: Mean seconds of an epoch; None before one was seen from beginning to end.
    """

    phases: tuple[PhaseTime, ...] = ()
    saves: int = 0
    unsaved_s: float | None = None
    steps: int = 0
    training_s: float = 0.0
    epoch_s: float | None = None


class StepMark(Struct, frozen=True, array_like=True):
    """Number of optimizer steps made by ``ago_s`` seconds before the case was taken."""

    step: int
    ago_s: float


class RankView(Struct, frozen=True, kw_only=True, gc=False):
    """One rank, seen from inside (its page) and outside (probes).

    Attributes:
        pid: None if the rank never had a process on a node that we see.
        rivals: Other processes that claim to be this rank.
        store_port: Port of the store that the ranks share, by its launcher; None if unknown.
        silent_for_s: Seconds since its last progress, by its page or else as seen from outside.
        idle_for_s: Seconds since it last used the processor or moved bytes, never more than
            ``silent_for_s``; the silence that counts for an idle rank.
        nothing_new_for_s: Seconds since it last did something new: beat, moved bytes, or was in a
            function where it had not been seen. It may run through its code all the while.
        goes_round: Since then its main thread was at several lines, or ran Python or napped at one.
        slept_for_s: Seconds for which its main thread had not run when `hangcheck attach` came, by
            the kernel's scheduler; None if not asked or not known.
        stopped_for_s: Seconds for which its watcher saw it stopped without a break; None if it is
            not stopped, or nobody watched.
        processes: Its own process first (role ``rank``), then its children.
        process_exit: Set when its process is gone.
        unheard_for_s: Seconds since its node last reported, if the node is silent: what the rank
            does now is unknown. 0 if the node reports.
        steps: Newest steps as its watcher saw them, oldest first, each exact to one polling
            interval; empty if the rank does not show its steps.
        step_sums: Sums of its step times during the run, oldest first; the newest are on its page.
    """

    rank: KnownRank
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
        """The training process itself; None if it was not seen."""
        return next((look for look in self.processes if look.role == "rank"), None)


class RankName(Struct, frozen=True, array_like=True, gc=False):
    """Which process a rank is."""

    rank: KnownRank
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None


class Alike(Struct, frozen=True, kw_only=True):
    """Ranks of a large job in the same situation: the view of one rank describes all.

    Attributes:
        rank: The rank that has a view in the case.
        ranks: All of these ranks, with that one, as ranges.
        names: Their processes, as far as known; the first few are.
        groups: For each group of that rank's record, the groups of all these ranks; the record
            itself then names no members.
    """

    rank: int
    ranks: str
    names: tuple[RankName, ...] = ()
    groups: tuple[GroupFamily, ...] = ()

    def __post_init__(self) -> None:
        parse_ranks(self.ranks, MOST_RANKS)


class Case(Struct, frozen=True, kw_only=True):
    """Evidence of all ranks at one moment, as saved in ``evidence/<n>/case.json``.

    Attributes:
        taken_ns: Monotonic time of the newest sample, on the sidecar's host.
        ended: The launched command has ended.
        exit_code: Of that command, if we are its parent.
        code: What the source says around the lines at which ranks are.
        left_running: Ids of processes that the command started and left behind when it ended.
        asked_end: Of a case that has ended: who asked for the end; None if nobody did.
        aftermath: Of the case of a hang: what happened during the hang; None until something does.
        slowness: Advancing ranks that are far below their own pace; None if there is none.
        alike: In a job of thousands of ranks: which other ranks the views of some ranks describe.
        left: The files behind a case that was read from files alone; None for a job that was seen.
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
