"""Case in, verdict out: the whole judgement as one pure function.

And of a job that is over: did it end well, and what became of a hang that had been proven?
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.diagnosis.asked_end import aftermath_sentence, asked_end
from lightning_hangcheck.diagnosis.process_exit import failed, left_well
from lightning_hangcheck.diagnosis.rounds import earlier_rounds
from lightning_hangcheck.diagnosis.rules.engine import Conclusion, conclude
from lightning_hangcheck.diagnosis.verdict.bounds import bounded
from lightning_hangcheck.diagnosis.verdict.facts import facts_about, waits
from lightning_hangcheck.diagnosis.verdict.lost_progress import lost_progress
from lightning_hangcheck.diagnosis.verdict.remedies import remedies_for
from lightning_hangcheck.diagnosis.verdict.save_advice import save_advice
from lightning_hangcheck.diagnosis.verdict.summary import summarise
from lightning_hangcheck.diagnosis.verdict.tables import collectives, paced_table, rank_table
from lightning_hangcheck.diagnosis.without_collections import without_collections
from lightning_hangcheck.gather.stack_groups import group_stacks
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.verdict import EvidenceItem, Verdict
from lightning_hangcheck.model.verdict import Gap as ToldGap
from lightning_hangcheck.reading.place import users_place
from lightning_hangcheck.reading.waits.wait_chain import in_event_loop
from lightning_hangcheck.text.moments import EPOCH, read_utc, utc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.case import Aftermath, Case
    from lightning_hangcheck.model.evidence import Frame
    from lightning_hangcheck.model.verdict import CollectiveState

SUSPICION = 0.75
"""Share of its confidence that a finding keeps while it is only a suspicion."""
MOST_UNSEEN = 8
COSTS_THE_JOB = ("hang", "dead", "crashed")
OVER = ("crashed", "finished")


@without_collections()
def judge(case: Case) -> Verdict:
    """Explain a case: who holds the job up, where, why, for how long, and what to do.

    Pure: the same case gives the same verdict, on any machine and at any later time.

    Args:
        case: Evidence of all ranks at one moment.
    """
    conclusion = conclude(case)
    job, finding = conclusion.job, conclusion.finding
    groups, group_of = group_stacks(case)
    culprits = finding.culprits if finding is not None else ()
    victims = _victims(conclusion)
    ranks = rank_table(job, culprits, victims, group_of)
    silence = round(finding.silence_s, 3) if finding is not None else 0.0
    paced = finding is not None and finding.ended_by == "pace"
    stalled = finding is not None and conclusion.kind != "crashed" and not paced
    confidence = finding.confidence if finding is not None else 0.0
    verdict = Verdict(
        verdict=conclusion.kind,
        run_id=case.run.run_id,
        command=case.run.command,
        started_at=_timestamp(case.run.started_at),
        detected_at=_timestamp(case.taken_at),
        stalled_since=_timestamp(case.taken_at, before_s=silence) if stalled else None,
        stalled_for_s=round(silence + _later_s(case), 3) if stalled else 0.0,
        world_size=max(0, job.world_size),
        nnodes=case.run.nnodes,
        culprits=culprits,
        victims=victims,
        cause=finding.cause if finding is not None else None,
        phase=finding.phase if finding is not None else None,
        confidence=round(confidence * (SUSPICION if conclusion.kind == "suspect" else 1.0), 2),
        summary=summarise(conclusion),
        evidence=_evidence(conclusion),
        remedies=remedies_for(finding, job) if finding is not None else (),
        gaps=_gaps(conclusion),
        wait_for=conclusion.graph.edges if finding is not None else (),
        ranks=paced_table(ranks, conclusion.graph.waiters) if paced else ranks,
        stack_groups=groups,
        collectives=_collectives(conclusion),
    )
    return bounded(verdict)


def _collectives(conclusion: Conclusion) -> tuple[CollectiveState, ...]:
    if conclusion.finding is None:
        return ()
    return collectives(conclusion.job, conclusion.pending, conclusion.divergence)


def _later_s(case: Case) -> float:
    return case.aftermath.after_s if case.aftermath is not None else 0.0


def _victims(conclusion: Conclusion) -> tuple[int, ...]:
    """Ranks that only wait for culprits; after a crash, all others that ended badly."""
    finding = conclusion.finding
    if finding is None:
        return ()
    if conclusion.kind == "crashed":
        ranks, blamed = conclusion.job.ranks.items(), set(finding.culprits)
        return tuple(rank for rank, one in ranks if rank not in blamed and failed(one.view))
    waiting = {*conclusion.graph.waiters, *finding.left_standing}
    return tuple(sorted(waiting.difference(finding.culprits)))


def _evidence(conclusion: Conclusion) -> tuple[EvidenceItem, ...]:
    finding, job = conclusion.finding, conclusion.job
    before = earlier_rounds(job.case.run)
    if finding is None:
        return (*before, *_saves(conclusion))
    blamed = [job.ranks[rank] for rank in finding.culprits if rank in job.ranks]
    if not blamed:  # none of them was ever seen: what is known of it, those that wait for it show
        blamed = [job.ranks[rank] for rank in finding.left_standing]
    after = job.case.aftermath
    later = [EvidenceItem("ending", None, aftermath_sentence(after))] if after is not None else []
    found = (*finding.evidence, *facts_about(blamed), *waits(job, conclusion.graph))
    return (*later, *found, *_lost(conclusion), *_saves(conclusion), *before)


def _lost(conclusion: Conclusion) -> list[EvidenceItem]:
    """What the end of the job throws away; a suspicion may pass, and ends nothing."""
    text = lost_progress(conclusion.job.case) if conclusion.kind in COSTS_THE_JOB else ""
    return [EvidenceItem("lost", None, text)] if text else []


def _saves(conclusion: Conclusion) -> list[EvidenceItem]:
    """How such a job should save the next time; while one goes on nobody is told."""
    text = save_advice(conclusion.job.case) if conclusion.kind in OVER else ""
    return [EvidenceItem("saves", None, text)] if text else []


def _gaps(conclusion: Conclusion) -> tuple[ToldGap, ...]:
    job, finding = conclusion.job, conclusion.finding
    gaps = [*job.case.gaps, *job.gaps]
    if job.world_size <= 1:
        gaps = [gap for gap in gaps if gap.kind != "flight_record"]
    if finding is not None:
        gaps += finding.gaps if finding.ended_by == "pace" else (*finding.gaps, *_unseen(job))
        gaps += _suspended(job, finding.culprits)
    if _moment(job.case.taken_at) is None:
        why = f"the case's time {job.case.taken_at!r} cannot be read"
        gaps.append(Gap("time", None, why, "time"))
    return tuple(map(ToldGap.of, gaps))


def _unseen(job: JobReading) -> list[Gap]:
    """Ranks that were sampled too little to tell what they do; the first few, the rest counted."""
    unseen = [reading for reading in job.alive if reading.activity == "unseen"]
    gaps = [
        Gap(
            f"activity of rank {reading.rank}",
            reading.rank,
            f"{reading.process_activity.samples} usable samples of its stack and kernel state; "
            "two are needed",
            "activity",
        )
        for reading in unseen[:MOST_UNSEEN]
    ]
    if len(unseen) > MOST_UNSEEN:
        more = len(unseen) - MOST_UNSEEN
        gaps.append(Gap(f"activity of {more} more ranks", None, "likewise", "activity"))
    return gaps


def _suspended(job: JobReading, culprits: Sequence[int]) -> list[Gap]:
    """Culprits whose own code runs an event loop: nobody sees what their coroutines await."""
    blamed = [job.ranks[rank] for rank in culprits if rank in job.ranks]
    return [
        Gap(
            f"coroutines of rank {one.rank}",
            one.rank,
            "while they are suspended they are on no stack: the line is the one that runs their "
            "event loop",
            "stack",
            "hc.section(...) around what they await names it, asyncio.timeout(60) ends it",
        )
        for one in blamed[:MOST_UNSEEN]
        if in_event_loop(_wait_ends_in(one)) and users_place(_wait_ends_in(one)) is not None
    ]


def _wait_ends_in(reading: RankReading) -> tuple[Frame, ...]:
    return reading.rank_activity.stuck_frames or reading.frames


def _timestamp(text: str, before_s: float = 0.0) -> str:
    """Write a moment, or one so many seconds before it; the epoch if it cannot be read."""
    moment = _moment(text) or EPOCH
    try:
        return utc(moment - timedelta(seconds=before_s))
    except OverflowError:
        return utc(EPOCH)


def _moment(text: str) -> datetime | None:
    try:
        return read_utc(text)
    except ValueError:
        return None


def ended_well(case: Case) -> bool:
    """Whether a job is seen to have ended without a fault, be it that somebody asked it to."""
    if conclude(case).kind != "finished":
        return False
    return case.exit_code == 0 or all(map(left_well, case.ranks))


def aftermath_of(case: Case) -> str:
    """Say how a job ended in which a hang stood, as in `Aftermath`.

    Args:
        case: Of the job that has ended.
    """
    conclusion = conclude(case)
    asked = asked_end(conclusion.job)
    if conclusion.finding is not None:
        return f"the job ended: {conclusion.finding.sentence}"
    if asked is not None:
        return f"the job was ended by {asked.by}"
    return "the job ended, and nobody saw how"


def with_aftermath(hang: Verdict, aftermath: Aftermath) -> Verdict:
    """Return a hang that another node has judged, and what became of the job then.

    Args:
        hang: That stood.
        aftermath: As it was seen here.
    """
    sentence = aftermath_sentence(aftermath)
    return replace(
        hang,
        summary=f"{hang.summary}; {sentence}",
        stalled_for_s=round(hang.stalled_for_s + aftermath.after_s, 3),
        evidence=(EvidenceItem("ending", None, sentence), *hang.evidence),
    )
