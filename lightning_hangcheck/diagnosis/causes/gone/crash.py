"""The job is over: did all ranks end well, and if not, which one failed first?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.asked_end import asked_end
from lightning_hangcheck.diagnosis.process_exit import (
    aspect_of,
    failed,
    failed_for,
    firsts_to_fail,
    how_it_ended,
    how_it_left,
    left_before,
    left_well,
    lost_a_peer,
)
from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding
from lightning_hangcheck.reading.exit_codes import ending_signal_of, exit_code_in_words
from lightning_hangcheck.reading.last_words import raised_at
from lightning_hangcheck.reading.place import outlived_stack_s
from lightning_hangcheck.reading.wording import duration, join, name_ranks, verb, within
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.case import AskedEnd

MOST_FIRSTS = 4
"""Of ranks that may each have been the first to fail, these are told with how they ended."""


def is_over(job: JobReading) -> bool:
    """Whether the launched command has ended, or no rank has a process any more."""
    ended = [reading.view.process_exit is not None for reading in job.ranks.values()]
    return job.case.ended or (bool(ended) and all(ended))


def find_crash(job: JobReading) -> Finding | None:
    """Blame the first rank that failed by itself; None if the job ended well.

    Ranks that end because another failed (killed by the launcher) are no culprits, nor is one that
    failed because another had left: that one is. Where every rank was ended from outside, none is;
    and what fails after the end was asked for is no crash.
    """
    ranks = tuple(job.ranks.values())
    firsts = firsts_to_fail(ranks, several_nodes=job.case.run.nnodes > 1)
    first = firsts[0] if firsts else None
    asked = asked_end(job) if not _was_restarted(job) else job.case.asked_end
    if asked is not None and not _failed_before(asked, first):
        return None
    if first is not None and not _forgiven(job, first):
        needed = failed_for(first, ranks)
        if needed:
            return _left_too_soon(needed, first, ranks)
        if lost_a_peer(first.view) and job.elsewhere:
            return _lost_elsewhere(job, first, ranks)
        if len(firsts) > 1:
            return _which_is_open(firsts, ranks)
        return _failed_first(first, ranks)
    return _ended_otherwise(job)


def _failed_before(asked: AskedEnd, first: RankReading | None) -> bool:
    return first is not None and first.rank in asked.failed_before


def _failed_first(first: RankReading, ranks: Sequence[RankReading]) -> Finding:
    sentence = join(f"rank {first.rank} failed first:", _end_of(first), _place_of(first))
    left = [one for one in left_before(first, ranks) if left_well(one.view)]
    if left:
        sentence += f"; {_names(left)} had left before it without a fault"
    return _crashed([first], _others_told(sentence, [first], ranks), ranks)


def _which_is_open(firsts: Sequence[RankReading], ranks: Sequence[RankReading]) -> Finding:
    """Blame each rank that failed by itself, the first of its node; none that lost a peer."""
    told = [join(f"rank {one.rank} failed:", _end_of(one), _place_of(one)) for one in firsts]
    more = len(told) - MOST_FIRSTS
    sentence = "; ".join((*told[:MOST_FIRSTS], *([f"so did {more} more"] if more > 0 else [])))
    sentence += "; which of them failed first is open: the clocks of their nodes are not known "
    finding = _crashed(firsts, f"{sentence}against each other", ranks)
    if not lost_a_peer(firsts[0].view):
        return replace(finding, confidence=0.5)
    return replace(finding, culprits=(), confidence=0.5, aspect="silent")


def _left_too_soon(
    needed: Sequence[RankReading], first: RankReading, ranks: Sequence[RankReading]
) -> Finding:
    """Blame ranks that left without a fault, and for want of which the first that failed did so."""
    sentence = join(
        _names(needed),
        how_it_left(needed[0].view),
        _place_of(needed[0]) or within(needed[0].place),
        f"while others still needed {'it' if len(needed) == 1 else 'them'}:",
        f"rank {first.rank} failed then, as",
        _end_of(first),
        _place_of(first),
    )
    return _crashed(needed, _others_told(sentence, [*needed, first], ranks), ranks)


def _lost_elsewhere(job: JobReading, first: RankReading, ranks: Sequence[RankReading]) -> Finding:
    """Blame ranks of a node that is no longer heard; where none is, nobody who only lost a peer."""
    lost = [one for one in ranks if one.activity == "unheard"]
    if lost:
        who, silent_s = range(len(lost)), max(one.view.unheard_for_s for one in lost)
        sentence = join(
            f"{_names(lost)} {verb(who, 'was', 'were')} lost with {_names_of_nodes(job)}:",
            f"nothing was heard from there for {duration(silent_s)};",
            f"rank {first.rank} failed then, as",
            _end_of(first),
            _place_of(first),
        )
        return _crashed(lost, _others_told(sentence, [*lost, first], ranks), ranks)
    sentence = join(
        f"rank {first.rank} failed because it lost a peer:", _end_of(first), _place_of(first)
    )
    sentence = _others_told(sentence, [first], ranks)
    finding = _crashed([first], sentence, ranks)
    return replace(
        finding,
        culprits=(),
        confidence=0.5,
        aspect="silent",
        sentence=f"{finding.sentence}; what became of {name_ranks(job.elsewhere)}, on other nodes, "
        "hangcheck run says there",
    )


def _names_of_nodes(job: JobReading) -> str:
    numbers = [node.number for node in job.case.run.silent_nodes]
    nodes = verb(numbers, "node", "nodes")
    return f"{nodes} {format_ranks(numbers)}" if numbers else "the node there"


def _end_of(reading: RankReading) -> str:
    phase = f"(in phase {reading.phase})" if reading.phase is not None else ""
    return join(f"it {how_it_ended(reading.view)}", phase)


def _place_of(reading: RankReading) -> str:
    """Say where it ended; of one that went on after it was seen last, where that was, and when."""
    if raised_at(reading.view) is not None:
        return ""  # its last words end in it
    place, since = within(reading.place), outlived_stack_s(reading.view)
    if not place or not since:
        return place
    return f"last seen {place}, {duration(since)} before its last progress"


def _others_told(sentence: str, told: Sequence[RankReading], ranks: Sequence[RankReading]) -> str:
    named = {one.rank for one in told}
    others = [one for one in ranks if one.rank not in named and failed(one.view)]
    return f"{sentence}; {_names(others)} ended after it" if others else sentence


def _crashed(
    culprits: Sequence[RankReading], sentence: str, ranks: Sequence[RankReading]
) -> Finding:
    blamed = {one.rank for one in culprits}
    finding = blame(
        culprits,
        cause="process_dead",
        ended_by="nobody",
        confidence=0.9,
        sentence=sentence,
        waited_for=any(failed(one.view) for one in ranks if one.rank not in blamed),
    )
    return replace(finding, silence_s=0.0, aspect=aspect_of(culprits[0].view))


def _names(readings: Sequence[RankReading]) -> str:
    return name_ranks([one.rank for one in readings])


def _ended_otherwise(job: JobReading) -> Finding | None:
    """No rank failed by itself: did only its command fail?"""
    code = job.case.exit_code
    if code:
        told = exit_code_in_words(code)
        sentence = f"no rank was seen to fail, but the command ended with exit code {told}"
    elif code is None and _may_have_failed(job):
        sentence = "no rank was seen to fail; how they ended was not seen of all"
    else:
        return None
    return Finding(
        cause="process_dead",
        culprits=(),
        ended_by="nobody",
        confidence=0.5,
        silence_s=0.0,
        sentence=sentence,
        aspect="silent" if ending_signal_of(code or 0) is None else "killed",
    )


def _may_have_failed(job: JobReading) -> bool:
    """Whether its launcher began anew, and one of the ranks may be why.

    torchrun would not for ranks that left with exit code 0, and Python ends alike with any other:
    ``sys.exit("no data")`` is no word of a rank that it has finished.
    """
    next_start = job.case.run.next_start
    if next_start is not None and next_start.launcher == "torchrun":
        ends = (reading.view.process_exit for reading in job.ranks.values())
        return any(one is None or one.exit_code is None for one in ends)
    return _was_restarted(job) and not all(left_well(one.view) for one in job.ranks.values())


def _was_restarted(job: JobReading) -> bool:
    """Whether the launcher counted it when it started the ranks again: one of them failed.

    Those that it ended for it were not asked to end by somebody else.
    """
    next_start = job.case.run.next_start
    return next_start is not None and bool(next_start.number)


def _forgiven(job: JobReading, first: RankReading) -> bool:
    """An exception that the rank itself caught: nobody saw its exit code, and the job's is 0."""
    seen = first.view.process_exit
    return job.case.exit_code == 0 and (seen is None or seen.exit_code is None)
