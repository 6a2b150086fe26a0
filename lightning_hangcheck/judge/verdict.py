"""Case in, verdict out: the judgement as one pure function, and what a verdict holds.

A reader wants the culprits, examples of the others, and what was left out. So a verdict stays small
at any world size: each list has a limit, and gaps count the rest. Of a job that is over it also
says whether it ended well, and what became of a proven hang.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lightning_hangcheck.judge import summary
from lightning_hangcheck.judge.alike import group_stacks
from lightning_hangcheck.judge.engine import conclude
from lightning_hangcheck.judge.exits import aftermath_sentence, asked_end, failed, left_well
from lightning_hangcheck.judge.frames import users_place
from lightning_hangcheck.judge.graph import WaitGraph
from lightning_hangcheck.judge.operations import record_of, still_pending
from lightning_hangcheck.judge.remedies import remedies_for
from lightning_hangcheck.judge.threads import in_event_loop
from lightning_hangcheck.judge.wording import name_ranks
from lightning_hangcheck.model.codec import encode, encode_pretty
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.verdict import (
    MOST_LISTED,
    CollectiveState,
    EvidenceItem,
    LastCheckpoint,
    RankState,
    Verdict,
)
from lightning_hangcheck.model.verdict import Gap as ToldGap
from lightning_hangcheck.text.moments import EPOCH, read_utc, utc
from lightning_hangcheck.text.shown import format_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.judge.activity import Activity
    from lightning_hangcheck.judge.engine import Conclusion
    from lightning_hangcheck.judge.job import RankReading
    from lightning_hangcheck.judge.rule import Finding
    from lightning_hangcheck.model.case import Aftermath, Case
    from lightning_hangcheck.model.evidence import GapKind
    from lightning_hangcheck.model.slugs import Certainty
    from lightning_hangcheck.model.verdict import StackGroup, State

SUSPICION = 0.75
"""Share of its confidence that a finding keeps while it is a suspicion."""
MOST_UNSEEN = 8
SUSPENDED: tuple[str, GapKind, str] = (
    "while they are suspended they are on no stack: the line is the one that runs their event loop",
    "stack",
    "hc.section(...) around what they await names it, asyncio.timeout(60) ends it",
)
"""For coroutines of culprits whose own code runs an event loop: nobody sees what they await."""
UNSEEN_END = "its parent took it before it could be read, or the system does not show it"
OF_A_LOOK = ("stack", "local_values", "native_calls", "kernel_state", "flight_record")
"""Kinds of gaps from looks while the ranks of a job that ended well were leaving."""
COSTS_THE_JOB = ("hang", "dead", "crashed")
OVER = ("crashed", "finished")
STATES: dict[Activity, State] = {
    "moving": "running",
    "busy": "running",
    "idle": "running",
    "waiting": "waiting",
    "stopped": "stopped",
    "gone": "gone",
    "missing": "missing",
    "unseen": "unseen",
    "unheard": "unseen",
}
MOST_BYTES = 250_000
"""Bytes of its file, indented; up to `MOST_LISTED` ranks, of a single line, which it may need."""
MOST_GROUPS = 64
MOST = {
    "culprits": MOST_LISTED,
    "victims": MOST_LISTED,
    "evidence": 128,
    "gaps": 128,
    "wait_for": MOST_LISTED,
    "ranks": MOST_LISTED,
    "stack_groups": MOST_GROUPS,
    "collectives": MOST_GROUPS,
}
OF_MANY = {**MOST, "wait_for": 512, "ranks": 256}
"""For more than `MOST_LISTED` ranks, not all of which have a row."""
MOST_RANGES = 256
"""Ranges of ranks in one text: about 2 kB."""
TOLD = {"wait_for": "edges", "ranks": "rows of ranks", "stack_groups": "groups of equal stacks"}
SMALL = "left out: this file stays small at any world size"


@contextmanager
def without_collections() -> Iterator[None]:
    """Suspend garbage collection meanwhile; may be nested, also in threads.

    Reading a hundred thousand ranks makes a million live objects: collecting is a third of the
    time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@without_collections()
def verdict_of(case: Case) -> Verdict:
    """Explain a case, as `lightning_hangcheck.judge.judge` says."""
    conclusion = conclude(case)
    job, kind, finding = conclusion.job, conclusion.kind, conclusion.finding
    groups, group_of = group_stacks(case)
    victims = _victims(conclusion)
    explained: dict[str, Any] = {}
    if finding is not None:
        explained = {
            "culprits": finding.culprits,
            "victims": victims,
            "cause": finding.cause,
            "phase": finding.phase,
            "confidence": round(finding.confidence * (SUSPICION if kind == "suspect" else 1.0), 2),
            "remedies": remedies_for(finding, job),
            "wait_for": conclusion.graph.edges(MOST_LISTED),
            "collectives": conclusion.collectives or _collectives(conclusion),
            "certainty": finding.certainty or _certainty(conclusion, finding),
        }
        if kind != "crashed" and finding.ended_by != "pace" and case.left is None:
            silence_s = round(finding.silence_s, 3)
            later_s = case.aftermath.after_s if case.aftermath is not None else 0.0
            explained["stalled_since"] = _timestamp(case.taken_at, before_s=silence_s)
            explained["stalled_for_s"] = round(silence_s + later_s, 3)
    verdict = Verdict(
        verdict=kind,
        run_id=case.run.run_id,
        command=case.run.command,
        started_at=_timestamp(case.run.started_at),
        detected_at=_timestamp(case.taken_at),
        world_size=max(0, job.world_size),
        nnodes=case.run.nnodes,
        summary=summary.summarise(conclusion),
        evidence=_evidence(conclusion),
        gaps=_gaps(conclusion),
        ranks=_rank_table(conclusion, victims, group_of),
        stack_groups=groups,
        seen_in=case.seen_in,
        **explained,
    )
    return _bounded(verdict, conclusion.graph if finding is not None else WaitGraph())


def _certainty(conclusion: Conclusion, finding: Finding) -> Certainty | None:
    """Return what names the culprits of processes that were seen; None if nothing is sure."""
    kind, parted = conclusion.kind, conclusion.divergence
    if kind not in COSTS_THE_JOB or not finding.culprits:
        return None
    if parted is not None and set(parted.diverged) == set(finding.culprits):
        return "majority" if parted.basis == "majority" else None
    return "proven" if kind in ("dead", "crashed") or finding.ended_by == "nobody" else None


def ended_well(case: Case) -> bool:
    """Whether a job ended without a fault, also if somebody asked it to end."""
    if conclude(case).kind != "finished":
        return False
    return case.exit_code == 0 or all(map(left_well, case.ranks))


def aftermath_of(case: Case) -> str:
    """Say how a job ended in which a hang had been reported, as in `Aftermath`."""
    conclusion = conclude(case)
    asked = asked_end(conclusion.job)
    if conclusion.finding is not None:
        return f"the job ended: {conclusion.finding.sentence}"
    if asked is not None:
        return f"the job was ended by {asked.by}"
    return "the job ended, and nobody saw how"


def with_aftermath(hang: Verdict, aftermath: Aftermath) -> Verdict:
    """Return a hang that another node judged, with what became of the job."""
    sentence = aftermath_sentence(aftermath)
    return replace(
        hang,
        summary=f"{hang.summary}; {sentence}",
        stalled_for_s=round(hang.stalled_for_s + aftermath.after_s, 3),
        evidence=(EvidenceItem("ending", None, sentence), *hang.evidence),
    )


def _victims(conclusion: Conclusion) -> tuple[int, ...]:
    """Ranks that only wait for culprits; after a crash, all others that ended badly."""
    finding = conclusion.finding
    if finding is None:
        return ()
    blamed = set(finding.culprits)
    if conclusion.kind == "crashed" and conclusion.job.case.left is None:
        ranks = conclusion.job.ranks.items()
        return tuple(rank for rank, reading in ranks if rank not in blamed and failed(reading.view))
    return tuple(sorted({*conclusion.graph.waiters, *finding.held_up} - blamed))


def _evidence(conclusion: Conclusion) -> tuple[EvidenceItem, ...]:
    """Collect the facts: the aftermath, what was found, what it costs, and how to save."""
    job, finding, case = conclusion.job, conclusion.finding, conclusion.job.case
    items: list[EvidenceItem] = []
    if finding is not None:
        if case.aftermath is not None:
            items.append(EvidenceItem("ending", None, aftermath_sentence(case.aftermath)))
        blamed = [job.ranks[rank] for rank in finding.culprits if rank in job.ranks]
        if not blamed:  # no culprit was seen: the ranks held up show what is known
            blamed = [job.ranks[rank] for rank in finding.held_up]
        items += finding.evidence
        items += summary.facts_about(blamed)
        items += summary.waits(job, conclusion.graph)
        lost = summary.lost_progress(case) if conclusion.kind in COSTS_THE_JOB else ""
        items += [EvidenceItem("lost", None, lost)] if lost else []
    advice = summary.save_advice(case) if conclusion.kind in OVER else ""
    saves = [EvidenceItem("saves", None, advice)] if advice else []
    before = [*summary.earlier_rounds(case.run)]
    return (*items, *saves, *before) if finding is not None else (*before, *saves)


def _gaps(conclusion: Conclusion) -> tuple[ToldGap, ...]:
    job, finding = conclusion.job, conclusion.finding
    gaps = [*job.case.gaps, *job.gaps]
    if job.world_size <= 1:
        gaps = [gap for gap in gaps if gap.kind != "flight_record"]
    if finding is None and conclusion.kind == "finished":  # exit codes say all
        gaps = [gap for gap in gaps if gap.kind not in OF_A_LOOK]
    if finding is not None:
        gaps += finding.gaps
        if finding.ended_by != "pace":
            gaps += conclusion.gaps
            unseen = [reading for reading in job.alive if reading.activity == "unseen"]
            for reading in unseen[:MOST_UNSEEN]:
                samples = reading.process_activity.samples
                why = f"{samples} usable samples of its stack and kernel state; two are needed"
                gaps.append(Gap(f"activity of rank {reading.rank}", reading.rank, why, "activity"))
            if more := len(unseen[MOST_UNSEEN:]):
                gaps.append(Gap(f"activity of {more} more ranks", None, "likewise", "activity"))
        blamed = [job.ranks[rank] for rank in finding.culprits if rank in job.ranks]
        for reading in blamed[:MOST_UNSEEN]:
            frames = reading.stuck_frames or reading.frames
            if in_event_loop(frames) and users_place(frames) is not None:
                gaps.append(Gap(f"coroutines of rank {reading.rank}", reading.rank, *SUSPENDED))
        for reading in blamed:
            end = reading.view.process_exit
            if job.case.left is None and end is not None and end.exit_code is None:
                gaps.append(Gap("exit code", reading.rank, UNSEEN_END))
    try:
        read_utc(job.case.taken_at)
    except ValueError:
        why = f"the case's time {job.case.taken_at!r} cannot be read"
        gaps.append(Gap("time", None, why, "time"))
    return tuple(map(ToldGap.of, gaps))


def _timestamp(text: str, before_s: float = 0.0) -> str:
    """Format a moment, or one so many seconds earlier; the epoch if it cannot be read."""
    try:
        return utc(read_utc(text) - timedelta(seconds=before_s))
    except (ValueError, OverflowError):
        return utc(EPOCH)


# The tables.


def _rank_table(
    conclusion: Conclusion, victims: Collection[int], groups: Mapping[int, int]
) -> tuple[RankState, ...]:
    """Return every rank; above 1,024 only culprits and one rank of each stack group."""
    job, finding = conclusion.job, conclusion.finding
    blamed, led = set(finding.culprits if finding is not None else ()), set(victims)
    paced = finding is not None and finding.ended_by == "pace"
    late = set(conclusion.graph.waiters)
    shown: Iterable[RankReading] = job.ranks.values()
    if len(job.ranks) > MOST_LISTED:
        examples = {group: rank for rank, group in sorted(groups.items(), reverse=True)}
        kept = blamed | set(examples.values())
        shown = [reading for reading in shown if reading.rank in kept]
    rows = []
    for row in shown:
        state = conclusion.states.get(row.rank, STATES[row.activity])
        if state == "missing" and job.case.left is not None:
            state = "unseen"  # no file tells of it, which does not say that it never came
        if row.rank in blamed and row.activity in ("idle", "busy", "waiting"):
            state = "stalled"
        elif row.rank in led and row.activity == "idle":
            state = "waiting"
        if paced and state == "unseen":  # its page shows that it makes steps
            state = "waiting" if row.rank in late else "running"
        view, mark = row.view, row.beat.checkpoint
        # oldest first, those of the main thread last: that is where the rank is
        sections = sorted(row.beat.sections, key=lambda each: each.in_main_thread)
        rows.append(
            RankState(
                rank=row.rank,
                local_rank=view.local_rank,
                host=view.host,
                pid=view.pid,
                state=state,
                phase=row.phase,
                last_checkpoint=LastCheckpoint(mark.number, mark.name, mark.at) if mark else None,
                open_sections=tuple(map(str, sections)),
                step=row.beat.step,
                stack_group=groups.get(row.rank),
            )
        )
    return tuple(rows)


def _collectives(conclusion: Conclusion) -> tuple[CollectiveState, ...]:
    """Return the group in which ranks diverge, then each in which a rank waits."""
    job, divergence = conclusion.job, conclusion.divergence
    did: dict[tuple[str, int], dict[int, str]] = {}
    if divergence is not None and divergence.group is not None:
        seq = (divergence.last_agreed or 0) + 1
        operations = divergence.operations.items()
        did[divergence.group, seq] = {rank: str(operation) for rank, operation in operations}
    parted = set(did)
    for pending in still_pending(conclusion.pending):
        key = pending.numbered
        if key is None or key in parted or (key not in did and len(did) >= MOST_GROUPS):
            continue
        did.setdefault(key, {})[pending.rank] = str(pending.operation)
    rows = []
    for (group, seq), by_rank in did.items():
        ops: dict[str, list[int]] = {}
        for rank, operation in by_rank.items():
            ops.setdefault(operation, []).append(rank)
        own = (record_of(job.ranks[rank], group) for rank in by_rank)
        known = next(
            (set(record.ranks) for record in own if record is not None and record.ranks), set[int]()
        )
        # if no record names the members, all ranks' records may
        for rank, reading in () if known else job.ranks.items():
            record = record_of(reading, group)
            known.update(() if record is None else record.ranks or (rank,))
        by_op = {operation: format_ranks(ranks) for operation, ranks in ops.items()}
        rows.append(CollectiveState(group=group, ranks=format_ranks(known), seq=seq, ops=by_op))
    return tuple(rows)


# Small at any world size.


def _bounded(verdict: Verdict, graph: WaitGraph) -> Verdict:
    """Return a verdict of at most `MOST_BYTES`: the largest list is halved, with a gap."""
    many = verdict.world_size > MOST_LISTED
    most, written = dict(OF_MANY if many else MOST), encode_pretty if many else encode
    while True:
        found = _cut(verdict, graph, most)
        size = len(written(found))
        if size <= MOST_BYTES or max(most.values()) == 1:
            return found
        sizes = {name: len(encode(getattr(found, name))) for name in most}
        largest = max((name for name in most if most[name] > 1), key=sizes.__getitem__)
        most[largest] = max(1, min(most[largest], len(getattr(found, largest))) // 2)


def _cut(verdict: Verdict, graph: WaitGraph, most: dict[str, int]) -> Verdict:
    kept: dict[str, Any] = {}
    gaps: list[ToldGap] = []
    for name, limit in most.items():
        every: Sequence[Any] = getattr(verdict, name)
        count = graph.size if name == "wait_for" else len(every)
        if count > limit:
            kept[name] = every[:limit]
            what = f"{count - limit:,} of {count:,} {TOLD.get(name, name)}"
            who = f"; all of them: {name_ranks(every)}" if name in ("culprits", "victims") else ""
            gaps.append(ToldGap(what, None, f"{SMALL}{who}"))

    if "wait_for" in kept:
        kept["wait_for"] = graph.edges(most["wait_for"])
    if "ranks" in kept:
        kept["ranks"] = _rows(verdict, most["ranks"])

    def short(ranks: str) -> str:
        return ",".join(ranks.split(",")[:MOST_RANGES])

    groups: Sequence[StackGroup] = kept.get("stack_groups", verdict.stack_groups)
    states: Sequence[CollectiveState] = kept.get("collectives", verdict.collectives)
    kept["stack_groups"] = tuple(replace(group, ranks=short(group.ranks)) for group in groups)
    kept["collectives"] = tuple(
        replace(
            state, ranks=short(state.ranks), ops={op: short(who) for op, who in state.ops.items()}
        )
        for state in states
    )
    if any(group.ranks.count(",") >= MOST_RANGES for group in groups):
        why = f"after {MOST_RANGES} ranges {SMALL}"
        gaps.append(ToldGap("ranks of groups of equal stacks", None, why))
    return replace(verdict, gaps=(*gaps, *kept.pop("gaps", verdict.gaps)), **kept)


def _rows(verdict: Verdict, limit: int) -> tuple[RankState, ...]:
    """Return the culprits and one rank of each group of equal stacks before all others."""
    every = verdict.ranks
    examples = {row.stack_group: row.rank for row in reversed(every)}.values()
    wanted = {*verdict.culprits[: limit // 2], *examples}
    kept = {row.rank for row in [*(row for row in every if row.rank in wanted), *every][:limit]}
    return tuple(row for row in every if row.rank in kept)
