"""The one sentence that a tired person reads: who, where, why, for how long, and who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.asked_end import aftermath_sentence, asked_end
from lightning_hangcheck.diagnosis.rounds import end_of_round, end_of_run
from lightning_hangcheck.diagnosis.rules.engine import conclude
from lightning_hangcheck.diagnosis.verdict.lost_progress import lost_progress
from lightning_hangcheck.diagnosis.verdict.wait_groups import waits_and_places
from lightning_hangcheck.reading.place import tracked_place
from lightning_hangcheck.reading.wording import duration, join, name_ranks, short_place, verb

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rules.engine import Conclusion
    from lightning_hangcheck.model.case import Case

ENDED = ("crashed", "finished")
NOTABLE_SILENCE_S = 2.0


def summarise(conclusion: Conclusion) -> str:
    """Write the summary of a verdict of any kind."""
    sentence, run = _sentence(conclusion), conclusion.job.case.run
    if conclusion.kind not in ENDED:
        return sentence
    if run.next_start is not None:
        return end_of_round(sentence, run)
    return end_of_run(sentence, conclusion.kind, run)


def own_end(case: Case) -> str:
    """Say how the round of a case ended, without what was before and what followed.

    Args:
        case: Of a round that is over.
    """
    return _sentence(conclude(case))


def _sentence(conclusion: Conclusion) -> str:
    job, finding = conclusion.job, conclusion.finding
    if finding is not None:
        if conclusion.kind == "crashed":
            return finding.sentence
        told = ", ".join(filter(None, (finding.sentence, _in_loop(conclusion))))
        after = job.case.aftermath
        later = aftermath_sentence(after) if after is not None else ""
        return "; ".join(filter(None, (told, _who_waits(conclusion), later)))
    count = len(job.ranks)
    return _ended(job, count) if conclusion.kind == "finished" else _calm(job, count)


def _ended(job: JobReading, count: int) -> str:
    asked = asked_end(job)
    if asked is not None:
        suspected = f"suspected by then: {asked.suspected}" if asked.suspected else ""
        what = "the job was" if job.case.run.next_start is None else "its ranks were"
        told = f"{what} ended by {asked.by}; no rank failed by itself"
        lost = lost_progress(job.case)
        return "; ".join(filter(None, (told, lost, suspected, _left_running(job))))
    left = _left_running(job)
    if left:
        return f"the command ended; {left}"
    return f"the job ended well; {_all(count)} left without a fault" if count else "the job ended"


def _left_running(job: JobReading) -> str:
    """Say what the command left behind, for example a job that it only put into the background."""
    pids = job.case.left_running
    if not pids:
        return ""
    processes = "a process" if len(pids) == 1 else f"{len(pids)} processes"
    return (
        f"{processes} that it started still {verb(pids, 'runs', 'run')}, unwatched: "
        f"hangcheck attach --pid {pids[0]}"
    )


def _in_loop(conclusion: Conclusion) -> str:
    """Say where in its tracked loop the first culprit is, if it said so."""
    culprits = conclusion.finding.culprits if conclusion.finding is not None else ()
    first = conclusion.job.ranks.get(culprits[0]) if culprits else None
    return tracked_place(first.view.beat) if first is not None else ""


def _who_waits(conclusion: Conclusion) -> str:
    """Say who waits for the culprits, in what and where, by the largest group of them."""
    finding, job = conclusion.finding, conclusion.job
    if finding is None:
        return ""
    blamed = set(finding.culprits)
    waiters = [rank for rank in conclusion.graph.waiters if rank not in blamed]
    groups: dict[str, list[int]] = {}
    for wait, place, ranks in waits_and_places(job, waiters):
        where = join(
            f"in {wait.name}" if wait is not None else "",
            f"({short_place(place)})" if place is not None else "",
        )
        groups.setdefault(where, []).extend(ranks)
    if not groups:
        return ""
    where = max(groups, key=lambda key: len(groups[key]))
    whom = "it" if len(finding.culprits) == 1 else "them"
    shown = where if len(groups) == 1 else f"{where} and elsewhere"
    return join(name_ranks(waiters), verb(waiters, "waits", "wait"), f"for {whom}", shown)


def _calm(job: JobReading, count: int) -> str:
    silent = max(job.alive, key=lambda reading: reading.silence_s, default=None)
    if silent is None or silent.silence_s < NOTABLE_SILENCE_S:
        return f"{_all(count)} {verb(range(count), 'advances', 'advance')}" if count else ""
    longest = f"the longest silence is rank {silent.rank}'s, {duration(silent.silence_s)}"
    return f"nothing shows that {_all(count)} would not advance; {longest}"


def _all(count: int) -> str:
    return "the only rank" if count == 1 else f"all {count} ranks"
