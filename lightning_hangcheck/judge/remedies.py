"""What to do: which remedies of a cause fit a finding, filled in; causes.toml has their texts."""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING

from lightning_hangcheck.judge import exits
from lightning_hangcheck.judge.activity import read_process_activity
from lightning_hangcheck.judge.exits import last_words
from lightning_hangcheck.judge.knowledge import causes_file
from lightning_hangcheck.judge.processes import pids_here
from lightning_hangcheck.judge.wording import function_name, short_place
from lightning_hangcheck.model.verdict import Remedy
from lightning_hangcheck.text.shown import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.judge.job import JobReading
    from lightning_hangcheck.judge.knowledge import JobKind
    from lightning_hangcheck.judge.rule import Finding


def remedies_for(finding: Finding, job: JobReading) -> tuple[Remedy, ...]:
    """Return the cause's remedies, most likely first: those that fit and can be filled in."""
    first = job.ranks.get(finding.culprits[0]) if finding.culprits else None
    raised = last_words(first.view) if first is not None else ""
    known: dict[str, str] = {}
    if finding.culprits:
        known["rank"] = str(finding.culprits[0])
    if first is not None and first.alive and first.view.pid is not None:
        known["pid"] = str(first.view.pid)
    if unused := exits.kept_in_pieces(raised):
        known["unused"] = unused
    if finding.place is not None:
        known["place"] = one_line(short_place(finding.place))
        known["function"] = one_line(function_name(finding.place))
    if finding.test is not None:
        known["test"] = one_line(finding.test)
    kind: JobKind = "several ranks" if job.world_size > 1 else "one process"
    fitting = (
        Remedy(remedy.text.format_map(known), remedy.see, remedy.command.format_map(known))
        for remedy in causes_file().cause[finding.cause].remedies
        if remedy.aspect in (None, finding.aspect)
        and finding.aspect not in remedy.other_than
        and (remedy.needs in (None, kind) or not job.world_size)  # a file may not say
        and remedy.phase in (None, finding.phase)
        and raised.startswith(remedy.raised)
        and placeholders(remedy.text + remedy.command) <= known.keys()
    )
    return (*_go_on(finding, job), *fitting)


def placeholders(text: str) -> set[str]:
    """Return the names in braces of a remedy's text."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def _go_on(finding: Finding, job: JobReading) -> Iterator[Remedy]:
    """Put the command that lets the first stopped process go on first, whatever the cause."""
    first = causes_file().cause["process_stopped"].remedies[0]
    blamed = [job.ranks[rank] for rank in finding.culprits if rank in job.ranks]
    for reading in blamed if finding.cause != "process_stopped" else ():
        loads = reading.wait_kind == "dataloader"
        looks = [*reading.owing_workers] if loads else []
        for target in (*reading.own_targets, *reading.targets):
            pids = {*pids_here(target), *([int(target.name)] if target.kind == "process" else ())}
            known = (job.processes.looks.get((reading.view.host, pid)) for pid in sorted(pids))
            looks += [look for look in known if look is not None and look.role != "rank"]
        for look in looks:
            if read_process_activity(look).activity == "stopped":
                yield Remedy(first.text, first.see, first.command.format(pid=look.pid))
                return
