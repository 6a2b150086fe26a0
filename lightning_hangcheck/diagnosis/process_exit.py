"""How a rank's process ended, and whether by itself."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from lightning_hangcheck.model.beat import STARTING_SERVER
from lightning_hangcheck.reading.exit_codes import SHELL_SIGNAL_BASE, signal_name
from lightning_hangcheck.reading.knowledge.loading import causes_file
from lightning_hangcheck.reading.last_words import last_words, raised
from lightning_hangcheck.reading.records.gpu_out_of_memory import gpu_out_of_memory
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.case import RankView

FROM_OUTSIDE = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals by which launchers, schedulers and people end a job: no rank's own failure."""
TOLD_TO_END = ("SIGTERMException", "SignalException", "KeyboardInterrupt")
"""What is raised in a rank that somebody ends by a signal: by Lightning 2.6
(utilities/exceptions.py), torch's launcher, and Python."""
LOSSES = ("DistBackendError", "DistError", "DistNetworkError", "DistStoreError")
"""What torch raises where a peer or the ranks' store does not answer (torch.distributed, 2.13)."""
GLOO_TRANSPORT = "/gloo/transport/"
"""gloo raises RuntimeError for everything, and begins its message with the file that it comes from:
only of this folder it is a lost connection, or one that a peer left without an answer."""
OUR_SERVER = (
    "while torch's worker server was starting, which lightning-hangcheck asks for: it, and not the "
    "training, may be to blame; HANGCHECK_DISABLE=1 runs the job without it"
)
ASKED_TO_END = "SystemExit"
"""The exception of sys.exit: its words are no fault where the exit code is none."""
TOGETHER_NS = NANOSECONDS
"""Processes that somebody ends at once end within this time, a loaded machine's turns included."""
SHELL_SIGNALS = frozenset({signal.SIGINT, signal.SIGKILL, signal.SIGTERM})


def failed(view: RankView) -> bool:
    """Whether the rank ended badly, as far as its exit code or its own words tell."""
    code = view.process_exit.exit_code if view.process_exit is not None else None
    if code is not None:
        return code != 0
    return bool(last_words(view)) or (view.beat is not None and view.beat.ending == "raised")


def left_well(view: RankView) -> bool:
    """Whether a rank was seen to end without a fault, by its exit code or its own word."""
    code = view.process_exit.exit_code if view.process_exit is not None else None
    said = view.beat is not None and view.beat.ending == "finished"
    return code == 0 if code is not None else said


def broke_off(view: RankView) -> bool:
    """Whether a rank in a process group ended without a fault, but not as Python ends."""
    running = view.beat is not None and view.beat.ending == "running"
    return view.process_exit is not None and not failed(view) and running and _in_group(view)


def ended_from_outside(view: RankView) -> bool:
    """Whether a launcher, a scheduler or a person ended it.

    A signal may come to a rank that has raised and is still on its way out.
    """
    if last_words(view).startswith(TOLD_TO_END):
        return True
    return ending_signal(view) in FROM_OUTSIDE and not raised(view)


def ended_by_served(ranks: Iterable[RankView], *, several_nodes: bool = False) -> frozenset[int]:
    """Return the ranks that were ended, it seems, by whom their processes serve.

    Such a process trains beside its main thread, and who it serves ends it when he likes: an actor
    of Ray leaves with exit code 1 and without a word then (ray 2.60), when its job is cancelled or
    another rank has failed. One that went clearly before all others did so by itself.

    Args:
        ranks: Of the job.
        several_nodes: Moments of two nodes cannot be compared so closely.
    """
    ended = sorted(
        (view.process_exit.seen_ns, view.rank)
        for view in ranks
        if view.process_exit is not None and _left_training(view)
    )
    apart = len(ended) > 1 and ended[1][0] - ended[0][0] > TOGETHER_NS
    alone = apart and not several_nodes
    return frozenset(rank for _, rank in ended[alone:])


def _left_training(view: RankView) -> bool:
    code = view.process_exit.exit_code if view.process_exit is not None else None
    beside = view.beat is not None and view.beat.training == "beside"
    return beside and code is not None and code > 0 and not last_words(view)


def first_to_fail(
    readings: Sequence[RankReading], *, several_nodes: bool = False
) -> RankReading | None:
    """Return the first rank that failed by itself; of several nobody knows which, the lowest."""
    found = firsts_to_fail(readings, several_nodes=several_nodes)
    return found[0] if found else None


def firsts_to_fail(
    readings: Sequence[RankReading], *, several_nodes: bool = False
) -> tuple[RankReading, ...]:
    """Return the first rank that failed by itself, not because others had.

    Where clocks of nodes are not known against each other, the first by each of these clocks.

    Where all of them raised, the moment of that counts: a rank may take longer to its end than
    those that fail because of it. Else the order of their ends, in which one that a signal from
    outside ended on its way out comes last: whoever sent it had seen another one fail.

    Args:
        readings: The ranks.
        several_nodes: Moments of two nodes compare to a second or two only, while a rank that loses
            a peer fails at once: one that lost none counts before those that did.
    """
    served = ended_by_served((one.view for one in readings), several_nodes=several_nodes)
    own = [
        one
        for one in readings
        if failed(one.view) and not ended_from_outside(one.view) and one.rank not in served
    ]
    if several_nodes:
        own = [one for one in own if not lost_a_peer(one.view)] or own
    first_of = _raised_ns if all(raised(one.view) for one in own) else _order
    clocks: dict[int, list[RankReading]] = {}
    for one in own:
        clocks.setdefault(_clock(one), []).append(one)
    firsts = (min(ones, key=first_of) for ones in clocks.values())
    return tuple(sorted(firsts, key=lambda one: one.rank))


def left_before(first: RankReading, readings: Sequence[RankReading]) -> tuple[RankReading, ...]:
    """Return the ranks that left without a fault before this one failed, as far as that is known.

    Args:
        first: That one.
        readings: All ranks.
    """
    left = (one for one in readings if _left(one.view) and _clock(one) == _clock(first))
    return tuple(one for one in left if _ended_before(one, first))


def failed_for(first: RankReading, readings: Sequence[RankReading]) -> tuple[RankReading, ...]:
    """Return the ranks for want of which one failed; none where it failed by itself.

    It lost a peer or the ranks' store, and they had left. Of these count the ones that left in the
    middle: a rank that had destroyed its process groups was needed less than one that had not. A
    rank of which nobody knows when it left counts, too: it lost one that had.
    """
    if not lost_a_peer(first.view):
        return ()
    open_when = [one for one in readings if _left(one.view) and _clock(one) != _clock(first)]
    left = (*left_before(first, readings), *open_when)
    return tuple(one for one in left if _in_group(one.view)) or left


def lost_a_peer(view: RankView) -> bool:
    """Whether its last words are that a peer, or the ranks' store, is gone or does not answer."""
    words = last_words(view)
    return words.startswith(LOSSES) or GLOO_TRANSPORT in words


def _left(view: RankView) -> bool:
    """One that says that it has finished may be ended by its launcher on its way out."""
    if view.beat is not None and view.beat.ending == "finished" and ended_from_outside(view):
        return True
    return view.process_exit is not None and not failed(view)


def _in_group(view: RankView) -> bool:
    return view.beat is not None and view.beat.membership == "member"


def _ended_before(one: RankReading, first: RankReading) -> bool:
    """By their own word where both say it: the process of one may take long to its end."""
    own = one.view.beat
    if own is not None and own.ending == "finished" and raised(first.view):
        return own.ended_ns < _raised_ns(first)
    seen, failure = one.view.process_exit, first.view.process_exit
    return seen is not None and failure is not None and seen.order < failure.order


def how_it_ended(view: RankView) -> str:
    """Say how a rank's process ended, as the rest of a sentence about it.

    For example ``was killed by SIGKILL (usually the kernel's out-of-memory killer, ...)``.
    """
    words = last_words(view)
    said = f": {words}" if words else ""
    number = ending_signal(view)
    if number is not None:
        name = signal_name(number)
        why = killed_for_memory(view) if number == signal.SIGKILL else ""
        if number == signal.SIGABRT and _was_starting_server(view):
            why = OUR_SERVER
        why = why or causes_file().signals.get(name, "")
        return f"was killed by {name}{f' ({why})' if why else ''}{said}"
    code = view.process_exit.exit_code if view.process_exit is not None else None
    if view.beat is not None and view.beat.training == "over":
        return f"raised {words}" if words else "had finished"
    if code is None:
        return f"is gone, its exit code was not seen{said}"
    if code == 0:
        return "left with exit code 0"
    return f"exited with code {code}{said or ' and no last words'}"


def how_it_left(view: RankView) -> str:
    """Say how a rank left that did not fail, as far as that was seen."""
    if view.beat is not None and view.beat.ending == "finished":
        return "had finished"
    return how_it_ended(view) if left_well(view) else "left, with what exit code nobody saw,"


def _was_starting_server(view: RankView) -> bool:
    sections = view.beat.sections if view.beat is not None else ()
    return any(section.name == STARTING_SERVER for section in sections)


def killed_for_memory(view: RankView) -> str:
    """Say what the kernel's killer did meanwhile; empty if nothing. It counts, and names nobody."""
    kills = view.process_exit.memory_kills if view.process_exit is not None else 0
    if view.process_exit is None or not kills:
        return ""
    processes = "a process" if kills == 1 else f"{kills} processes"
    return (
        f"the kernel's out-of-memory killer ended {processes} of "
        f"{'its' if view.process_exit.memory_kills_scope != 'machine' else 'this'} "
        f"{view.process_exit.memory_kills_scope} meanwhile"
    )


def aspect_of(view: RankView) -> str:
    """Say which kind of end it was, for the remedies: see causes.toml."""
    if ended_from_outside(view):
        return "outside"
    if ending_signal(view) is not None:
        return "killed"
    if gpu_out_of_memory(last_words(view)) is not None:
        return "gpu_memory"
    clean = view.process_exit is not None and view.process_exit.exit_code == 0
    words = last_words(view)
    if words and not (clean and words.startswith(ASKED_TO_END)):
        return "raised"
    return "left" if clean else "silent"


def _clock(reading: RankReading) -> int:
    ended = reading.view.process_exit
    return ended.clock if ended is not None else 0


def _raised_ns(reading: RankReading) -> int:
    return reading.view.beat.ended_ns if reading.view.beat is not None else 0


def _order(reading: RankReading) -> tuple[bool, float]:
    """A rank whose end nobody saw comes last."""
    seen = reading.view.process_exit
    sent = ending_signal(reading.view) in FROM_OUTSIDE
    return sent, seen.order if seen is not None else float("inf")


def ending_signal(view: RankView) -> int | None:
    """Return the number of the signal that ended it; a shell between reports 128 plus that."""
    code = view.process_exit.exit_code if view.process_exit is not None else None
    if code is None:
        return None
    if code < 0:
        return -code
    return code - SHELL_SIGNAL_BASE if code - SHELL_SIGNAL_BASE in SHELL_SIGNALS else None
