"""rank_stalled, spinning, logger_init, model_load: a rank does not get on in its own code.

They are what is left where nothing more specific is known: it stands still, it burns CPU in the
same functions or waits for a GPU that never ends, it creates the experiment logger, or it loads the
model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.who_ends import who_ends
from lightning_hangcheck.gather.stack_groups import latest_frames
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.activity.rank_activity import read_process_activity
from lightning_hangcheck.reading.place import is_exiting, users_place
from lightning_hangcheck.reading.waits.free_threads import free_threads
from lightning_hangcheck.reading.waits.kernel_targets import in_words, pids_here
from lightning_hangcheck.reading.waits.thread_locks import waits_in_vain
from lightning_hangcheck.reading.waits.wait_chain import awaits_executor
from lightning_hangcheck.reading.wording import (
    duration,
    join,
    name_ranks,
    process_name,
    verb,
    within,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.diagnosis.rules.contract import EndedBy
    from lightning_hangcheck.model.evidence import Frame, ProcessLook, WaitTarget
    from lightning_hangcheck.model.naming.slugs import Cause


def rank_stalled(situation: Situation) -> Finding | None:
    """Blame the suspects that are idle.

    Proven where the first of them and a child of it wait for each other.
    """
    idle = situation.suspects_that_are("idle")
    if not idle:
        return None
    first = idle[0]
    aspect, words = _exit_waits(first) or _waits(situation.job, first)
    circle = [one for one in situation.deadlocked(first) if one not in idle]
    deadlocked = aspect == "child" and situation.deadlocked(first) == (first,)
    sentence = join(
        _stood_still([reading.rank for reading in idle], idle, aspect) + words,
        "that waits for it at the other end of a pipe" if deadlocked else "",
        _in_circle(circle),
    )
    finding = blame(
        idle,
        cause="rank_stalled",
        ended_by=who_ends(situation, idle),
        confidence=0.85 if situation.waited_for else 0.5,
        sentence=sentence,
        waited_for=situation.waited_for,
        aspect=aspect,
        evidence=[
            EvidenceItem("kernel", reading.rank, f"{reading.waiter} is {in_words(target)}")
            for reading in idle
            for target in reading.targets[:1]
        ],
    )
    return replace(finding, culprits=(*finding.culprits, *(one.rank for one in circle)))


def _in_circle(waiting: Sequence[RankReading]) -> str:
    """Say where the others stand of a circle that nobody leaves: they are no less to blame."""
    if not waiting:
        return ""
    ranks, first = [one.rank for one in waiting], waiting[0]
    where = join(f"in {first.wait.name}" if first.wait is not None else "", within(first.place))
    return f"while {name_ranks(ranks)} {verb(ranks, 'waits', 'wait')} for it {where}"


RANK_STALLED = Rule(cause="rank_stalled", needs=("stacks",), find=rank_stalled)


def spinning(situation: Situation) -> Finding | None:
    """Blame the suspects that are busy without moving; a busy GPU counts for who waits for it."""
    busy = situation.suspects_that_are("busy")
    if not busy:
        return None
    for_gpu = all(one.rank_activity.for_gpu for one in busy)
    doing = "waited for a busy GPU" if for_gpu else "burnt CPU"
    if all(one.works_in_child for one in busy):
        doing = "waited for a process of its own that burns CPU"
    finding = _blame_in_place(
        situation,
        busy,
        cause="spinning",
        ended_by=who_ends(situation, busy),
        doing=doing,
        manner="without advancing",
        confidence=0.7 if situation.waited_for else 0.4,
    )
    return replace(finding, aspect="gpu" if for_gpu else "cpu")


SPINNING = Rule(cause="spinning", needs=("stacks",), find=spinning)
NO_CAUSE_BY_ITSELF = frozenset({"socket", "futex", "shared", "time", "other", "process", "pipe"})
"""Waits that the creation of a logger explains. A file or a lock on one is a cause of its own; a
child or a pipe would only be `rank_stalled`, which the contract ranks below."""


def logger_init(situation: Situation) -> Finding | None:
    """Blame suspects whose calls show, or whose sections or functions say, that they create it.

    A function's name is enough where nothing more is known than a connection that does not answer.
    """
    creating = [
        reading
        for reading in situation.suspects_that_are("idle", "busy", "unseen")
        if reading.shows("logger_init") or _creates_by_name(reading)
    ]
    if not creating:
        return None
    target = next(iter(creating[0].targets), None)
    finding = _blame_in_place(
        situation,
        creating,
        cause="logger_init",
        ended_by=who_ends(situation, creating),
        doing="been creating the experiment logger",
        manner=f"without coming back{f', {in_words(target)}' if target is not None else ''}",
        confidence=_confidence(situation, creating[0]),
    )
    return replace(finding, aspect="own" if _is_own(creating[0]) else "wandb")


LOGGER_INIT = Rule(cause="logger_init", needs=(), find=logger_init)


def _is_own(reading: RankReading) -> bool:
    """Whether it creates a logger that the user wrote: it stands there, and W&B is nowhere seen."""
    frames = (*reading.frames, *reading.rank_activity.stuck_frames)
    sections = reading.view.beat.sections if reading.view.beat is not None else ()
    seen = [*(frame.file for frame in frames), *(one.name for one in sections)]
    inner = reading.rank_activity.stuck_frames or reading.frames
    here = bool(inner) and reading.place == inner[-1]
    return here and reading.seen_by_calls and not any("wandb" in name.lower() for name in seen)


def _creates_by_name(reading: RankReading) -> bool:
    """Whether an idle rank is in a function that says that it creates a logger."""
    if reading.phase != "logger_init" or reading.activity != "idle":
        return False
    return all(target.kind in NO_CAUSE_BY_ITSELF for target in reading.targets)


def model_load(situation: Situation) -> Finding | None:
    """Blame the idle suspects whose calls show, or whose open section says, that they load it."""
    loading = [one for one in situation.suspects_that_are("idle") if one.shows("model_load")]
    if not loading:
        return None
    return _blame_in_place(
        situation,
        loading,
        cause="model_load",
        ended_by=who_ends(situation, loading),
        doing="stood still while loading the model",
        manner="without using the CPU",
        confidence=(0.7 if loading[0].seen_by_calls else 0.6) if situation.waited_for else 0.4,
    )


MODEL_LOAD = Rule(cause="model_load", needs=("stacks",), find=model_load)
MOST_NAMED = 4
"""Processes that one sentence names."""
WRITES = frozenset({"write", "writev"})
EXITS = ("exit_thread", "exit_queue")
"""Aspects of an exit that waits."""


def _stood_still(who: Sequence[int], idle: Sequence[RankReading], aspect: str | None) -> str:
    since = duration(max(reading.silence_s for reading in idle))
    if aspect in EXITS:
        return f"{name_ranks(who)} {verb(who, 'has', 'have')} waited {since} at the exit"
    return join(
        name_ranks(who),
        verb(who, "has", "have"),
        "stood still",
        within(idle[0].place),
        f"for {since} without using the CPU",
    )


def _exit_waits(reading: RankReading) -> tuple[str, str] | None:
    """Say for which of its threads the exit of a rank's interpreter waits, and what that does.

    Every thread that is no daemon is waited for, and the one that feeds a multiprocessing.Queue
    until its pipe has taken all.
    """
    stuck = reading.rank_activity.stuck
    if stuck is None or not stuck.frames or not is_exiting(reading.frames):
        return None
    place, inner = users_place(stuck.frames), stuck.frames[-1]
    stands = within(place) or within(inner)
    told = f" of the interpreter for its thread {stuck.label}, which"
    if any(map(_feeds_queue, stuck.frames)):
        fills = "writes to a multiprocessing.Queue whose pipe is full,"
        return "exit_queue", join(told, fills, stands)
    called = stuck.frames[stuck.frames.index(place) + 1 :] if place in stuck.frames else ()
    waits = next(map(in_words, reading.targets), f"in {called[0].function}" if called else "")
    return "exit_thread", join(told, "stands", stands) + (f", {waits}" if waits else "")


def _feeds_queue(frame: Frame) -> bool:
    of_library = frame.file.endswith("/multiprocessing/queues.py")
    return of_library and frame.function.rpartition(".")[2] == "_feed"


def _waits(job: JobReading, reading: RankReading) -> tuple[str | None, str]:
    """Return what the rank waits for: an aspect of the cause, and words."""
    if reading.at_store:
        return "store", ", waiting for a key of the store that nobody sets"
    forked = _forked_child(reading)
    if forked is not None:
        place = users_place(latest_frames(forked))
        stands = join("waits", within(place), "for a lock of which it has a copy alone")
        return "forked", f", waiting for its child pid {forked.pid}, which {stands}"
    for target in reading.targets:
        if target.kind == "process":
            child = ", ".join(map(process_name, target.holders)) or f"pid {target.name}"
            stopped = ", which is stopped by a signal" if _stopped(reading, target) else ""
            return "child", f", waiting for the end of its child {child}{stopped}"
        if target.kind == "terminal" or (target.kind == "pipe" and target.call == "read"):
            return _nothing_written(reading, target)
        if target.kind == "pipe" and target.call in WRITES and target.holders:
            readers = " and ".join(map(process_name, target.holders[:MOST_NAMED]))
            return "full_pipe", f", writing to a full pipe that {readers} should read"
        if target.kind == "socket" and (asked := _ranks_at(job, reading, target)):
            return "peer", f", waiting at {target.name} for the answer of {name_ranks(asked)}"
        if target.kind == "shared" and target.holders:
            sharing = ", ".join(map(process_name, target.holders[:MOST_NAMED]))
            return None, f", waiting for a semaphore or lock shared with {sharing}"
    own = reading.view.own_process
    if own is not None and waits_in_vain(own):
        words = ", waiting for threads of its own of which none is left to go on"
        return "own_pool" if _in_own_pool(reading) else None, words
    return None, ""


def _ranks_at(job: JobReading, reading: RankReading, target: WaitTarget) -> list[int]:
    """Return the ranks at the other end of a connection."""
    found = (job.rank_of(reading, holder) for holder in target.holders)
    return [one.rank for one in found if one is not None and one is not reading]


def _stopped(reading: RankReading, target: WaitTarget) -> bool:
    pids = {holder.pid for holder in target.holders} | {int(target.name or 0)}
    looks = (one for one in reading.view.processes if one.role != "rank" and one.pid in pids)
    return any(read_process_activity(one).activity == "stopped" for one in looks)


def _nothing_written(reading: RankReading, target: WaitTarget) -> tuple[str | None, str]:
    """Say who does not write what a rank, or a thread of it, reads."""
    own = reading.view.own_process
    others = [one for one in target.holders if one.pid != reading.view.pid]
    if others:
        which = "" if reading.waiter == "main thread" else f"its {reading.waiter} "
        started = {one.pid for one in reading.view.processes if one.role == "worker"}
        aspect = "worker" if others[0].pid in started else "child"
        return aspect, f", {which}reading what {process_name(others[0])} does not write"
    if target.holders and own is not None and free_threads(own):
        return None, ", reading from a pipe what no thread of its own has written"
    return "input", f", reading input from {target.name} that nobody gives it"


def _in_own_pool(reading: RankReading) -> bool:
    """Whether its wait ends in a task of an executor that waits for tasks of one."""
    stuck = reading.rank_activity.stuck
    if stuck is None or not awaits_executor(stuck):
        return False
    return any(
        one.function == "_worker" and one.file.endswith("/concurrent/futures/thread.py")
        for one in stuck.frames
    )


def _forked_child(reading: RankReading) -> ProcessLook | None:
    """Return the child that it waits for, and that was forked while another thread held a lock.

    A child that runs another program has no copy of anything.
    """
    awaited = {pid for target in reading.own_targets for pid in pids_here(target)}
    children = [
        one for one in reading.view.processes if one.role == "worker" and one.pid in awaited
    ]
    return next((one for one in children if waits_in_vain(one)), None)


def _blame_in_place(
    situation: Situation,
    culprits: Sequence[RankReading],
    cause: Cause,
    ended_by: EndedBy,
    *,
    doing: str,
    manner: str,
    confidence: float,
) -> Finding:
    """Blame ranks in one sentence: ``rank 1 has DOING in load (train.py:41) for 31 s MANNER``.

    Args:
        situation: At hand.
        culprits: At least one; the first gives the place.
        cause: Slug.
        ended_by: As in `Finding`.
        doing: Behind "has" or "have".
        manner: What was missing all that time.
        confidence: As in `Finding`.
    """
    who = [reading.rank for reading in culprits]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        doing,
        within(culprits[0].place),
        f"for {duration(max(reading.silence_s for reading in culprits))} {manner}",
    )
    return blame(
        culprits,
        cause=cause,
        ended_by=ended_by,
        confidence=confidence,
        sentence=sentence,
        waited_for=situation.waited_for,
    )


def _confidence(situation: Situation, first: RankReading) -> float:
    if first.activity == "unseen" or not situation.waited_for:
        return 0.6 if first.seen_by_calls else 0.5
    return 0.9 if first.seen_by_calls else 0.75
