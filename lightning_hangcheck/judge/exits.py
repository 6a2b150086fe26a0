"""How ranks ended: by themselves or not, who failed first, and who asked the job to end.

Rules that hold whatever a log says: launchers end all ranks because of one; exit code 1 says
nothing; a rank that lost a peer failed because of that peer.
"""

from __future__ import annotations

import math
import re
import signal
from typing import TYPE_CHECKING

from lightning_hangcheck.judge.alike import latest_frames
from lightning_hangcheck.judge.frames import rules_of
from lightning_hangcheck.judge.knowledge import causes_file
from lightning_hangcheck.judge.operations import open_operation
from lightning_hangcheck.judge.wording import SHELL_SIGNAL_BASE, duration, signal_name
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import AskedEnd, ProcessExit
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.words import STARTING_SERVER
from lightning_hangcheck.text.moments import read_utc
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.judge.job import JobReading, RankReading
    from lightning_hangcheck.model.case import Aftermath, RankView

FROM_OUTSIDE = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals with which launchers, schedulers and people end a job: no rank's own failure."""
TOLD_TO_END = ("SIGTERMException", "SignalException", "KeyboardInterrupt")
"""Raised in a rank that somebody ends by a signal: by Lightning 2.6 (utilities/exceptions.py),
torch's launcher, and Python."""
LOSSES = ("DistBackendError", "DistError", "DistNetworkError", "DistStoreError")
"""Raised by torch if a peer or the ranks' store does not answer (torch.distributed, 2.13)."""
GLOO_TRANSPORT = "/gloo/transport/"
"""gloo raises RuntimeError for everything, and its message begins with the source file. Only files
of this folder mean a lost connection, or a peer that left without an answer."""
OUT_OF_TIME = re.compile(r"timed? ?out", re.IGNORECASE)
CAME_FROM = " (from "
"""Stands before what an exception came from (`recorder.announcer.last_words`)."""
OUR_SERVER = (
    "while torch's worker server was starting, which lightning-hangcheck asks for: it, and not the "
    "training, may be to blame; HANGCHECK_DISABLE=1 runs the job without it"
)
ASKED_TO_END = "SystemExit"
"""The exception of sys.exit: its words are no fault if the exit code is none."""
TOGETHER_NS = NANOSECONDS
"""Processes that somebody ends together end within this time, even on a loaded machine."""
SHELL_SIGNALS = frozenset({signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
OF_NATIVE_CODE = frozenset(
    {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
)
"""Signals by which native code ends its own process; nobody sends them for lack of memory."""
WAY_OUT_NS = NANOSECONDS
"""A program still shows progress for this time while its exception leaves the last sections."""
_AT_ITS_END = re.compile(r" in (\S+ \([^()]+:\d{1,9}\))\Z")
"""The place that the recorder writes after the message (`recorder.announcer.last_words`)."""
BY_SERVED = "whom its processes serve (as actors serve Ray)"


# One rank. If no end was seen, or it has no page, these empty facts stand for it.

NO_END, NO_PAGE = ProcessExit(order=0, at=""), Beat(pid=0)


def _exit(view: RankView) -> ProcessExit:
    return view.process_exit or NO_END


def page_of(view: RankView) -> Beat:
    """Return its page; one that says nothing where it has none."""
    return view.beat or NO_PAGE


def last_words(view: RankView) -> str:
    """Return a rank's last exception in one line, empty if it said nothing."""
    return _exit(view).last_words or page_of(view).last_words


def raised(view: RankView) -> bool:
    """Whether an exception ended the program (one that was caught does not count)."""
    beat = page_of(view)
    if beat.ending != "raised" or not beat.ended_ns:
        return False
    return beat.last_beat_ns - beat.ended_ns < WAY_OUT_NS


def raised_at(view: RankView) -> Frame | None:
    """Return the user's line from which the exception came that ended a rank."""
    if view.process_exit is None or not raised(view):
        return None
    match = _AT_ITS_END.search(last_words(view))
    return Frame.parse(match[1]) if match is not None else None


def failed(view: RankView) -> bool:
    """Whether the rank ended badly, by its exit code or its own last words."""
    code = _exit(view).exit_code
    if code is not None:
        return code != 0
    return bool(last_words(view)) or page_of(view).ending == "raised"


def left_well(view: RankView) -> bool:
    """Whether a rank was seen to end without a fault, by its exit code or its own words."""
    code = _exit(view).exit_code
    return code == 0 if code is not None else page_of(view).ending == "finished"


def ended_from_outside(view: RankView) -> bool:
    """Whether a launcher, scheduler or person ended it, not on its way out after a failure."""
    if last_words(view).startswith(TOLD_TO_END):
        return True
    return ending_signal(view) in FROM_OUTSIDE and not raised(view)


def killed_by_somebody(view: RankView) -> bool:
    """Whether it was killed by SIGKILL, and not by the kernel for want of memory."""
    return ending_signal(view) == signal.SIGKILL and not _exit(view).memory_kills


def ended_on_its_way_out(view: RankView) -> bool:
    """Whether its own exception was first, and then somebody's signal ended it."""
    sent = ending_signal(view) in FROM_OUTSIDE or killed_by_somebody(view)
    return sent and raised(view)


def lost_a_peer(view: RankView) -> bool:
    """Whether its last words say that a peer or the store is gone or does not answer.

    What it raised may have come from that: ``TrainingError: step 5 (from DistStoreError: ...)``.
    """
    words = last_words(view)
    came_from = words.partition(CAME_FROM)[2]
    return words.startswith(LOSSES) or came_from.startswith(LOSSES) or GLOO_TRANSPORT in words


def gave_up_waiting(view: RankView) -> bool:
    """Whether it ended because its wait exceeded a time limit.

    Its last words say so, or NCCL's watchdog aborted it (torch 2.11, ProcessGroupNCCL.cpp,
    ``checkTimeout``).
    """
    if lost_a_peer(view):
        return OUT_OF_TIME.search(last_words(view)) is not None
    found, end = open_operation(view), view.process_exit
    if found is None or end is None or ending_signal(view) != signal.SIGABRT:
        return False
    record, entry = found
    open_s = read_utc(end.at).timestamp() - entry.created_ns / NANOSECONDS
    return 0 < record.limit_s <= open_s


def ending_signal(view: RankView) -> int | None:
    """Return the number of the signal that ended it; a shell between reports 128 plus that."""
    code = _exit(view).exit_code
    if code is None or code < 0:
        return None if code is None else -code
    return code - SHELL_SIGNAL_BASE if code - SHELL_SIGNAL_BASE in SHELL_SIGNALS else None


def aspect_of(view: RankView) -> str:
    """Return the kind of end for choosing remedies: see causes.toml."""
    if ended_from_outside(view):
        return "outside"
    if (number := ending_signal(view)) is not None and not ended_on_its_way_out(view):
        return "aborted" if number in OF_NATIVE_CODE else "killed"
    if last_words(view).startswith(OUT_OF_MEMORY):
        return "gpu_memory"
    clean, words = _exit(view).exit_code == 0, last_words(view)
    if words and not (clean and words.startswith(ASKED_TO_END)):
        return "raised"
    return "left" if clean else "silent"


def how_it_ended(view: RankView) -> str:
    """Say how a rank's process ended: ``was killed by SIGKILL (usually the kernel's ...)``."""
    words = last_words(view)
    said = f": {words}" if words else ""
    number, code = ending_signal(view), _exit(view).exit_code
    if number is not None:
        name = signal_name(number)
        if words and ended_on_its_way_out(view):
            return f"raised {words}, and {name} ended it on its way out"
        why = killed_for_memory(view) if number == signal.SIGKILL else ""
        starting = any(section.name == STARTING_SERVER for section in page_of(view).sections)
        if number == signal.SIGABRT and starting:
            why = OUR_SERVER
        why = why or causes_file().signals.get(name, "")
        return f"was killed by {name}{f' ({why})' if why else ''}{said}"
    if page_of(view).training == "over":
        return f"raised {words}" if words else "had finished"
    if code is None:
        return f"is gone, its exit code is unknown{said}"
    if code == 0:
        return "left with exit code 0"
    return f"exited with code {code}{said or ' and no last words'}"


def killed_for_memory(view: RankView) -> str:
    """Say what the kernel's out-of-memory killer did meanwhile; it counts, and names nobody."""
    seen = _exit(view)
    if not seen.memory_kills:
        return ""
    processes = "a process" if seen.memory_kills == 1 else f"{seen.memory_kills} processes"
    whose = "this" if seen.memory_kills_scope == "machine" else "its"
    return (
        f"the kernel's out-of-memory killer ended {processes} of "
        f"{whose} {seen.memory_kills_scope} meanwhile"
    )


# All ranks: which was first.


def firsts_to_fail(
    readings: Sequence[RankReading], *, several_nodes: bool = False
) -> tuple[RankReading, ...]:
    """Return, for each clock's ranks, the first that failed by itself and not because of others.

    If all raised an exception, the moment of raising counts. Otherwise the order of their ends, in
    which a rank that a signal from outside ended comes last: the sender had seen another rank fail.
    """
    served = ended_by_served((reading.view for reading in readings), several_nodes=several_nodes)
    own = [
        reading
        for reading in readings
        if failed(reading.view)
        and not ended_from_outside(reading.view)
        and reading.rank not in served
    ]
    if several_nodes:
        own = [reading for reading in own if not lost_a_peer(reading.view)] or own
    all_raised = all(raised(reading.view) for reading in own)

    def ended_at(reading: RankReading) -> tuple[bool, float]:
        if all_raised:
            return False, page_of(reading.view).ended_ns
        sent, seen = ending_signal(reading.view) in FROM_OUTSIDE, reading.view.process_exit
        return sent, seen.order if seen is not None else math.inf  # an unseen end counts as last

    firsts: dict[int, RankReading] = {}
    for failing in sorted(own, key=ended_at):
        firsts.setdefault(_exit(failing.view).clock, failing)
    return tuple(sorted(firsts.values(), key=lambda first: first.rank))


def left_before(
    first: RankReading, readings: Sequence[RankReading], *, if_open: bool = False
) -> tuple[RankReading, ...]:
    """Return the ranks that left without a fault before this one failed.

    By their own word where both say it: the process of one may take long to its end. ``if_open``:
    what to take of a rank of which nobody knows when it left, by another clock.
    """
    failure = first.view.process_exit

    def before(reading: RankReading) -> bool:
        seen, finished = reading.view.process_exit, page_of(reading.view).ending == "finished"
        ended = finished and ended_from_outside(reading.view)
        if not ended and (seen is None or failed(reading.view)):
            return False
        if _exit(reading.view).clock != _exit(first.view).clock:
            return if_open
        if finished and raised(first.view):
            return page_of(reading.view).ended_ns < page_of(first.view).ended_ns
        return seen is not None and failure is not None and seen.order < failure.order

    return tuple(filter(before, readings))


def failed_for(first: RankReading, readings: Sequence[RankReading]) -> tuple[RankReading, ...]:
    """Return the ranks for want of which one failed; none where it failed by itself.

    It lost a peer or the store, and they had left. Of these count the ones that it was to meet in
    the call that raised, where that is known, and that left in the middle, without destroying their
    process groups.
    """
    if not lost_a_peer(first.view):
        return ()
    left = left_before(first, readings, if_open=True)
    end, place = _exit(first.view), raised_at(first.view)
    if place is not None and any(
        frame.line == place.line and frame.file.endswith(place.file) for frame in end.met_at
    ):
        left = tuple(reading for reading in left if reading.rank in end.met) or left
    return (
        tuple(reading for reading in left if page_of(reading.view).membership == "member") or left
    )


def ended_by_served(ranks: Iterable[RankView], *, several_nodes: bool = False) -> frozenset[int]:
    """Return the ranks that were ended, it seems, by whom their processes serve.

    An actor of Ray leaves with exit code 1 and without a word (2.60) when its job is cancelled or
    another rank has failed. One that went clearly before all others did so by itself.
    """
    ended = sorted(
        (view.process_exit.seen_ns, view.rank)
        for view in ranks
        if view.process_exit is not None
        and page_of(view).training == "beside"
        and (view.process_exit.exit_code or 0) > 0
        and not last_words(view)
    )
    apart = len(ended) > 1 and ended[1][0] - ended[0][0] > TOGETHER_NS
    alone = apart and not several_nodes
    return frozenset(rank for _, rank in ended[alone:])


# Was the end asked for?


def asked_by(view: RankView) -> str | None:
    """Say who asked a rank to end: by its last words, its signal, or a handler on its stack."""
    if words := _by_words(view):
        return f"{words} in rank {view.rank}"
    ended, own = ending_signal(view), view.own_process
    number = signal.Signals(ended).name if ended in FROM_OUTSIDE and ended is not None else ""
    if not number and own is not None and view.process_exit is None:
        rules = (rule for frame in latest_frames(own) for rule in rules_of(frame))
        number = next((rule.handles for rule in rules if rule.handles), "")
    return f"{number} to rank {view.rank}" if number else None


def _by_words(view: RankView) -> str:
    """One that caught the exception and went on shows no way out."""
    tears_down = page_of(view).phase == "teardown"
    leaving = view.process_exit is not None or raised(view) or tears_down
    words = last_words(view) if leaving else ""
    return re.split("[: ]", words)[0] if words.startswith(TOLD_TO_END) else ""


def shown_by(views: Sequence[RankView]) -> str | None:
    """Say who asked a job to end that is still there, as its ranks show; None where none shows it.

    One rank that answers a signal speaks for all: who waits in native code cannot. Where a rank
    ended by itself, its launcher ends the others for that.
    """
    shown = {view.rank: asked_by(view) for view in views}
    gone = [view for view in views if view.process_exit is not None]
    if any(not (shown[view.rank] or left_well(view) or lost_a_peer(view)) for view in gone):
        return None
    speak = (view for view in views if view.process_exit is None or _by_words(view))
    return next(filter(None, (shown[view.rank] for view in speak)), None)


def asked_end(job: JobReading) -> AskedEnd | None:
    """Return who asked the whole job to end: the launcher's word, or what ranks show at the end.

    A rank that failed by itself is taken to have done so before; a job that ended well was not
    ended.
    """
    case = job.case
    if case.asked_end is not None or case.exit_code == 0:
        return case.asked_end
    views = [reading.view for reading in job.ranks.values()]
    by = next(filter(None, map(asked_by, views)), None)
    if by is None and ended_by_served(views, several_nodes=case.run.nnodes > 1):
        by = BY_SERVED
    return AskedEnd(by=by, failed_before=tuple(job.ranks)) if by is not None else None


def aftermath_sentence(aftermath: Aftermath) -> str:
    """Say what happened after a hang was proven: ``12 s later the job was ended by ...``."""
    later = f"{duration(aftermath.after_s)} later" if aftermath.after_s >= 1 else "then"
    return f"{later} {aftermath.text}"


# A GPU that was full.

OUT_OF_MEMORY = "OutOfMemoryError"
"""torch.OutOfMemoryError; Python's own is MemoryError."""
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE = rf"(\d+(?:\.\d+)? (?:{'|'.join(UNITS)}))"
WANTED = re.compile(rf"Tried to allocate {SIZE}")
FREE = re.compile(rf"of which {SIZE} is free")
UNUSED = re.compile(  # the last is cut: texts have 300 characters
    rf"{SIZE} is reserved by PyTorch but unallocated|allocated by PyTorch, and {SIZE} is"
)
"""What torch says when a GPU has no room (c10/cuda/CUDACachingAllocator.cpp, torch 2.5 to 2.13)."""


def kept_in_pieces(last_words: str) -> str:
    """Return how much memory of a full GPU its allocator kept, where that would have been enough.

    It is kept in pieces of which none was large enough: ``3.00 GiB``; empty where nothing tells so.
    """
    matches = [pattern.search(last_words) for pattern in (WANTED, FREE, UNUSED)]
    if not last_words.startswith(OUT_OF_MEMORY) or None in matches:
        return ""
    texts = [next(filter(None, found.groups())) for found in matches if found is not None]
    wanted, free, unused = map(_bytes, texts)
    return texts[-1] if 0 < wanted - free <= unused else ""


def _bytes(size: str) -> float:
    number, unit = size.split()
    return float(number) * UNITS[unit]
