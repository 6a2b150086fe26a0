"""Causes within a rank's own processes: its code, its threads, its DataLoader's workers.

dataloader_worker, thread_deadlock, gil_held, logger_init, model_load. If nothing more specific is
known: rank_stalled if the rank stands still, spinning if it burns CPU in the same functions or
waits for a GPU that never ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.judge import processes, threads
from lightning_hangcheck.judge.activity import read_process_activity
from lightning_hangcheck.judge.alike import latest_frames
from lightning_hangcheck.judge.frames import functions_in, is_exiting, users_place
from lightning_hangcheck.judge.processes import ProcessReading, in_words, read_process
from lightning_hangcheck.judge.rule import MOST_SHOWN, Seen, blame, filling, rule, say
from lightning_hangcheck.judge.wording import duration, join, name_ranks, process_name, within
from lightning_hangcheck.model.code_owner import program_of
from lightning_hangcheck.model.verdict import EvidenceItem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.judge.job import JobReading, RankReading
    from lightning_hangcheck.judge.rule import Finding, Situation
    from lightning_hangcheck.model.evidence import Frame, ProcessLook, WaitTarget

WORST_FIRST = ("gone", "stopped", "idle", "busy")
"""Order of activities among workers that owe a batch; all others come after them. Of equals a
worker with a place comes first."""
POOLS = ("/multiprocessing/pool.py", "/multiprocess/pool.py")
"""Python's, and those of the package that copies it to pickle more (used by datasets)."""
AT_EXIT = "{who} [is|are] stuck at the exit of the interpreter: waiting {since}{waits} {circle}"


@rule("dataloader_worker", of=("idle", "busy"), order=80, sure=(0.6, 0.6), needs=("stacks",))
def dataloader_worker(reading: RankReading) -> Seen | None:
    """The rank waits for its next batch; place and evidence are its worker's."""
    if reading.wait_kind != "dataloader":
        return None
    text = "{who} [has|have] waited {since} for [its|their] next batch {at}: {does}"
    worst = dict(zip(WORST_FIRST, range(-len(WORST_FIRST), 0), strict=True))
    worker = min(
        reading.owing_workers,
        key=lambda each: (worst.get(reading.activity_of(each), 0), _place_of(each) is None),
        default=None,
    )
    if worker is None:
        only_stacks = all(moment.kernel is None for moment in reading.own.moments)
        if any(target.kind != "pipe" for target in reading.targets):
            return None  # a thread of its own makes the batches, and waits for something else
        seen = "its worker processes were not seen"
        does = seen if only_stacks else "none of its worker processes is left"
        return Seen(text=text, words={"does": does}, alike=reading.rank)
    activity, read = reading.activity_of(worker), read_process(worker)
    vain = _in_vain(read) if activity == "idle" and read.waits_in_vain else None
    others = (  # what comes from another process: its end, or data by a pipe
        each
        for each in (() if read.wants_work else read.targets)
        if each.kind == "process"
        or (each.kind == "pipe" and any(held.pid != worker.pid for held in each.holders))
    )
    awaited = next(others, None) if activity == "idle" else None
    place = _place_of(worker)
    at = within(place)
    if unseen := reading.unseen_workers:
        many = f"one of {len(unseen)} more, which were" if len(unseen) > 1 else "another, which was"
        does = f"wants work, so {many} not looked at (pid {unseen[-1]}), makes it"
        at, place = "", None
    elif activity == "gone":
        does = "is dead"
    elif activity == "stopped":
        does = join("is stopped by a signal", at)
    elif not at:
        does = "delivers none"
    elif vain is not None:
        does = f"waits {at} {vain[0]}"
    else:
        does = f"is {'busy' if activity == 'busy' else 'stuck'} {at}"
        does += f", {in_words(awaited)}" if awaited is not None else ""
    return Seen(
        text=text,  # by its process id: torch's own number is not seen
        words={"does": f"worker pid {worker.pid} {does}"},
        sure=(0.9, 0.6),
        aspect=vain[1] if vain is not None else "child" if awaited is not None else None,
        place=place,
        alike=reading.rank,
        evidence=[
            ("worker", _described(reading, each)) for each in reading.owing_workers[:MOST_SHOWN]
        ],
    )


def _in_vain(process: ProcessReading) -> tuple[str, str | None]:
    """Return what the rank waits for that nobody is left to bring, and the aspect of that.

    A fork copies locks, but not the threads that hold them.
    """
    main = next((moment.threads[0] for moment in process.complete[-1:] if moment.threads), None)
    if main is not None and threads.in_lock(main.stack):
        aspect = "forked" if process.was_forked else "own_lock"
        return "for a lock that none of its threads can release", aspect
    return "for what none of its threads is left to bring", None


def _place_of(worker: ProcessLook) -> Frame | None:
    program = program_of(functions_in(latest_frames(worker)))
    return users_place(read_process(worker).frames, program)


def _described(reading: RankReading, worker: ProcessLook) -> str:
    activity, place = reading.activity_of(worker), _place_of(worker)
    kernel = worker.samples[-1].kernel if worker.samples else None
    channel = kernel.threads[0].wchan if kernel is not None and kernel.threads else ""
    waits_in = [f"kernel waits in {channel}"] if channel else []
    is_in = f"worker pid {worker.pid} is {activity}{f' in {place}' if place is not None else ''}"
    targets = read_process(worker).targets[:1] if activity == "idle" else ()
    return ", ".join((is_in, *waits_in, *map(in_words, targets)))


@rule("thread_deadlock", of=("idle",), order=100, sure=(0.7, 0.7, 0.95), needs=("stacks", "kernel"))
def thread_deadlock(reading: RankReading) -> Seen | None:
    """The rank's threads are in locks that only they could release.

    If the thread that may release one waits for something with a name, that is the cause instead.
    """
    locked = reading.own.locked if not reading.targets else ()
    if not locked:
        return None
    # whether the main thread itself is in no lock
    first, awaits = locked[0], locked[0].tid != reading.own.look.pid
    stands = (users_place(thread.frames) for thread in locked)
    places = [*dict.fromkeys(place for place in stands if place is not None)]
    at = " and ".join(within(place) for place in places[:3])
    each_others = [each.held_by for each in locked] == [each.tid for each in reversed(locked)]
    if awaits and len(locked) == 1:
        waiting = f"for its thread {first.label}, which waits"
        unreleased = "for a lock that no running thread can release"
        locks = join(within(users_place(reading.frames)), waiting, at, unreleased)
    elif first.holds_lock:
        locks = f"{at} for a lock that it already holds, taken by an outer call"
    elif len(locked) == 1:
        locks = f"{at} for a lock that none of its running threads can release"
    elif len(places) == 2 and len(locked) == 2 and each_others:
        inner, outer = places
        waiting = f"which waits {within(outer)} for a lock that {inner.function} holds"
        locks = f"{within(inner)} for a lock that its thread {locked[1].label} holds, {waiting}"
    else:
        locks = f"with {len(locked)} threads that wait for each other's locks: {at}"
    return Seen(
        text="{who} [has|have] waited {since} [|each] {locks}",
        words={"locks": locks},
        place=places[0] if places else None,
        aspect="awaited" if awaits else None,
        evidence=[
            ("stack", f"thread {thread.label} takes a lock at {thread.frames[-1]}")
            for thread in locked
        ],
    )


@rule("gil_held", of=("idle", "busy"), order=110, sure=(0.9, 0.6), needs=("stacks",))
def gil_held(reading: RankReading) -> Seen | None:
    """The rank's pulse stands still, or it sleeps while it holds the interpreter lock.

    A call that waits for a file has a cause of its own: safetensors opens files with the lock held.
    """
    in_file = any(target.kind in ("file", "fifo") for target in reading.targets)
    keeper = threads.interpreter_lock_keeper(reading.own.complete, reading.view.beat)
    if in_file or keeper is None:
        return None
    return Seen(
        text="{who} [keeps|keep] the interpreter lock {at} : a C call has not returned for "
        "{since}, and no other thread of the process can run"
    )


@rule("logger_init", of=("idle", "busy", "unseen"), order=130)
def logger_init(reading: RankReading, situation: Situation) -> Seen | None:
    """The rank's calls or its open section show that it creates the experiment logger.

    A name is no proof: `create_logger` may do anything. The logger is the user's own if W&B is not
    seen.
    """
    if not reading.shows("logger_init"):
        return None
    unsure = reading.activity == "unseen" or not situation.waited_for
    sure = (0.6 if unsure else 0.9) if reading.shown_by_calls else (0.5 if unsure else 0.75)
    files = [frame.file for frame in (*reading.frames, *reading.stuck_frames)]
    named = any(
        "wandb" in name.lower() for name in (*files, *(each.name for each in reading.beat.sections))
    )
    here = reading.place in (reading.stuck_frames or reading.frames)[-1:]
    return Seen(
        text="{who} [is|are] stuck creating the experiment logger {at} : it has not returned for "
        "{since}{waits}",
        words={
            "waits": "".join(f", {in_words(each)}" for each in reading.targets[:1] if each.name)
        },
        sure=(sure, sure),
        aspect="own" if here and reading.shown_by_calls and not named else "wandb",
    )


@rule("model_load", of=("idle",), order=200, sure=(0.6, 0.4), needs=("stacks",))
def model_load(reading: RankReading) -> Seen | None:
    """The rank's calls or its open section show that it loads the model."""
    if not reading.shows("model_load"):
        return None
    text = "{who} [is|are] stuck loading the model {at} : idle for {since}"
    return Seen(text=text, sure=(0.7, 0.4) if reading.shown_by_calls else None)


@rule("rank_stalled", order=210, needs=("stacks",))
def rank_stalled(situation: Situation, idle: Sequence[RankReading]) -> Finding:
    """Blame idle suspects, and all other ranks of a closed circle.

    Proven if the first of them and a child of it wait for each other.
    """
    first = idle[0]
    at_exit = _exit_waits(first)
    aspect, awaits = at_exit or _waits(situation.job, first)
    members, blamed = situation.deadlocked(first), [reading.rank for reading in idle]
    others, circle = [reading for reading in members if reading.rank not in blamed], ""
    if others:
        waiting_text = "while {who} [waits|wait] for it {what} {at}"
        circle = say(others, waiting_text, what=others[0].in_wait)
    if aspect == "child" and members == (first,):
        for_it = (
            target
            for look in first.view.processes
            for target in (read_process(look).targets if look.role != "rank" else ())
            if first.view.pid in processes.pids_here(target)
        )
        does = next((in_words(target) for target in for_it if target.kind != "pipe"), "")
        awaits += (
            f", which is {does}" if does else ", which waits for it at the other end of a pipe"
        )
    # a heartbeat beside a main thread that waits for news says nothing of that wait
    sleeps = not awaits and all(
        reading.own.only_sleeps and (reading.stuck is not None or reading.own.in_foreign_call)
        for reading in idle
    )
    stands = "[sleeps|sleep]" if sleeps else "[is|are] stuck"
    text = f"{{who}} {stands} {{at}} : idle for {{since}}{{waits}} {{circle}}"
    by_place: dict[str, list[RankReading]] = {}
    for reading in idle if first.place is not None and not at_exit else ():
        by_place.setdefault(within(reading.place) or "elsewhere", []).append(reading)
    here, *there = by_place.items() or [(within(first.place), [*idle])]
    apart = (f"{name_ranks(each.rank for each in group)} {at}" for at, group in there[:MOST_SHOWN])
    if not awaits and first.own.in_own_memory and first.beat.thread_error:
        aspect = aspect or "thread_error"
        awaits = f", and an exception had ended its thread {first.beat.thread_error}"
    return blame(
        situation,
        idle,
        "rank_stalled",
        say(
            here[1],
            AT_EXIT if at_exit else text,
            at=", ".join([here[0], *apart]),
            since=duration(max(reading.silence_s for reading in idle)),
            waits=awaits,
            circle=circle,
        ),
        sure=(0.85, 0.5),
        aspect=aspect,
        culprits=(*blamed, *(reading.rank for reading in others)),
        evidence=[
            EvidenceItem("kernel", reading.rank, f"{reading.waiter} is {in_words(target)}")
            for reading in idle
            for target in reading.targets[:1]
        ],
    )


def _exit_waits(reading: RankReading) -> tuple[str, str] | None:
    """Say which of its threads the exit of a rank's interpreter waits for, and what that does.

    It waits for every thread that is no daemon, and for a multiprocessing.Queue's feeder with data
    left.
    """
    stuck = reading.stuck
    if stuck is None or not stuck.frames or not is_exiting(latest_frames(reading.own.look)):
        return None
    place = users_place(stuck.frames)
    stands = within(place) or within(stuck.frames[-1])
    thread_text = f" for its thread {stuck.label}, which"
    if any(map(threads.feeds_queue, stuck.frames)):
        fills = "writes to a multiprocessing.Queue whose pipe is full"
        holders = [holder for target in reading.targets for holder in target.holders]
        joining = [process_name(each) for each in holders if reading.view.pid in each.awaits]
        first = (
            f": {joining[0]}, which should read it, waits for this rank's end" if joining else ""
        )
        return "exit_queue", join(thread_text, fills, stands) + first
    called = stuck.frames[stuck.frames.index(place) + 1 :] if place in stuck.frames else ()
    in_what = next(map(in_words, reading.targets), f"in {called[0].function}" if called else "")
    return "exit_thread", join(thread_text, "is", stands) + (f", {in_what}" if in_what else "")


def _waits(job: JobReading, reading: RankReading) -> tuple[str | None, str]:
    if reading.at_store:
        return "store", ", waiting for a key of the store that no rank has set"
    awaited = {pid for target in reading.own_targets for pid in processes.pids_here(target)}
    for child in reading.view.processes:  # another program has no copy of a lock
        if child.role == "worker" and child.pid in awaited and read_process(child).waits_in_vain:
            place = within(users_place(latest_frames(child)))
            what, aspect = _in_vain(read_process(child))
            stands = join("waits", place, what)
            return aspect, f", waiting for its child pid {child.pid}, which {stands}"
    for target in reading.targets:
        if (found := _at_target(job, reading, target)) is not None:
            return found
    stuck = reading.stuck
    if not reading.own.waits_in_vain:
        return None, ""
    in_own_pool = (
        stuck is not None
        and threads.awaits_executor(stuck)
        and any(
            frame.function == "_worker" and frame.file.endswith("/concurrent/futures/thread.py")
            for frame in stuck.frames
        )
    )
    words = ", waiting for its own threads, none of which can go on"
    return "own_pool" if in_own_pool else None, words


def _at_target(
    job: JobReading, reading: RankReading, target: WaitTarget
) -> tuple[str | None, str] | None:
    kind, held_by = target.kind, [process_name(holder) for holder in target.holders[:MOST_SHOWN]]
    looks = reading.view.processes
    pids = {holder.pid for holder in target.holders}
    pids |= {int(target.name or 0)} if kind == "process" else set()
    still = any(
        read_process_activity(look).activity == "stopped"
        for look in looks
        if look.role != "rank" and look.pid in pids
    )
    stopped = ", which is stopped by a signal" if still else ""
    if kind == "process":
        child = ", ".join(map(process_name, target.holders)) or f"pid {target.name}"
        return "child", f", waiting for the end of its child {child}{stopped}"
    if kind == "terminal" or (kind == "pipe" and target.call in processes.READS):
        writers = [holder for holder in target.holders if holder.pid != reading.view.pid]
        if writers:
            which = "" if reading.waiter == "main thread" else f"its {reading.waiter} "
            started = {look.pid for look in looks if look.role == "worker"}
            aspect = "worker" if writers[0].pid in started else "child"
            stacks = (thread for each in reading.own.complete[-1:] for thread in each.threads)
            in_pool = (frame.file.endswith(POOLS) for each in stacks for frame in each.frames)
            aspect = "pool" if aspect == "worker" and any(in_pool) else aspect
            silent = stopped or ", which writes nothing"
            return aspect, f", {which}reading from {process_name(writers[0])}{silent}"
        if target.holders and reading.own.free_threads:
            return None, ", reading a pipe to which none of its threads has written"
        # a queue has both ends in each process that uses it
        ended = [look.pid for look in looks if read_process_activity(look).activity == "gone"]
        if target.holders and ended:
            gone = f"its child pid {ended[0]} has ended, and no other process has the other end"
            return None, f", reading a pipe to which nobody writes any more: {gone}"
        return "input", f", waiting for input from {target.name}"
    if fills := filling(target):
        return "full_pipe", f", {fills}"
    if kind == "shared" and held_by:
        return None, f", waiting for a semaphore or lock shared with {', '.join(held_by)}"
    ends = (job.rank_of(reading, holder) for holder in target.holders)
    asked = [end.rank for end in ends if end is not None and end is not reading]
    if kind in ("socket", "fifo") and asked:
        answer = "an answer of " if kind == "socket" else ""
        return "peer", f", waiting at {target.name} for {answer}{name_ranks(asked)}"
    return None


@rule("spinning", of=("busy",), order=220, sure=(0.7, 0.4), needs=("stacks",))
def spinning(reading: RankReading) -> Seen:
    """The rank is busy without moving; a busy GPU counts for a rank that waits for it."""
    doing = "waiting for a busy GPU" if reading.for_gpu else "busy on the CPU"
    return Seen(
        text="{who} [makes|make] no progress {at} : {doing} for {since}",
        words={"doing": "waiting for a busy child process" if reading.works_in_child else doing},
        aspect="gpu" if reading.for_gpu else "cpu",
    )
