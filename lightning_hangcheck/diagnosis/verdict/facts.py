"""The facts that a verdict rests on, as sentences: what was seen of the culprits and who waits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.process_exit import how_it_ended, killed_for_memory
from lightning_hangcheck.diagnosis.verdict.wait_groups import waits_and_places
from lightning_hangcheck.gather.stack_groups import latest_frames
from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.activity.process_activity import describe_gpus
from lightning_hangcheck.reading.last_words import last_words
from lightning_hangcheck.reading.place import outlived_stack_s, tracked_place, users_place
from lightning_hangcheck.reading.records.gpu_out_of_memory import gpu_out_of_memory
from lightning_hangcheck.reading.wording import duration, name_ranks, short_place, verb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.diagnosis.graph.wait_graph import WaitGraph
    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.model.evidence import Frame, ProcessLook

FOR_GPU = re.compile(r"^cu(da)?(Stream|Device|Ctx|Event)Synchronize")
"""Calls of CUDA's runtime and driver that return when the GPU has done its work."""
MOST_SHOWN = 6
MOST_CULPRITS = 4
MOST_WAITS = 4
"""Culprits and kinds of waiting that are described; the rank table has them all."""


def facts_about(culprits: Sequence[RankReading]) -> Iterator[EvidenceItem]:
    """Describe each culprit: where it stands, what it used, what the kernel and its page say."""
    seen = [reading for reading in culprits if reading.told_by is None]
    for reading in seen[:MOST_CULPRITS]:
        yield from _facts_of(reading)


def waits(job: JobReading, graph: WaitGraph) -> Iterator[EvidenceItem]:
    """Describe who waits, one sentence for all ranks at the same line."""
    together: dict[tuple[str, str], list[int]] = {}
    for wait, line, ranks in waits_and_places(job, graph.waiters):
        if wait is not None:
            place = f", called in {line}" if line is not None else ""
            together.setdefault((wait.name, place), []).extend(ranks)
    ordered = sorted(together.items(), key=lambda item: -len(item[1]))
    for (name, place), ranks in ordered[:MOST_WAITS]:
        text = f"{name_ranks(ranks)} {verb(ranks, 'waits', 'wait')} in {name}{place}"
        yield EvidenceItem("wait", ranks[0] if len(ranks) == 1 else None, text)


def variables_of(look: ProcessLook) -> Iterator[str]:
    """Write the newest variables that were read of a process: one sentence, none if none were.

    Args:
        look: Its samples; they hold variables only where somebody asked for them.
    """
    samples = reversed(look.samples)
    values = next((one.local_values for one in samples if one.local_values), ())
    place = users_place([one.frame for one in values])
    for one in values:
        if place is not None and (one.frame.file, one.frame.line) == (place.file, place.line):
            shown = ", ".join(f"{name} = {value}" for name, value in one.values.items())
            yield f"variables in {one.frame.function} ({short_place(one.frame)}): {shown}"


def native_calls_of(look: ProcessLook) -> Iterator[str]:
    """Write the newest native calls that a closer look saw of a process: one sentence, or none.

    Args:
        look: Its samples.
    """
    samples = reversed(look.samples)
    calls = next((one.native_calls for one in samples if one.native_calls), ())
    if not calls:
        return
    waits = next((call for call in calls if FOR_GPU.match(call)), None)
    what = f"waits for its GPU in {waits}, " if waits is not None else ""
    yield f"{what}in native code: {' > '.join(calls[-MOST_SHOWN:])}"


def _facts_of(reading: RankReading) -> Iterator[EvidenceItem]:
    rank, frames, observed = reading.rank, reading.frames, reading.process_activity
    if reading.view.process_exit is not None:
        ended, killed = how_it_ended(reading.view), killed_for_memory(reading.view)
        yield EvidenceItem("departure", rank, f"rank {rank} {ended}")
        if killed not in ended:
            yield EvidenceItem("memory", rank, killed)
        full = gpu_out_of_memory(last_words(reading.view))
        if full is not None and full.words:
            yield EvidenceItem("memory", rank, f"its GPU was full: {full.words}")
    if frames:
        yield EvidenceItem("stack", rank, _stands(reading))
    yield from (EvidenceItem("stack", rank, text) for text in _awaited(reading))
    own = reading.view.own_process
    if own is not None:
        yield from (EvidenceItem("variables", rank, text) for text in variables_of(own))
    if observed.span_s > 0:
        yield EvidenceItem(
            "activity",
            rank,
            f"{observed.samples} samples over {observed.span_s:.1f} s: {_does(reading)}, "
            f"{observed.cpu_share:.2f} of a core, {observed.bytes} bytes read and written",
        )
    if reading.livelocked:
        since = duration(reading.view.nothing_new_for_s)
        text = f"it moved, but for {since} only among functions in which it had been before"
        yield EvidenceItem("activity", rank, text)
    if reading.view.slept_for_s is not None:
        slept = duration(reading.view.slept_for_s)
        text = f"its main thread had not run for {slept} when hangcheck came"
        yield EvidenceItem("sleep", rank, text)
    if own is not None:
        yield from (EvidenceItem("native", rank, text) for text in native_calls_of(own))
    yield from _torchs_waits(reading)
    yield from _machine(reading)
    yield from _page(reading)


def _does(reading: RankReading) -> str:
    return "idle itself" if reading.works_in_child else reading.activity


def _stands(reading: RankReading) -> str:
    """Say where it stands; of one that ended since, where it stood and how long before."""
    went_on_s = outlived_stack_s(reading.view)
    if not went_on_s:
        return f"stands in {_where(reading.frames)}"
    return f"stood in {_where(reading.frames)}, {duration(went_on_s)} before its last progress"


def _where(frames: Sequence[Frame]) -> str:
    """Say where a thread stands: the user's line, and what is called from there."""
    place, innermost = users_place(frames), frames[-1]
    if place is None or place == innermost:
        return str(innermost)
    return f"{place}, inside it {innermost.function} ({short_place(innermost)})"


def _awaited(reading: RankReading) -> Iterator[str]:
    """Say for which of its threads and children a rank's main thread waits there."""
    stuck, child = reading.rank_activity.stuck, reading.child
    if stuck is not None and stuck.frames:
        yield f"waits there for thread {stuck.label}, which stands in {_where(stuck.frames)}"
    if child is not None:
        frames = latest_frames(child)
        stands = f", which stands in {_where(frames)}" if frames else ""
        yield f"waits for its child pid {child.pid}{stands}"


def _torchs_waits(reading: RankReading) -> Iterator[EvidenceItem]:
    """What torch itself counts: it shows a wait in C++ code that no Python stack tells of.

    The counters name no key and no thread, so they draw no edge.
    """
    counted = reading.view.flight.waits if reading.view.flight is not None else {}
    told = ", ".join(f"{count} in {name}" for name, count in sorted(counted.items()))
    if told:
        yield EvidenceItem("torch", reading.rank, f"torch counts threads that wait: {told}")


def _machine(reading: RankReading) -> Iterator[EvidenceItem]:
    own = reading.view.own_process
    if own is not None:
        yield from (EvidenceItem("gpu", reading.rank, text) for text in describe_gpus(own))
    state = next(
        (sample.kernel for sample in reversed(own.samples) if sample.kernel) if own else iter(()),
        None,
    )
    if state is not None:
        channel = state.threads[0].wchan if state.threads else ""
        text = f"pid {state.pid} in state {state.state}"
        yield EvidenceItem(
            "kernel", reading.rank, f"{text}, main thread waits in {channel}" if channel else text
        )


def _page(reading: RankReading) -> Iterator[EvidenceItem]:
    beat = reading.view.beat
    if beat is None:
        return
    parts = []
    if beat.checkpoint is not None:
        parts.append(f"last checkpoint {beat.checkpoint.number} {beat.checkpoint.name}")
    if beat.step is not None:
        parts.append(f"step {beat.step}")
    if tracked := tracked_place(beat):
        parts.append(tracked)
    elif beat.main_sections:
        parts.append(f"inside section {beat.main_sections[-1].name!r}")
    if beat.phase is not None:
        parts.append(f"phase {beat.phase}")
    if parts:
        silent = duration(max(0.0, reading.view.silent_for_s))
        yield EvidenceItem("page", reading.rank, f"silent for {silent}: {', '.join(parts)}")
