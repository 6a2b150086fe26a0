"""What a verdict says: its summary, the facts that it rests on, and what a restart loses.

Sentences of a cause stand beside its rule (`causes`); here is what all verdicts have in common.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING

from lightning_hangcheck.judge import exits
from lightning_hangcheck.judge.activity import describe_gpus
from lightning_hangcheck.judge.alike import latest_frames, shown_frames
from lightning_hangcheck.judge.engine import conclude
from lightning_hangcheck.judge.frames import outlived_stack_s, tracked_place, users_place
from lightning_hangcheck.judge.rule import MOST_SHOWN
from lightning_hangcheck.judge.wording import (
    duration,
    join,
    name_ranks,
    rank_time,
    short_place,
    verb,
    within,
)
from lightning_hangcheck.model.code_owner import MODULE
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.text.shown import format_ranks, several

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.judge.engine import Conclusion
    from lightning_hangcheck.judge.graph import WaitGraph
    from lightning_hangcheck.judge.job import JobReading, RankReading
    from lightning_hangcheck.judge.rule import Finding
    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import Case, RunFacts
    from lightning_hangcheck.model.evidence import Frame

NOTABLE_SILENCE_S = 2.0
FOR_GPU = re.compile(r"^cu(da)?(Stream|Device|Ctx|Event)Synchronize")
"""Calls of CUDA's runtime and driver that return when the GPU has done its work."""
STATES = {"R": "running", "S": "asleep", "D": "asleep, and no signal wakes it", "T": "stopped"}
"""The kernel's letters that say something here (proc_pid_stat(5))."""
MOST_FRAMES = 6
MOST_WAYS = 2
"""Ways in which earlier rounds ended that the summary names; the evidence has `MOST_SHOWN`."""
LAUNCHERS = {"torchrun": "torchrun", "slurm": "SLURM"}
SAVES_FROM_S = 600.0
LONG_FROM_S = 1800.0
EPOCHS = (10, 20)
EPOCHS_OF_LONG = (5, 10)
"""The rule of thumb of this tool's first users: repeat a run of up to 10 minutes, save a longer run
every 10 to 20 epochs, and a run of over 30 minutes every 5 to 10."""
SHORTEST_PAUSE_S = 60.0
"""The rule assumes epochs of a minute or so. If it means a save more often than this, or less often
than every 30 minutes, its 10 to 30 minutes count instead."""


# The summary.


def summarise(conclusion: Conclusion) -> str:
    """Write the summary of a verdict of any kind: who, where, why, how long, and who waits."""
    sentence, run = _sentence(conclusion), conclusion.job.case.run
    if conclusion.kind not in ("crashed", "finished"):
        return sentence
    if run.next_start is not None:
        return end_of_round(sentence, run)
    ways = _failed_rounds(run)
    if not ways:
        return sentence
    in_round = f"{sentence} in round {run.round}"
    parts = [in_round if conclusion.kind == "finished" else f"round {run.round}: {sentence}"]
    for summary, _, rounds in ways[:MOST_WAYS]:
        parts.append(f"{rounds} had ended{' likewise' if summary == sentence else f': {summary}'}")
    if untold := sum(count for _, count, _ in ways[MOST_WAYS:]):
        parts.append(f"{untold} more {'round' if untold == 1 else 'rounds'} had ended otherwise")
    return "; ".join(parts)


def own_end(case: Case) -> str:
    """Say how the round of a case ended, without the rounds before and after."""
    return _sentence(conclude(case))


def _sentence(conclusion: Conclusion) -> str:
    job, finding = conclusion.job, conclusion.finding
    if finding is None:
        return _ended(job) if conclusion.kind == "finished" else _calm(job)
    if conclusion.kind == "crashed":
        return finding.sentence
    first = job.ranks.get(finding.culprits[0]) if finding.culprits else None
    in_loop = tracked_place(first.view.beat) if first is not None else ""
    sentence = ", ".join(filter(None, (finding.sentence, in_loop)))
    after = job.case.aftermath
    later = exits.aftermath_sentence(after) if after is not None else ""
    named = finding.culprits or job.case.left is None
    waits = _who_waits(conclusion, finding) if named else ""
    since = duration(finding.silence_s)
    untold = job.case.left is None and finding.ended_by != "pace" and f" {since}" not in sentence
    return "; ".join(
        filter(None, (sentence, waits, f"blocked for {since}" if untold else "", later))
    )


def _who_waits(conclusion: Conclusion, finding: Finding) -> str:
    culprits = set(finding.culprits)
    waiters = [rank for rank in conclusion.graph.waiters if rank not in culprits]
    groups: dict[str, list[int]] = {}
    for reading, ranks in _alike(conclusion.job, waiters):
        locks = (each.name.rpartition("/")[2] for each in reading.targets if each.kind == "lock")
        at_lock = next((f"at the lock on {name}" for name in locks if name), "")
        where = join(
            reading.in_wait or at_lock,
            f"({short_place(reading.place)})" if reading.place is not None else "",
        )
        groups.setdefault(where, []).extend(ranks)
    if not groups:
        return ""
    where = max(groups, key=lambda key: len(groups[key]))
    whom = "it" if len(finding.culprits) == 1 else "them"
    shown = where if len(groups) == 1 else f"{where} and elsewhere"
    return join(name_ranks(waiters), verb(waiters, "waits", "wait"), f"for {whom}", shown)


def _alike(job: JobReading, ranks: Iterable[int]) -> Iterable[tuple[RankReading, list[int]]]:
    """Return one of the ranks that wait in the same way at the same place, with all of them."""
    together: dict[tuple[int, int], tuple[RankReading, list[int]]] = {}
    for rank in ranks:
        reading = job.ranks[rank]
        key = id(reading.wait), id(reading.place)
        together.setdefault(key, (reading, []))[1].append(rank)
    return together.values()


def _calm(job: JobReading) -> str:
    if job.case.left is not None:
        at = [
            f"{name_ranks([rank])} was {within(reading.place)}"
            for rank, reading in job.ranks.items()
            if reading.view.processes and reading.place is not None
        ]
        where = "no log line tells of a failure, a time-out or a rank that is behind"
        if recorded := [rank for rank, reading in job.ranks.items() if reading.view.flight]:
            where = f"no operation was open on {name_ranks(recorded)}"
        if at:
            where = f"by its stack {', '.join(at[:4])}"
        return f"nothing wrong is seen in what was left: {where}"
    count = len(job.ranks)
    silent = max(job.alive, key=lambda reading: reading.silence_s, default=None)
    if silent is not None and silent.silence_s >= NOTABLE_SILENCE_S:
        silence = duration(silent.silence_s)
        return f"no sign of a hang; rank {silent.rank} has been silent the longest, for {silence}"
    many = f"all {count} ranks advance" if count else ""
    return "the only rank advances" if count == 1 else many


def _ended(job: JobReading) -> str:
    asked, left, pids = exits.asked_end(job), "", job.case.left_running
    if pids:  # such as a job that it put into the background
        processes = "a process" if len(pids) == 1 else f"{len(pids)} processes"
        left = f"{processes} that it started still {verb(pids, 'runs', 'run')}, unwatched: "
        left += f"hangcheck attach --pid {pids[0]}"
    if asked is not None:
        what = "the job was" if job.case.run.next_start is None else "its ranks were"
        sentence = f"{what} ended by {asked.by}; no rank failed by itself"
        suspected = f"suspected by then: {asked.suspected}" if asked.suspected else ""
        return "; ".join(filter(None, (sentence, lost_progress(job.case), suspected, left)))
    if left:
        return f"the command ended; {left}"
    count, code = len(job.ranks), job.case.exit_code
    if not count:
        how = "and nobody saw how" if code is None else f"with exit code {code}"
        return f"the command ended {how}; no rank was seen"
    everybody = "the only rank" if count == 1 else f"all {count} ranks"
    return f"the job ended well; {everybody} exited cleanly"


# Rounds of a run that its launcher starts again.


def end_of_round(sentence: str, run: RunFacts) -> str:
    """Describe the end of a round that another has followed."""
    before, start = run.earlier[-1] if run.earlier else None, run.next_start
    alike = f" as round {before.number} did" if before and before.summary == sentence else ""
    again = "its ranks were started again"
    if start is not None and start.launcher in LAUNCHERS:
        of = f"of {start.most}" if start.most else ""
        count = f"({join(str(start.number), of)})" if start.number else ""
        again = join(f"{LAUNCHERS[start.launcher]} restarts", count)
    return f"round {run.round} ended{alike}: {sentence}; {again}"


def earlier_rounds(run: RunFacts) -> Iterator[EvidenceItem]:
    """Describe how earlier rounds failed, one sentence for all with the same end."""
    for summary, _, rounds in _failed_rounds(run)[-MOST_SHOWN:]:
        yield EvidenceItem("round", None, f"{rounds} ended: {summary}")


def _failed_rounds(run: RunFacts) -> list[tuple[str, int, str]]:
    ways: dict[str, list[int]] = {}
    for earlier_round in run.earlier:
        if earlier_round.verdict != "finished":
            ways.setdefault(earlier_round.summary, []).append(earlier_round.number)
    return [
        (summary, len(rounds), f"{verb(rounds, 'round', 'rounds')} {format_ranks(rounds)}")
        for summary, rounds in ways.items()
    ]


# The facts.


def facts_about(culprits: Iterable[RankReading]) -> Iterator[EvidenceItem]:
    """Describe each culprit: where it stands, what it used, what kernel and page say."""
    seen = (reading for reading in culprits if reading.representative == reading.rank)
    for reading in islice(seen, MOST_SHOWN):
        yield from (EvidenceItem(kind, reading.rank, text) for kind, text in _facts_of(reading))


def waits(job: JobReading, graph: WaitGraph) -> Iterator[EvidenceItem]:
    """Describe who waits, one sentence for all ranks at the same line."""
    together: dict[str, list[int]] = {}
    for reading, ranks in _alike(job, graph.waiters):
        if reading.wait is not None:
            place = f", called in {_line(reading.place)}" if reading.place is not None else ""
            together.setdefault(f"in {reading.wait.name}{place}", []).extend(ranks)
    for where, ranks in sorted(together.items(), key=lambda item: -len(item[1]))[:MOST_SHOWN]:
        text = f"{name_ranks(ranks)} {verb(ranks, 'waits', 'wait')} {where}"
        yield EvidenceItem("wait", ranks[0] if len(ranks) == 1 else None, text)


def _facts_of(reading: RankReading) -> Iterator[tuple[str, str]]:
    view, observed = reading.view, reading.process_activity
    newest = reading.own.look.samples[::-1]
    if view.process_exit is not None:
        ended, killed = exits.how_it_ended(view), exits.killed_for_memory(view)
        yield "departure", f"rank {reading.rank} {ended}"
        if killed not in ended:
            yield "memory", killed
    if reading.frames:
        where, went_on_s = _where(reading.frames), outlived_stack_s(view)
        was = f"was in {where}, {duration(went_on_s)} before its last progress"
        yield "stack", was if went_on_s else f"is in {where}"
    stuck, child = reading.stuck, reading.child
    if stuck is not None and stuck.frames:
        where = _where(stuck.frames)
        yield "stack", f"waits there for thread {stuck.label}, which is in {where}"
    if child is not None:
        frames = latest_frames(child)
        stands = f", which is in {_where(frames)}" if frames else ""
        yield "stack", f"waits for its child pid {child.pid}{stands}"
    # local variables of the user's place, if anybody asked for them
    values = next((sample.local_values for sample in newest if sample.local_values), ())
    place = users_place([local_values.frame for local_values in values])
    for local_values in values:
        if place is not None and (local_values.frame.file, local_values.frame.line) == (
            place.file,
            place.line,
        ):
            shown = ", ".join(f"{name} = {value}" for name, value in local_values.values.items())
            at = f"{local_values.frame.function} ({short_place(local_values.frame)})"
            yield "variables", f"variables in {at}: {shown}"
    if observed.span_s > 0 and view.process_exit is None:
        does = "idle itself" if reading.works_in_child else reading.activity
        yield (
            "activity",
            f"{observed.samples} samples over {observed.span_s:.1f} s: {does}, "
            f"{observed.cpu_share:.2f} of a core, {observed.bytes} bytes read and written",
        )
    if reading.livelocked:
        since = duration(view.nothing_new_for_s)
        yield "activity", f"it ran for {since}, but only through functions seen before"
    if view.slept_for_s is not None:
        slept = duration(view.slept_for_s)
        yield "sleep", f"its main thread had not run for {slept} when hangcheck attached"
    if calls := next((sample.native_calls for sample in newest if sample.native_calls), ()):
        for_gpu = next((call for call in calls if FOR_GPU.match(call)), None)
        what = f"waits for its GPU in {for_gpu}, " if for_gpu is not None else ""
        yield "native", f"{what}in native code: {' > '.join(calls[-MOST_FRAMES:])}"
    # torch's counters show a wait in C++ code; they name no key and no thread, so draw no edge
    if counted := view.flight.waits if view.flight is not None else {}:
        counts = ", ".join(f"{count} in {name}" for name, count in sorted(counted.items()))
        yield "torch", f"torch counts threads that wait: {counts}"
    yield from (("gpu", text) for text in describe_gpus(reading.own.look))
    state = next((sample.kernel for sample in newest if sample.kernel), None)
    if state is not None and view.process_exit is None:
        channel = state.threads[0].wchan if state.threads else ""
        waits_in = f", main thread waits in {channel}" if channel else ""
        known = STATES.get(state.state, "")
        shown = f"is {known} (state {state.state})" if known else f"is in state {state.state}"
        yield "kernel", f"pid {state.pid} {shown}{waits_in}"
    if view.beat is None:
        return
    beat, tracked = view.beat, tracked_place(view.beat)
    mark, section = beat.checkpoint, beat.main_sections[-1:]
    page = (
        f"last checkpoint {mark.number} {mark.name}" if mark is not None else "",
        f"step {beat.step}" if beat.step is not None else "",
        tracked or "".join(f"inside section {each.name!r}" for each in section),
        f"phase {beat.phase}" if beat.phase is not None else "",
    )
    if any(page):
        said = ", ".join(filter(None, page))
        yield "page", f"silent for {duration(max(0.0, view.silent_for_s))}: {said}"


def _where(frames: Sequence[Frame]) -> str:
    """Say where a thread stands: the user's line, and what it called from there."""
    place, innermost = users_place(frames), (shown_frames(frames) or frames)[-1]
    if place is None or place == innermost:
        return _line(innermost)
    return f"{_line(place)}, inside it {innermost.function} ({short_place(innermost)})"


def _line(frame: Frame) -> str:
    """Write a frame with its whole path; code outside of any function has no name to show."""
    return f"{frame.file}:{frame.line}" if frame.function == MODULE else str(frame)


# What a restart loses, and how often to save.


def lost_progress(case: Case) -> str:
    """Say what is lost if the job ends, in one sentence.

    ``last checkpoint step 10; 2 steps, 90 s, 3 rank minutes are lost``. The time counts progress,
    without the silence since. If only some ranks save, the newest save counts.

    Returns:
        Empty if no rank shows steps or saves: then nothing is known.
    """
    seen = [(view, view.beat) for view in case.ranks if view.beat is not None and view.spent]
    saving = [pair for pair in seen if pair[1].save is not None]
    reached = max((beat.step or 0 for _, beat in seen), default=0)
    if not saving and not reached:
        return ""

    def held(beat: Beat) -> int | None:
        """Steps that the rank's last save holds; None if a rank that shows none has saved."""
        step = beat.save.step if beat.save is not None else 0
        return 0 if step is None and beat.step is not None else step

    kept, beat = max(saving or seen, key=lambda pair: held(pair[1]) or 0)
    saved = held(beat)
    if saving and reached and saved is not None and saved >= reached:
        return f"last checkpoint step {saved}; nothing is lost"
    lost = [several(reached - saved, "step")] if reached and saved is not None else []
    if kept.spent is not None and kept.spent.unsaved_s is not None:
        seconds = max(0.0, kept.spent.unsaved_s - min(view.silent_for_s for view, _ in seen))
        of_ranks = rank_time(max(case.run.world_size, len(case.ranks)), seconds)
        lost += [duration(seconds), *([of_ranks] if of_ranks else [])]
    shown = f"last checkpoint step {'unknown' if saved is None else saved}"
    saves = shown if saving else "no save of a checkpoint was seen"
    return f"{saves}; {', '.join(lost)} are lost" if lost else saves


def save_advice(case: Case) -> str:
    """Say how often such a training should save; empty if it is short, or saves often."""
    spent = [view.spent for view in case.ranks if view.spent is not None]
    saver = max(spent, key=lambda rank: rank.saves, default=None)
    if saver is None or saver.training_s <= SAVES_FROM_S:
        return ""

    def steps_in(seconds: float) -> int:
        return max(1, round(saver.steps * seconds / saver.training_s))

    is_long, epoch_s = saver.training_s > LONG_FROM_S, saver.epoch_s or 0.0
    fewest, most = EPOCHS_OF_LONG if is_long else EPOCHS
    shortest_s, longest_s = fewest * epoch_s, most * epoch_s
    if longest_s >= SHORTEST_PAUSE_S and shortest_s <= min(saver.training_s, LONG_FROM_S):
        limit = duration(LONG_FROM_S if is_long else SAVES_FROM_S)
        often = f"over {limit} save every {fewest} to {most} epochs, here"
        lightning = f"every_n_epochs={fewest}"
    else:
        shortest_s, longest_s, often = SAVES_FROM_S, LONG_FROM_S, "save"
        lightning = f"every_n_train_steps={steps_in(shortest_s)}"
    if saver.saves and saver.training_s / saver.saves <= max(longest_s, SAVES_FROM_S):
        return ""
    saves = f"{saver.saves or 'no'} save{'s' if saver.saves > 1 else ''}"
    return (
        f"{saves} seen in {duration(saver.training_s)} of training; {often} every "
        f"{duration(shortest_s)} to {duration(longest_s)}: ModelCheckpoint({lightning}), in "
        f"transformers save_steps={steps_in(shortest_s)}"
    )
