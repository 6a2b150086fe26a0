"""What to do about a cause, filled in with the rank, process and line at hand."""

from __future__ import annotations

from string import Formatter
from typing import TYPE_CHECKING

from lightning_hangcheck.model.verdict import Remedy
from lightning_hangcheck.reading.knowledge.loading import causes_file
from lightning_hangcheck.reading.last_words import last_words
from lightning_hangcheck.reading.records.gpu_out_of_memory import gpu_out_of_memory, in_binary
from lightning_hangcheck.reading.wording import function_name, short_place

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rules.contract import Finding
    from lightning_hangcheck.reading.knowledge.loading import JobKind

PLACEHOLDERS = ("rank", "pid", "place", "function", "test", "unused")


def remedies_for(finding: Finding, job: JobReading) -> tuple[Remedy, ...]:
    """Return the cause's remedies, most likely first: those that fit and can be filled in."""
    known = _known(finding, job)
    kind: JobKind = "several ranks" if job.world_size > 1 else "one process"
    return tuple(
        Remedy(remedy.text.format_map(known), remedy.see)
        for remedy in causes_file().cause[finding.cause].remedies
        if remedy.aspect in (None, finding.aspect)
        and remedy.needs in (None, kind)
        and remedy.phase in (None, finding.phase)
        and placeholders(remedy.text) <= known.keys()
    )


def placeholders(text: str) -> set[str]:
    """Return the names in braces of a remedy's text."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


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
