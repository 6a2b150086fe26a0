"""The job is over: did all ranks end well, and if not, which one failed first?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.asked_end import asked_end
from lightning_hangcheck.diagnosis.process_exit import (
    aspect_of,
    failed,
    first_to_fail,
    how_it_ended,
    left_well,
)
from lightning_hangcheck.diagnosis.rules.blame import blame
from lightning_hangcheck.diagnosis.rules.contract import Finding
from lightning_hangcheck.reading.wording import join, name_ranks, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.job import JobReading, RankReading
    from lightning_hangcheck.model.case import AskedEnd


def is_over(job: JobReading) -> bool:
    """Whether the launched command has ended, or no rank has a process any more."""
    ended = [reading.view.process_exit is not None for reading in job.ranks.values()]
    return job.case.ended or (bool(ended) and all(ended))


def find_crash(job: JobReading) -> Finding | None:
    """Blame the first rank that failed by itself; None if the job ended well.

    Ranks that end because another failed (killed by the launcher) are no culprits. Where every rank
    was ended from outside, none is; and what fails after the end was asked for is no crash.
    """
    ranks = tuple(job.ranks.values())
    first = first_to_fail(ranks)
    asked = asked_end(job) if not _was_restarted(job) else job.case.asked_end
    if asked is not None and not _failed_before(asked, first):
        return None
    if first is not None and not _forgiven(job, first):
        others = [one.rank for one in ranks if one is not first and failed(one.view)]
        sentence = join(
            f"rank {first.rank} failed first:",
            f"it {how_it_ended(first.view)}",
            f"(in phase {first.phase})" if first.phase is not None else "",
            within(first.place),
        )
        left = _left_before(first, ranks)
        if left:
            sentence += f"; {name_ranks(left)} had left before it with exit code 0"
        if others:
            sentence += f"; {name_ranks(others)} ended after it"
        return replace(
            blame(
                [first],
                cause="process_dead",
                ended_by="nobody",
                confidence=0.9,
                sentence=sentence,
                waited_for=bool(others),
            ),
            silence_s=0.0,
            aspect=aspect_of(first.view),
        )
    return _ended_otherwise(job)


def _failed_before(asked: AskedEnd, first: RankReading | None) -> bool:
    return first is not None and first.rank in asked.failed_before


def _left_before(first: RankReading, ranks: Sequence[RankReading]) -> list[int]:
    """Return the ranks that ended well before the first failed: it may have needed them."""
    failure = first.view.process_exit
    return [
        one.rank
        for one in ranks
        if failure is not None
        and one.view.process_exit is not None
        and one.view.process_exit.exit_code == 0
        and one.view.process_exit.order < failure.order
    ]


def _ended_otherwise(job: JobReading) -> Finding | None:
    """No rank failed by itself: did only its command fail?"""
    code = job.case.exit_code
    if code:
        sentence = f"the command ended with exit code {code}, and no rank was seen to fail"
    elif code is None and _was_restarted(job) and not _all_left_well(job):
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
        aspect="silent",
    )


def _all_left_well(job: JobReading) -> bool:
    return all(left_well(reading.view) for reading in job.ranks.values())


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
