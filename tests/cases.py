"""Builds a case in a few lines: ranks, what they stand in, and how long they have been silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.judge.rule import Finding
from lightning_hangcheck.model.case import Case, ProcessExit, RankView, RunFacts
from lightning_hangcheck.model.evidence import (
    Frame,
    Holder,
    ProcessLook,
    ProcessStack,
    ProcessState,
    Sample,
    ThreadStack,
    ThreadState,
    WaitTarget,
)
from lightning_hangcheck.text.shown import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lightning_hangcheck.model.slugs import Cause
    from lightning_hangcheck.model.verdict import Verdict

    States = tuple[ThreadState, ...]
    Stacks = tuple[ThreadStack, ...]
    Change = Callable[[int, States, Stacks], tuple[States, Stacks]]
    """From a sample's number, the kernel's threads and Python's to what they are instead."""

SECOND = 1_000_000_000
NOW_NS = 1_000 * SECOND
SITE = "/venv/lib/python3.11/site-packages"
STDLIB = "/usr/lib/python3.11"
C10D = f"{SITE}/torch/distributed/distributed_c10d.py"
MAIN = Frame("<module>", "/home/ada/demo/train.py", 140)


def user(function: str, line: int, file: str = "train.py") -> Frame:
    """A frame of the user's own code."""
    return Frame(function, f"/home/ada/demo/{file}", line)


def torch(function: str, file: str = "distributed/distributed_c10d.py") -> Frame:
    """A frame of torch."""
    return Frame(function, f"{SITE}/torch/{file}", 1)


IN_LOAD = (MAIN, user("load", 41))
IN_BARRIER = (MAIN, user("step", 88), torch("barrier"))
IN_ALL_REDUCE = (MAIN, user("step", 90), torch("all_reduce"))
IN_BACKWARD = (MAIN, user("step", 91), torch("_engine_run_backward", "autograd/graph.py"))
IN_INIT = (MAIN, torch("init_process_group"), torch("_new_process_group_helper"))
IN_CONNECT = (
    MAIN,
    torch("init_process_group"),
    torch("_create_c10d_store", "distributed/rendezvous.py"),
)
IN_WANDB = (
    MAIN,
    user("create_run", 12),
    Frame("init", f"{SITE}/wandb/sdk/wandb_init.py", 1536),
    Frame("Condition.wait", f"{STDLIB}/threading.py", 327),
)
IN_LOADER = (
    MAIN,
    user("fit", 60),
    torch("_MultiProcessingDataLoaderIter._try_get_data", "utils/data/dataloader.py"),
    Frame("Queue.get", f"{STDLIB}/multiprocessing/queues.py", 113),
)
WORKER = (
    MAIN,
    user("fit", 60),
    Frame("BaseProcess._bootstrap", f"{STDLIB}/multiprocessing/process.py", 314),
    torch("_worker_loop", "utils/data/_utils/worker.py"),
)
IN_GETITEM = (
    *WORKER,
    torch("_MapDatasetFetcher.fetch", "utils/data/_utils/fetch.py"),
    user("Samples.__getitem__", 17, "data.py"),
)
WANTS_WORK = (*WORKER, Frame("Queue.get", f"{STDLIB}/multiprocessing/queues.py", 113))
FUTEX = (WaitTarget(call="futex", kind="futex", name="0x7f00"),)
LOCKED = ThreadStack(tid=201, name="pusher", takes_lock=True, frames=(user("push", 7),))
"""A thread beside the main one that stands in a lock."""

Frames = tuple[Frame, ...]


def look(
    *stacks: Frames,
    pid: int = 100,
    role: str = "rank",
    index: int = 0,
    cpu: float = 0.0,
    bytes_s: int = 0,
    state: str = "S",
    samples: int = 3,
    **main_thread: Any,
) -> ProcessLook:
    """A process sampled every 1.1 seconds, the last time now.

    The stacks are the main thread's at each sample; one stands for all, of which there are so many.
    ``cpu`` are cores that this thread used, ``bytes_s`` bytes read a second, ``state`` is the
    kernel's letter; what follows are further fields of its `ThreadState`.
    """
    frames = stacks if len(stacks) > 1 else stacks * samples
    return ProcessLook(
        pid=pid,
        role=role,
        index=index,
        samples=tuple(
            sample(
                stack,
                NOW_NS - int((len(frames) - 1 - number) * 1.1 * SECOND),
                pid=pid,
                cpu_s=number * 1.1 * cpu,
                read_bytes=int(number * 1.1 * bytes_s),
                state=state,
                **main_thread,
            )
            for number, stack in enumerate(frames)
        ),
    )


def sample(
    frames: Frames, taken_ns: int, *, pid: int, cpu_s: float, read_bytes: int, **thread: Any
) -> Sample:
    """One sample of a process; unless told otherwise, its main thread waits in its own memory.

    Beside it is a thread that runs no Python, as every program with torch has some.
    """
    native = ThreadState(tid=90_000 + pid, state="S", cpu_s=0.0)
    main = ThreadState(tid=pid, cpu_s=cpu_s, **{"waits_for": FUTEX, **thread})
    return Sample(
        taken_ns=taken_ns,
        kernel=ProcessState(
            pid=pid,
            parent_pid=1,
            state=main.state,
            started_ticks=1,
            cpu_s=cpu_s,
            read_bytes=read_bytes,
            written_bytes=0,
            threads=(main, native),
        ),
        stack=ProcessStack(
            pid=pid, source="py-spy", threads=(ThreadStack(tid=pid, frames=frames),)
        ),
    )


def rank(
    number: int, *stacks: Frames, silent: float = 31.0, children: Any = (), **fields: Any
) -> RankView:
    """A rank of pid 100 + its number; ``fields`` are those of `look`, or of `RankView`."""
    own = {name: fields.pop(name) for name in ("pace", "beat", "goes_round") if name in fields}
    pid = 100 + number
    processes = (look(*stacks, pid=pid, **fields), *children) if stacks else tuple(children)
    return RankView(
        rank=number,
        local_rank=number,
        host="node0",
        pid=pid,
        silent_for_s=silent,
        idle_for_s=silent,
        processes=processes,
        **own,
    )


def changed(process: ProcessLook, change: Change) -> ProcessLook:
    """The process, in each sample the kernel's and Python's view of its threads changed by this."""
    samples = []
    for number, one in enumerate(process.samples):
        states, stacks = change(number, one.kernel.threads, one.stack.threads)
        kernel = msgspec.structs.replace(one.kernel, threads=states)
        stack = msgspec.structs.replace(one.stack, threads=stacks)
        samples.append(msgspec.structs.replace(one, kernel=kernel, stack=stack))
    return msgspec.structs.replace(process, samples=tuple(samples))


def changed_rank(view: RankView, change: Change) -> RankView:
    """The rank, its own process changed so."""
    own, *others = view.processes
    return msgspec.structs.replace(view, processes=(changed(own, change), *others))


def with_threads(
    view: RankView, *others: ThreadStack, takes_lock: bool = True, futex: bool = True
) -> RankView:
    """The rank with these further threads, all of them in endless futexes or none."""
    waits: dict[str, Any] = {"waits_for": FUTEX, "syscall": 202} if futex else {}
    named = [(view.processes[0].pid, ""), *((one.tid or 0, one.name) for one in others)]
    states = tuple(
        ThreadState(tid=tid, state="S", cpu_s=0.0, name=name, **waits) for tid, name in named
    )

    def change(_: int, __: States, stacks: Stacks) -> tuple[States, Stacks]:
        main = msgspec.structs.replace(stacks[0], takes_lock=takes_lock)
        return states, (main, *others)

    return changed_rank(view, change)


def beside(
    view: RankView,
    frames: tuple[Frame, ...],
    wakes: tuple[int, ...] = (),
    tid: int = 300,
    **state: Any,
) -> RankView:
    """The rank with a further thread in this state, asleep until these moments, look by look."""
    stack = ThreadStack(tid=tid, name="helper", frames=frames)

    def change(number: int, states: States, stacks: Stacks) -> tuple[States, Stacks]:
        moment = {"wakes_ns": wakes[number]} if wakes else {}
        fields = {"state": "S", "cpu_s": 0.0, **state, **moment}
        return (*states, ThreadState(tid=tid, **fields)), (*stacks, stack)

    return changed_rank(view, change)


def with_kernel(view: RankView, **fields: Any) -> RankView:
    """The rank, with these fields of the kernel's view of its own process in each sample.

    A function as a field is called with the sample's number and what the kernel showed.
    """
    own, *others = view.processes
    samples = []
    for number, one in enumerate(own.samples):
        told = {
            name: field(number, one.kernel) if callable(field) else field
            for name, field in fields.items()
        }
        kernel = msgspec.structs.replace(one.kernel, **told)
        samples.append(msgspec.structs.replace(one, kernel=kernel))
    own = msgspec.structs.replace(own, samples=tuple(samples))
    return msgspec.structs.replace(view, processes=(own, *others))


def with_main(view: RankView, **fields: Any) -> RankView:
    """The rank, with these fields of the kernel's view of its main thread, as in `with_kernel`."""

    def threads(number: int, kernel: ProcessState) -> tuple[ThreadState, ...]:
        told = {name: one(number) if callable(one) else one for name, one in fields.items()}
        return (msgspec.structs.replace(kernel.threads[0], **told), *kernel.threads[1:])

    return with_kernel(view, threads=threads)


def with_lock_owner(view: RankView) -> RankView:
    """The rank, its main thread holding the interpreter lock in each sample."""

    def change(_: int, states: States, stacks: Stacks) -> tuple[States, Stacks]:
        return states, (msgspec.structs.replace(stacks[0], owns_gil=True),)

    return changed_rank(view, change)


def waiting_for(kind: Any, call: str, name: str, *pids: int, cpu_s: float = 0.0) -> dict[str, Any]:
    """Fields of a main thread that waits for something that these processes hold."""
    holders = tuple(Holder(pid=pid, program="python", cpu_s=cpu_s) for pid in pids)
    return {"waits_for": (WaitTarget(call=call, kind=kind, name=name, holders=holders),)}


def worker(index: int, *stacks: Frames, **fields: Any) -> ProcessLook:
    """A DataLoader worker."""
    return look(*stacks, pid=500 + index, role="worker", index=index, **fields)


def gone(
    number: int, exit_code: int | None, order: int = 0, words: str = "", silent: float = 31.0
) -> RankView:
    """A rank whose process has ended."""
    seen = ProcessExit(
        order=order, at="2026-11-20T10:24:00Z", exit_code=exit_code, last_words=words
    )
    return msgspec.structs.replace(rank(number, silent=silent), process_exit=seen)


def missing(number: int, silent: float = 31.0) -> RankView:
    """A rank that never had a process."""
    return RankView(rank=number, silent_for_s=silent, idle_for_s=silent)


def job(*ranks: RankView, **fields: Any) -> Case:
    """A case of these ranks, all of them on one node; ``fields`` are those of `Case` or its run."""
    run = {
        "run_id": "20261120T102301-7f3a",
        "command": "torchrun --nproc_per_node=2 train.py",
        "started_at": "2026-11-20T10:23:01Z",
        "world_size": len(ranks),
        "local_world_size": len(ranks),
    }
    own = {name: fields.pop(name) for name in Case.__struct_fields__ if name in fields}
    return Case(
        **{
            "run": RunFacts(**{**run, **fields}),
            "taken_at": "2026-11-20T10:24:16.5Z",
            "taken_ns": NOW_NS,
            "ranks": ranks,
            **own,
        }
    )


def finding(cause: Cause, **fields: Any) -> Finding:
    """What a rule found of the first rank, silent for five minutes in a computation."""
    return Finding(
        cause=cause,
        culprits=(0,),
        ended_by="unknown_pace",
        confidence=0.5,
        silence_s=301.0,
        sentence="",
        **fields,
    )


# What a verdict should say.


def guessed(found: Verdict) -> tuple[int, ...]:
    """Return the ranks for which little speaks, and which are therefore no culprits."""
    texts = [one.text for one in found.evidence if one.kind == "guess"]
    return parse_ranks(texts[0].rpartition(" ")[2]) if texts else ()


def agrees(found: Verdict, expected: Mapping[str, object]) -> None:
    """Compare a verdict with what it should be.

    Besides fields of the verdict: ``guessed``; ``says``, ``now`` and ``fact``, parts of its
    summary, of its first remedy and of its evidence; ``unseen``, ranks whose lines are missing.
    """
    parts = {"says": found.summary, "fact": "\n".join(one.text for one in found.evidence)}
    parts["now"] = found.remedies[0].in_words if found.remedies else ""
    for field, value in expected.items():
        if field in parts:
            assert str(value) in parts[field]
        elif field == "guessed":
            assert guessed(found) == value, found.summary
        elif field == "unseen":
            assert [gap.rank for gap in found.gaps if "--log-dir" in gap.why] == value
        else:
            assert getattr(found, field) == value, (field, found.summary)
