"""The verdict as plain text: understood in ten seconds, at most 40 lines at any world size.

First who, where and why (`headline`), then a row for ranks in equal standing, proof, what to do,
and what could not be seen. `render_stacks` writes stacks.txt of the evidence.
"""

from __future__ import annotations

import shlex
from datetime import timedelta
from signal import Signals
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.judge.alike import shown_threads
from lightning_hangcheck.judge.wording import duration, rank_time
from lightning_hangcheck.ledger.spending import SECONDS_PER_HOUR
from lightning_hangcheck.model.code_owner import MODULE, is_users
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.verdict import MOST_LISTED
from lightning_hangcheck.report.causes import causes, explanation
from lightning_hangcheck.report.paragraphs import (
    INDENT,
    WIDTH,
    aligned,
    labelled,
    listed,
    of_rank,
    plain,
    wrapped,
)
from lightning_hangcheck.text.shown import NANOSECONDS, format_ranks, read_utc, several, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.evidence import ProcessLook
    from lightning_hangcheck.model.slugs import VerdictKind
    from lightning_hangcheck.model.verdict import Edge, Gap, RankState, State, Verdict

KIND_WORDS: dict[VerdictKind, str] = {
    "healthy": "every rank advances",
    "suspect": "a rank is silent and others wait for it; not yet proven",
    "slow": "the job advances, but far below its own pace; this is no hang",
    "hang": "no rank can advance, or some cannot and the rest wait for them",
    "dead": "a rank is gone and others wait for it",
    "crashed": "the job ended because a rank failed",
    "recovered": "the job advances again after a suspicion or a hang",
    "finished": "the job ended without a fault",
}
BLOCKED = ("hang", "dead", "suspect")
FEWEST_BLANKS = 2
HOURS_FROM_S = 2 * SECONDS_PER_HOUR
LONGEST_RANKS = 24
DOING, FUNCTION, LINE = 2, 3, 4
STATE_WORDS: dict[State, tuple[str, str]] = {
    "running": ("runs", "run"),
    "waiting": ("waits", "wait"),
    "stalled": ("is stuck", "are stuck"),
    "stopped": ("is stopped", "are stopped"),
    "gone": ("is gone", "are gone"),
    "missing": ("never came", "never came"),
    "unseen": ("is unseen", "are unseen"),
}
"""Singular and plural."""
PAST_WORDS: dict[State, tuple[str, str]] = {
    **STATE_WORDS,
    "waiting": ("waited", "waited"),
    "stalled": ("was stuck", "were stuck"),
    "stopped": ("was stopped", "were stopped"),
    "unseen": ("was unseen", "were unseen"),
}
# The 40 lines: these, the two blank lines, and two lines of `more`.
MOST_HEADLINE = 4
MOST_ROWS = 7
MOST_WHY = 3
MOST_PROOF = 8
MOST_REMEDIES = 10
MOST_GAPS = 4
LONGEST_WITH_COMMAND = 95
"""A longer remedy has its command on a line of its own, so that it can be copied whole."""
ASIDES = {"lost": 1, "saves": 2}
"""Kinds of evidence that are no proof, with their lines, which the ranks then lack."""


def render(case: Case | None, verdict: Verdict, run_folder: str) -> str:
    """Write the whole report.

    Args:
        case: What the verdict was made from, for the time of each rank's last progress; the report
            does without where it is None.
        verdict: Of any kind.
        run_folder: As the reader should type it.

    Returns:
        Lines of at most 120 columns (except where a single word, such as a path, is longer), ending
        in a newline, without colour.
    """
    asides = [line for kind in ASIDES for line in _aside(verdict, kind)]
    rows = _rank_rows(verdict, case, MOST_ROWS - len(asides))
    why = reason(verdict)
    proof = (of_rank(one.rank, one.text) for one in verdict.evidence if one.kind not in ASIDES)
    more = _report_command(run_folder)
    untold = verdict.verdict == "crashed" and verdict.cause == "unknown"
    if verdict.cause in causes() and not untold:
        more += labelled("", f"hangcheck explain {verdict.cause}", most=1)
    lines = [
        *_headline(verdict),
        "",
        *rows,
        *([""] if rows else []),
        *(labelled("why", why, MOST_WHY) if why else []),
        *listed("proof", proof, MOST_PROOF),
        *asides,
        *listed("do", _remedies(verdict), MOST_REMEDIES),
        *listed("not seen", gap_lines(verdict.gaps), MOST_GAPS),
        *more,
    ]
    return "\n".join(lines) + "\n"


def render_line(verdict: Verdict) -> str:
    """Write a verdict as one line, without a newline: what a suspicion or a recovery is worth."""
    cost = stall_cost(verdict)
    return f"{verdict.verdict.upper()}  {summary(verdict)}" + (f"  ({cost})" if cost else "")


def render_short(verdict: Verdict, run_folder: str) -> str:
    """Write it as one line that names the run folder, and below it how to save the next time."""
    line = f"{render_line(verdict)}; run folder {shlex.quote(run_folder)}"
    return "\n".join([line, *_aside(verdict, "saves")])


def render_reminder(verdict: Verdict, stood_s: float, run_folder: str) -> str:
    """Write as one line that a verdict still stands."""
    kind, place = verdict.verdict.upper(), shlex.quote(run_folder)
    still = f"still so {duration(stood_s)} later; the last report: {summary(verdict)}"
    return f"{kind}  {still}; run folder {place}"


def render_again(verdict: Verdict, run_folder: str) -> str:
    """Write a verdict that was reported before, with what is new in its summary, as two lines."""
    return "\n".join([render_line(verdict), *_report_command(run_folder)])


def summary(verdict: Verdict) -> str:
    """Return the verdict's sentence, or its kind's where it has none."""
    return plain(verdict.summary) or KIND_WORDS[verdict.verdict]


def reason(verdict: Verdict) -> str:
    """Say the cause and who waits for whom; empty of a crash, whose summary says it all."""
    if verdict.cause is None or verdict.verdict == "crashed":
        return ""
    parts = []
    if verdict.seen_in != "files":  # what a cause looks like in files, the summary says
        said = explanation(verdict.cause, verdict.world_size, len(verdict.culprits))
        parts.append(said.rstrip("."))
    if verdict.victims and verdict.culprits:
        wait = "waits" if len(verdict.victims) == 1 else "wait"
        verb = "waited" if verdict.verdict == "recovered" else wait
        parts.append(f"{name_ranks(verdict.victims)} {verb} for {name_ranks(verdict.culprits)}")
    reasons = "; ".join(filter(None, parts))
    told = f"{verdict.cause}: {reasons}" if reasons else verdict.cause
    unproven = "; not proven yet" if verdict.verdict == "suspect" else ""
    return f"{told} (confidence {verdict.confidence:.2f}{unproven})"


def stall_cost(verdict: Verdict) -> str:
    """What the stall costs so far; a rank hour is one rank's place for one hour, used or not."""
    stalled_s = verdict.stalled_for_s
    if stalled_s <= 0 or verdict.verdict not in (*BLOCKED, "recovered"):
        return ""
    verb = "blocked" if verdict.verdict in BLOCKED else "was blocked"
    # in hours from two hours on: it stands beside rank hours
    hours = f"{stalled_s / SECONDS_PER_HOUR:.1f} h"
    shown = duration(stalled_s) if stalled_s < HOURS_FROM_S else hours
    of_ranks = rank_time(verdict.world_size, stalled_s)
    return f"job {verb} {shown}{f' = {of_ranks}' if of_ranks else ''}"


def gap_lines(gaps: Sequence[Gap]) -> Iterator[str]:
    """Say what could not be seen; gaps with one reason share one item.

    A missing py-spy is one fact, not one for each rank.
    """
    together: dict[str, list[Gap]] = {}
    for gap in gaps:
        together.setdefault(gap.why, []).append(gap)
    for why, same in together.items():
        ranks = sorted({gap.rank for gap in same if gap.rank is not None})
        others = len({gap.what for gap in same}) - 1
        what = same[0].what + (f" and {others} more" if others else "")
        yield f"{name_ranks(ranks)}: {what}: {why}" if ranks else f"{what}: {why}"


def _headline(verdict: Verdict) -> list[str]:
    """The kind, the summary and the cost, on one line where they fit."""
    cost = stall_cost(verdict)
    kind = f"{verdict.verdict.upper()}  "
    lines = wrapped(summary(verdict), kind, INDENT, MOST_HEADLINE - bool(cost))
    if not cost:
        return lines
    room = WIDTH - len(lines[-1])
    if room >= len(cost) + FEWEST_BLANKS:
        return [*lines[:-1], lines[-1] + cost.rjust(room)]
    return [*lines, f"{INDENT}{cost}"]


def _aside(verdict: Verdict, kind: str) -> list[str]:
    told = [item.text for item in verdict.evidence if item.kind == kind]
    return labelled(kind, told[0], most=ASIDES[kind]) if told else []


def _remedies(verdict: Verdict) -> Iterator[str]:
    for number, remedy in enumerate(verdict.remedies, start=1):
        text = remedy.in_words
        below = [f"see {remedy.see}"] if remedy.see else []
        if remedy.command and len(text) > LONGEST_WITH_COMMAND:
            text, below = f"{remedy.text}:", [remedy.command, *below]
        first, *others = text.splitlines() or [""]
        yield "\n".join([f"{number}. {first}", *(f"   {line}" for line in [*others, *below])])


def _report_command(run_folder: str) -> list[str]:
    """Commands stand one a line, so that each can be copied whole."""
    return labelled("more", f"hangcheck report {shlex.quote(run_folder)}", most=1)


def name_ranks(ranks: Sequence[int]) -> str:
    """Write ``rank 1`` or ``ranks 0,2-7``; long lists are cut and counted."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {number_ranks(ranks)}"


def number_ranks(ranks: Sequence[int]) -> str:
    """Write ``1`` or ``0,2-7``; long lists are cut and counted."""
    text = format_ranks(ranks)
    if len(text) > LONGEST_RANKS:
        shown = text[: LONGEST_RANKS - 10].rpartition(",")[0]
        more = "or more" if len(ranks) == MOST_LISTED else "in all"
        text = f"{shown},... ({len(ranks)} {more})"
    return text


def short_path(path: str) -> str:
    """Keep the last two parts of a path, enough to tell files of one project apart."""
    return "/".join(path.split("/")[-2:])


class Place(NamedTuple):
    """A function and where in it, for example ``prepare`` and ``train.py:88``."""

    function: str = ""
    line: str = ""


class Situation(NamedTuple):
    """What ranks in equal standing have in common."""

    is_culprit: bool
    state: tuple[str, str]
    doing: str
    place: Place
    phase: str


def users_frame(frames: Sequence[str]) -> Frame | None:
    """Return the innermost frame of the user's own code, None where there is none."""
    read = (Frame.parse(text) for text in reversed(frames))
    return next((frame for frame in read if frame is not None and is_users(frame.file)), None)


def _place(frames: Sequence[str]) -> Place:
    """The user's innermost frame; the innermost of all where none is theirs and it can be read."""
    read = (frame for text in reversed(frames) if (frame := Frame.parse(text)))
    frame = users_frame(frames) or next(read, None)
    function = "" if frame is None or frame.function == MODULE else frame.function
    return Place(function, f"{short_path(frame.file)}:{frame.line}") if frame else Place()


def edges_by_source(verdict: Verdict) -> dict[str, list[Edge]]:
    """Return the arrows of the wait-for graph that leave each node."""
    edges: dict[str, list[Edge]] = {}
    for edge in verdict.wait_for:
        edges.setdefault(edge.source, []).append(edge)
    return edges


def situations(verdict: Verdict) -> list[tuple[Situation, list[RankState]]]:
    """Group the ranks of the table by what they have in common, culprits first, then by rank."""
    edges = edges_by_source(verdict)
    places = {group.id: _place(group.frames) for group in verdict.stack_groups}
    culprits = frozenset(verdict.culprits)
    words = PAST_WORDS if verdict.verdict == "recovered" else STATE_WORDS
    rows: dict[Situation, list[RankState]] = {}
    for state in verdict.ranks:
        inside = f"in {plain(state.open_sections[-1])}" if state.open_sections else ""
        waits = edges.get(f"rank:{state.rank}")
        situation = Situation(
            is_culprit=state.rank in culprits,
            state=("ended",) * 2 if verdict.verdict == "finished" else words[state.state],
            doing=plain(waits[0].through) if waits else inside,
            place=places.get(-1 if state.stack_group is None else state.stack_group, Place()),
            phase=state.phase or "",
        )
        rows.setdefault(situation, []).append(state)
    return sorted(rows.items(), key=lambda row: (not row[0].is_culprit, row[1][0].rank))


def _rank_rows(verdict: Verdict, case: Case | None, most: int) -> list[str]:
    """The rank table; ranks that do not fit share the last line."""
    edges, seen = edges_by_source(verdict), _last_seen(case)
    rows = situations(verdict)
    fitting = most if len(rows) <= most else most - 1
    cells = [_cells(situation, states, edges, seen) for situation, states in rows[:fitting]]
    lines = aligned(cells, shrinking=(DOING, FUNCTION, LINE), tails=LINE)
    left_out = [state.rank for _, states in rows[fitting:] for state in states]
    if left_out:
        rest = f"in {len(rows) - fitting} more situations, see verdict.json"
        lines.append(f"{INDENT}{name_ranks(left_out)}  {rest}")
    return lines


def _last_seen(case: Case | None) -> dict[int, tuple[float, str]]:
    """Of each rank ``since 10:23:45Z`` or, where its process is gone, how it ended; and an order.

    Nothing is known of that where the evidence was read from files. Times are UTC, as in
    verdict.json; a renderer does not ask the machine for its time zone.
    """
    if case is None or case.left is not None:
        return {}
    taken = read_utc(case.taken_at)
    seen = {}
    for view in case.ranks:
        order = -view.silent_for_s if view.process_exit is None else view.process_exit.order
        if view.process_exit is None:
            shown = f"since {taken - timedelta(seconds=view.silent_for_s):%H:%M:%S}Z"
        elif (code := view.process_exit.exit_code) is None:
            shown = "exit code unseen"
        elif -code in set(Signals):  # as in Python's subprocess
            shown = f"killed by {Signals(-code).name}"
        else:
            shown = f"exit code {code}"
        seen[view.rank] = (order, shown)
    return seen


def _cells(
    situation: Situation,
    states: Sequence[RankState],
    edges: Mapping[str, Sequence[Edge]],
    seen: Mapping[int, tuple[float, str]],
) -> tuple[str, ...]:
    ranks = [state.rank for state in states]
    runs, own = situation.state == STATE_WORDS["running"], {f"rank:{rank}" for rank in ranks}
    targets = [edge.target for rank in ranks for edge in edges.get(f"rank:{rank}", ())]
    made = [state.step for state in states if state.step is not None and not targets]
    steps = ""
    if made:
        first, last = min(made), max(made)
        steps = f"step {first}" if first == last else f"steps {first}-{last}"
    waited_for = awaited(target for target in targets if target not in own)
    if situation.doing.startswith("for "):  # "for the lock, file cache/lock-1"
        waited_for = waited_for.removeprefix("for ")
    mark = states[0].last_checkpoint
    passed = f"after checkpoint {mark.number} {plain(mark.name)}" if mark else ""
    return (
        name_ranks(ranks),
        situation.state[len(ranks) > 1],
        ", ".join(filter(None, (steps, situation.doing, waited_for))) or passed,
        plain(situation.place.function),
        plain(situation.place.line).rpartition("/")[2],
        f"phase {situation.phase}" if situation.phase else "",
        "" if runs else min((seen[rank] for rank in ranks if rank in seen), default=(0, ""))[1],
    )


def awaited(targets: Iterable[str]) -> str:
    """Name what the graph's nodes stand for: ``for ranks 1,3`` or ``for worker 1/0``."""
    nodes = sorted({tuple(target.partition(":")[::2]) for target in targets})
    ranks = [int(name) for kind, name in nodes if kind == "rank"]
    if ranks:
        return f"for {name_ranks(ranks)}"
    for kind, name in nodes:
        return f"for {kind} {plain(short_path(name) if kind == 'file' else name)}"
    return ""


def render_stacks(case: Case) -> str:
    """Write every sample of every process, oldest first, frames outermost first.

    Returns:
        Text that ends in a newline; what could not be seen stands at its end.
    """
    lines = [f"stacks of run {case.run.run_id}, taken at {case.taken_at}"]
    for view in case.ranks:
        for look in view.processes:
            count = several(len(look.samples), "sample")
            lines += ["", f"{name_process(view.rank, look)} (pid {look.pid}), {count}"]
            lines += _samples(look, case.taken_ns)
    if case.gaps:
        lines += ["", "not seen"]
    for gap in case.gaps:
        whose = "" if gap.rank is None else f"rank {gap.rank}: "
        lines.append(f"  {whose}{gap.what}: {gap.reason}")
    return "\n".join(map(visible, lines)) + "\n"


def name_process(rank: int, look: ProcessLook) -> str:
    """Name a process of a rank, for example ``rank 1`` or ``worker 1/0``."""
    return f"rank {rank}" if look.role == "rank" else f"{look.role} {rank}/{look.index}"


def _samples(look: ProcessLook, taken_ns: int) -> Iterator[str]:
    for sample in look.samples:
        yield f"  {(taken_ns - sample.taken_ns) / NANOSECONDS:.1f} s before the end"
        if (kernel := sample.kernel) is not None:
            waits = kernel.threads[0].wchan if kernel.threads else ""
            where = f", main thread in {waits}" if waits else ""
            yield f"    kernel: state {kernel.state}, {kernel.cpu_s:.2f} s CPU{where}"
        for thread in shown_threads(sample.stack) if sample.stack is not None else ():
            marks = filter(None, ("active" * thread.active, "gil" * thread.owns_gil))
            shown = ", ".join(marks)
            holds = f" ({shown})" if shown else ""
            yield f"    thread {thread.name or thread.tid or '?'}{holds}"
            for frame in thread.frames:
                yield f"      {frame}"
