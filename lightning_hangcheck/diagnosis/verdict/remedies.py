"""What to do about a cause, filled in with the rank, process and line at hand."""

from __future__ import annotations

from itertools import chain
from string import Formatter
from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.graph.process_edges import owing_workers
from lightning_hangcheck.model.verdict import Remedy
from lightning_hangcheck.reading.activity.rank_activity import read_process_activity
from lightning_hangcheck.reading.knowledge.loading import causes_file
from lightning_hangcheck.reading.last_words import last_words
from lightning_hangcheck.reading.records.gpu_out_of_memory import gpu_out_of_memory, in_binary
from lightning_hangcheck.reading.wording import function_name, short_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.diagnosis.rules.contract import Finding
    from lightning_hangcheck.model.evidence import ProcessLook
    from lightning_hangcheck.reading.knowledge.loading import JobKind

PLACEHOLDERS = ("rank", "pid", "place", "function", "test", "unused")


def remedies_for(finding: Finding, job: JobReading) -> tuple[Remedy, ...]:
    """Return the cause's remedies, most likely first: those that fit and can be filled in."""
    known = _known(finding, job)
    kind: JobKind = "several ranks" if job.world_size > 1 else "one process"
    fitting = (
        Remedy(remedy.text.format_map(known), remedy.see)
        for remedy in causes_file().cause[finding.cause].remedies
        if remedy.aspect in (None, finding.aspect)
        and finding.aspect not in remedy.other_than
        and remedy.needs in (None, kind)
        and remedy.phase in (None, finding.phase)
        and placeholders(remedy.text) <= known.keys()
    )
    return (*_go_on(finding, job), *fitting)


def placeholders(text: str) -> set[str]:
    """Return the names in braces of a remedy's text."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def _go_on(finding: Finding, job: JobReading) -> Iterator[Remedy]:
    """Let the first stopped process go on for which culprits wait, whatever the cause is called."""
    if finding.cause == "process_stopped":
        return
    blamed = [job.ranks[rank] for rank in finding.culprits if rank in job.ranks]
    for look in chain.from_iterable(_awaited_processes(job, one) for one in blamed):
        if read_process_activity(look).activity == "stopped":
            first = causes_file().cause["process_stopped"].remedies[0]
            yield Remedy(first.text.format(pid=look.pid), first.see)
            return


def _awaited_processes(job: JobReading, reading: RankReading) -> Iterator[ProcessLook]:
    """The processes that a rank waits for: the workers that owe its batch, and whoever else."""
    if reading.wait_kind == "dataloader":
        yield from (worker.look for worker in owing_workers(reading))
    for target in (*reading.own_targets, *reading.targets):
        pids = {holder.pid for holder in target.holders if not holder.host}
        pids |= {int(target.name)} if target.kind == "process" else set()
        known = (job.processes.looks.get((reading.view.host, pid)) for pid in sorted(pids))
        yield from (look for look in known if look is not None and look.role != "rank")


def _known(finding: Finding, job: JobReading) -> dict[str, str]:
    known: dict[str, str] = {}
    if finding.culprits:
        rank = finding.culprits[0]
        known["rank"] = str(rank)
        reading = job.ranks.get(rank)
        if reading is not None and reading.alive and reading.view.pid is not None:
            known["pid"] = str(reading.view.pid)
        full = gpu_out_of_memory(last_words(reading.view)) if reading is not None else None
        if full is not None and full.in_pieces:
            known["unused"] = in_binary(full.unused or 0)
    if finding.place is not None:
        known["place"] = short_place(finding.place)
        known["function"] = function_name(finding.place)
    if finding.test is not None:
        known["test"] = finding.test
    return known
