"""dataloader_worker: a rank waits for its next batch, and the worker does not make it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.graph.process_edges import owing_workers
from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding, Rule, Situation
from lightning_hangcheck.diagnosis.rules.who_ends import who_ends
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.waits.kernel_targets import in_words
from lightning_hangcheck.reading.waits.thread_locks import waits_in_vain
from lightning_hangcheck.reading.wording import duration, join, name_ranks, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.rank_reading import RankReading, WorkerReading
    from lightning_hangcheck.model.evidence import WaitTarget

MOST_SHOWN = 4


def dataloader_worker(situation: Situation) -> Finding | None:
    """Blame suspects that wait for a batch; place and evidence are their workers'."""
    waiting = [
        reading
        for reading in situation.suspects_that_are("idle", "busy")
        if reading.wait_kind == "dataloader"
    ]
    if not waiting:
        return None
    first = waiting[0]
    worker = _stuck_worker(first)
    sentence = join(
        name_ranks([first.rank]),
        f"has waited {duration(first.silence_s)} for its next batch",
        within(first.place) + ":",
        _what_the_worker_does(worker),
    )
    if len(waiting) > 1:
        sentence += f"; likewise {name_ranks(one.rank for one in waiting[1:])}"
    finding = blame(
        waiting,
        cause="dataloader_worker",
        ended_by=who_ends(situation, waiting),
        confidence=0.9 if worker is not None and situation.waited_for else 0.6,
        sentence=sentence,
        waited_for=situation.waited_for,
    )
    place = worker.place if worker is not None and worker.place is not None else first.place
    aspect = _aspect(worker) if worker is not None else None
    return replace(finding, place=place, aspect=aspect, evidence=_evidence(waiting))


def _aspect(worker: WorkerReading) -> str | None:
    if _has_copied_lock(worker):
        return "forked"
    return "child" if _from_process(worker) is not None else None


def _from_process(worker: WorkerReading) -> WaitTarget | None:
    """What an idle worker waits for that another process brings: its end, or words by a pipe."""
    if worker.activity != "idle" or worker.wants_work:
        return None
    others = (
        one
        for one in worker.targets
        if one.kind == "process"
        or (one.kind == "pipe" and any(held.pid != worker.look.pid for held in one.holders))
    )
    return next(others, None)


def _stuck_worker(reading: RankReading) -> WorkerReading | None:
    """Return the worker to name: a dead one, else a stopped one, else one with a place."""
    worst = {"gone": 0, "stopped": 1, "idle": 2, "busy": 3}
    return min(
        owing_workers(reading),
        key=lambda one: (worst.get(one.activity, 4), one.place is None),
        default=None,
    )


def _what_the_worker_does(worker: WorkerReading | None) -> str:
    if worker is None:
        return "no worker process is left below it"
    name = _name(worker)
    if worker.activity == "gone":
        return f"{name} is dead"
    if worker.activity == "stopped":
        return f"{name} is stopped by a signal {within(worker.place)}".rstrip()
    if worker.place is None:
        return f"{name} makes none"
    if _has_copied_lock(worker):
        return f"{name} waits {within(worker.place)} for a lock that nobody in it can release"
    verb = "burns CPU" if worker.activity == "busy" else "stands"
    awaited = _from_process(worker)
    what = f", {in_words(awaited)}" if awaited is not None else ""
    return f"{name} {verb} {within(worker.place)}{what}"


def _has_copied_lock(worker: WorkerReading) -> bool:
    """Whether it waits for what only its own threads change, and none of them is left to do so.

    A fork copies locks, and leaves the threads behind that hold them.
    """
    return worker.activity == "idle" and waits_in_vain(worker.look)


def _name(worker: WorkerReading) -> str:
    """Name a worker by its process: of torch's own numbers nothing is seen.

    An iterable dataset's worker leaves once its part is done, and two loaders count from 0 each.
    """
    return f"worker pid {worker.look.pid}"


def _evidence(waiting: Sequence[RankReading]) -> tuple[EvidenceItem, ...]:
    return tuple(
        EvidenceItem("worker", reading.rank, _describe(worker))
        for reading in waiting
        for worker in owing_workers(reading)[:MOST_SHOWN]
    )[: 2 * MOST_SHOWN]


def _describe(worker: WorkerReading) -> str:
    place = f" in {worker.place}" if worker.place is not None else ""
    kernel = worker.look.samples[-1].kernel if worker.look.samples else None
    channel = kernel.threads[0].wchan if kernel is not None and kernel.threads else ""
    return (
        f"{_name(worker)} is {worker.activity}{place}"
        f"{f', kernel waits in {channel}' if channel else ''}"
        f"{''.join(f', {in_words(target)}' for target in worker.targets[:1])}"
    )


DATALOADER_WORKER = Rule(cause="dataloader_worker", needs=("stacks",), find=dataloader_worker)
