"""Renders the verdict as text, to be understood in 10 s: at most 40 lines at any world size.

First who, where and why; then a row per group of equal ranks, proof, what to do, and gaps.
`render_stacks` writes the evidence's stacks.txt.
"""

from __future__ import annotations

import shlex
from datetime import timedelta
from signal import Signals
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.judge.alike import shown_threads
from lightning_hangcheck.judge.knowledge import causes_file
from lightning_hangcheck.judge.wording import duration, rank_time
from lightning_hangcheck.model.code_owner import MODULE, is_users
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.verdict import MOST_LISTED
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
from lightning_hangcheck.text.moments import read_utc
from lightning_hangcheck.text.shown import NANOSECONDS, format_ranks, parse_ranks, several, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
LONGEST_WITH_COMMAND = 95
"""A longer remedy has its command on a separate line, for copying."""
ASIDES = {"lost": 1, "saves": 2}
"""Kinds of evidence that are no proof, with the lines that they take from the rank table."""


def render(case: Case | None, verdict: Verdict, run_folder: str) -> str:
    """Write the whole report; the case adds how long each rank has been silent.

    Returns:
        Lines of at most 120 columns (longer only for a single word, such as a path), ending in a
        newline, without colour.
    """
    asides = [line for kind in ASIDES for line in _aside(verdict, kind)]
    why = reason(verdict)
    proof = (of_rank(item.rank, item.text) for item in verdict.evidence if item.kind not in ASIDES)
    # at most 40 lines: 4 + 7 + 3 + 8 + 10 + 4, two blank lines, two with commands
    rows = _rank_rows(verdict, case, 7 - len(asides))
    cost = stall_cost(verdict)
    lines = wrapped(summary(verdict), f"{verdict.verdict.upper()}  ", INDENT, 4 - bool(cost))
    room = WIDTH - len(lines[-1])
    if cost and room >= len(cost) + 2:
        lines[-1] += cost.rjust(room)
    elif cost:
        lines.append(f"{INDENT}{cost}")
    lines += ["", *rows, *([""] if rows else [])]
    if why:
        lines += labelled("why", why, 3)
    lines += [*listed("proof", proof, 8), *asides]
    lines += [
        *listed("do", _remedies(verdict), 10),
        *listed("not seen", gap_lines(verdict.gaps), 4),
    ]
    lines += _report_command(run_folder)
    if verdict.cause in causes_file().cause and (verdict.verdict, verdict.cause) != (
        "crashed",
        "unknown",
    ):
        lines += labelled("", f"hangcheck explain {verdict.cause}", most=1)
    return "\n".join(lines) + "\n"


def render_line(verdict: Verdict) -> str:
    """Write a verdict as one line without a newline, as for a suspicion or a recovery."""
    cost = stall_cost(verdict)
    return f"{verdict.verdict.upper()}  {summary(verdict)}" + (f"  ({cost})" if cost else "")


def render_short(verdict: Verdict, run_folder: str) -> str:
    """Write one line with the run folder (and a suspicion's remedy); below, advice on saving."""
    line = render_line(verdict)
    if verdict.verdict == "suspect" and verdict.remedies:
        line += f"; do: {plain(' '.join(verdict.remedies[0].in_words.split()))}"
    line += f"; run folder {shlex.quote(run_folder)}"
    return "\n".join([line, *_aside(verdict, "saves")])


def render_reminder(verdict: Verdict, stood_s: float, run_folder: str) -> str:
    """Write in one line that a verdict still holds."""
    still = f"still so {duration(stood_s)} later; the last report: {summary(verdict)}"
    return f"{verdict.verdict.upper()}  {still}; run folder {shlex.quote(run_folder)}"


def render_again(verdict: Verdict, run_folder: str) -> str:
    """Write a verdict that was reported before, with its changed summary, in two lines."""
    return "\n".join([render_line(verdict), *_report_command(run_folder)])


def summary(verdict: Verdict) -> str:
    """Return the verdict's summary, or the words for its kind if there is none."""
    return plain(verdict.summary) or KIND_WORDS[verdict.verdict]


def reason(verdict: Verdict) -> str:
    """Say the cause and who waits for whom; empty for a crash, whose summary says it all."""
    if verdict.cause is None or verdict.verdict == "crashed":
        return ""
    parts = []
    if verdict.seen_in != "files":  # for a cause found in files, the summary has the explanation
        known, size = causes_file().cause.get(verdict.cause), verdict.world_size
        if known is not None:  # else only a newer version knows the cause
            all_stuck = known.together if len(verdict.culprits) >= size else ""
            said = known.alone if size <= 1 else all_stuck
            parts.append((said or known.explanation).rstrip("."))
    if verdict.victims and verdict.culprits:
        wait = "waits" if len(verdict.victims) == 1 else "wait"
        verb = "waited" if verdict.verdict == "recovered" else wait
        parts.append(f"{name_ranks(verdict.victims)} {verb} for {name_ranks(verdict.culprits)}")
    reasons = "; ".join(filter(None, parts))
    cause = f"{verdict.cause}: {reasons}" if reasons else verdict.cause
    unproven = "; not proven yet" if verdict.verdict == "suspect" else ""
    return f"{cause} (confidence {verdict.confidence:.2f}{unproven})"


def stall_cost(verdict: Verdict) -> str:
    """Return the cost of the stall so far; one rank hour is one rank for one hour, used or not."""
    stalled_s = verdict.stalled_for_s
    if stalled_s <= 0 or verdict.verdict not in (*BLOCKED, "recovered"):
        return ""
    verb = "blocked" if verdict.verdict in BLOCKED else "was blocked"
    # in hours from 2 h on, as the rank hours next to it
    shown = duration(stalled_s) if stalled_s < 7200 else f"{stalled_s / 3600:.1f} h"
    of_ranks = rank_time(verdict.world_size, stalled_s)
    return f"job {verb} {shown}{f' = {of_ranks}' if of_ranks else ''}"


def gap_lines(gaps: Sequence[Gap]) -> Iterator[str]:
    """Say what could not be seen; gaps with the same reason share one item."""
    together: dict[str, list[Gap]] = {}
    for gap in gaps:
        together.setdefault(gap.why, []).append(gap)
    for why, same in together.items():
        ranks = sorted({gap.rank for gap in same if gap.rank is not None})
        others = len({gap.what for gap in same}) - 1
        what = same[0].what + (f" and {others} more" if others else "")
        yield f"{name_ranks(ranks)}: {what}: {why}" if ranks else f"{what}: {why}"


def _aside(verdict: Verdict, kind: str) -> list[str]:
    texts = [item.text for item in verdict.evidence if item.kind == kind]
    return labelled(kind, texts[0], most=ASIDES[kind]) if texts else []


def _remedies(verdict: Verdict) -> Iterator[str]:
    for number, remedy in enumerate(verdict.remedies, start=1):
        text = remedy.in_words
        below = [f"see {remedy.see}"] if remedy.see else []
        if remedy.command and len(text) > LONGEST_WITH_COMMAND:
            text, below = f"{remedy.text}:", [remedy.command, *below]
        first, *others = text.splitlines() or [""]
        yield "\n".join([f"{number}. {first}", *(f"   {line}" for line in [*others, *below])])


def _report_command(run_folder: str) -> list[str]:
    """Write the command on its own line, for copying; nothing if no run was saved."""
    command = f"hangcheck report {shlex.quote(run_folder)}"
    return labelled("more", command, most=1) if run_folder else []


def name_ranks(ranks: Sequence[int]) -> str:
    """Write ``rank 1`` or ``ranks 0,2-7``; long lists are cut and counted."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {number_ranks(ranks)}"


def number_ranks(ranks: Sequence[int]) -> str:
    """Write ``1`` or ``0,2-7``; lists of more than 24 characters are cut and counted."""
    text = format_ranks(ranks)
    if len(text) > 24:
        more = "or more" if len(ranks) == MOST_LISTED else "in all"
        text = f"{text[:14].rpartition(',')[0]},... ({len(ranks)} {more})"
    return text


def short_path(path: str) -> str:
    """Keep the last two parts of a path, enough to distinguish files of one project."""
    return "/".join(path.split("/")[-2:])


class Situation(NamedTuple):
    """What equal ranks have in common; ``place`` is function and line."""

    is_culprit: bool
    state: tuple[str, str]
    doing: str
    place: tuple[str, str] = ("", "")
    phase: str = ""

    @property
    def location(self) -> str:
        """Where they are, in few words."""
        return " ".join(self.place).strip() or self.doing or self.phase


class EqualRanks(NamedTuple):
    """Ranks with the same situation, ascending, and their rows of the verdict's table."""

    situation: Situation
    ranks: tuple[int, ...]
    states: list[RankState]


def users_frame(frames: Sequence[str]) -> Frame | None:
    """Return the innermost frame of the user's own code, or None."""
    read = (Frame.parse(text) for text in reversed(frames))
    return next((frame for frame in read if frame is not None and is_users(frame.file)), None)


def _place(frames: Sequence[str]) -> tuple[str, str]:
    """Return the user's innermost frame, or else the innermost that can be parsed."""
    read = (frame for text in reversed(frames) if (frame := Frame.parse(text)))
    frame = users_frame(frames) or next(read, None)
    if frame is None:
        return "", ""
    function = "" if frame.function == MODULE else frame.function
    return function, f"{short_path(frame.file)}:{frame.line}"


def edges_by_source(verdict: Verdict) -> dict[str, list[Edge]]:
    """Return the edges of the wait-for graph by the node that they leave."""
    edges: dict[str, list[Edge]] = {}
    for edge in verdict.wait_for:
        edges.setdefault(edge.source, []).append(edge)
    return edges


def equal_ranks(verdict: Verdict) -> list[EqualRanks]:
    """Group all ranks by their situation, culprits first, then by rank.

    Above 1,024 ranks a verdict's table has only culprits and one rank per stack group; the other
    ranks have that rank's situation.
    """
    edges = edges_by_source(verdict)
    places = {group.id: _place(group.frames) for group in verdict.stack_groups}
    culprits = frozenset(verdict.culprits)
    words = PAST_WORDS if verdict.verdict == "recovered" else STATE_WORDS
    together: dict[Situation, list[RankState]] = {}
    for state in verdict.ranks:
        inside = f"in {plain(state.open_sections[-1])}" if state.open_sections else ""
        waits = edges.get(f"rank:{state.rank}")
        situation = Situation(
            is_culprit=state.rank in culprits,
            state=("ended",) * 2 if verdict.verdict == "finished" else words[state.state],
            doing=plain(waits[0].through) if waits else inside,
            place=places.get(-1 if state.stack_group is None else state.stack_group, ("", "")),
            phase=state.phase or "",
        )
        together.setdefault(situation, []).append(state)
    tabled = {state.rank for state in verdict.ranks}
    untabled = {
        group.id: [rank for rank in parse_ranks(group.ranks) if rank not in tabled]
        for group in verdict.stack_groups
        if group.process == "rank"
    }
    found = []
    for situation, states in together.items():
        ranks = {state.rank for state in states}
        for state in states:
            if state.stack_group is not None and not situation.is_culprit:
                ranks.update(untabled.pop(state.stack_group, ()))
        found.append(EqualRanks(situation, tuple(sorted(ranks)), states))
    return sorted(found, key=lambda ranks: (not ranks.situation.is_culprit, ranks.states[0].rank))


def _rank_rows(verdict: Verdict, case: Case | None, most: int) -> list[str]:
    edges, seen = edges_by_source(verdict), _last_seen(case)
    every = equal_ranks(verdict)
    fitting = most if len(every) <= most else most - 1
    cells = []
    for situation, ranks, states in every[:fitting]:
        own = {f"rank:{rank}" for rank in ranks}
        targets = [edge.target for node in own for edge in edges.get(node, ())]
        made = sorted({state.step for state in states if state.step is not None and not targets})
        steps = (
            f"steps {made[0]}-{made[-1]}" if len(made) > 1 else f"step {made[0]}" if made else ""
        )
        waited_for = awaited(target for target in targets if target not in own)
        if situation.doing.startswith("for "):  # "for the lock, file cache/lock-1"
            waited_for = waited_for.removeprefix("for ")
        mark = states[0].last_checkpoint
        passed = f"after checkpoint {mark.number} {plain(mark.name)}" if mark else ""
        function, line = situation.place
        runs = situation.state == STATE_WORDS["running"]
        last = min((seen[rank] for rank in ranks if rank in seen), default=(0, ""))[1]
        cells.append(
            (
                name_ranks(ranks),
                situation.state[len(ranks) > 1],
                ", ".join(filter(None, (steps, situation.doing, waited_for))) or passed,
                plain(function),
                plain(line).rpartition("/")[2],
                f"phase {situation.phase}" if situation.phase else "",
                "" if runs else last,
            )
        )
    lines = aligned(cells, shrinking=(2, 3, 4), tails=4)
    left_out = [rank for ranks in every[fitting:] for rank in ranks.ranks]
    if left_out:
        rest = f"in {len(every) - fitting} more situations, see verdict.json"
        lines.append(f"{INDENT}{name_ranks(left_out)}  {rest}")
    return lines


def _last_seen(case: Case | None) -> dict[int, tuple[float, str]]:
    """Return, per rank, a sort key and ``since 10:23:45Z`` or how its process ended.

    Evidence from files does not tell this. Times are UTC, as in verdict.json; a renderer does not
    ask for the machine's time zone.
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


def awaited(targets: Iterable[str]) -> str:
    """Name what is waited for: ``for ranks 1,3`` or ``for worker 1/0``."""
    nodes = sorted({tuple(target.partition(":")[::2]) for target in targets})
    ranks = [int(name) for kind, name in nodes if kind == "rank"]
    if ranks:
        return f"for {name_ranks(ranks)}"
    for kind, name in nodes:
        return f"for {kind} {plain(short_path(name) if kind == 'file' else name)}"
    return ""


def render_stacks(case: Case) -> str:
    """Write all samples of all processes, oldest first, frames outermost first; gaps last."""
    lines = [f"stacks of run {case.run.run_id}, taken at {case.taken_at}"]
    for rank, look in ((view.rank, look) for view in case.ranks for look in view.processes):
        count = several(len(look.samples), "sample")
        lines += ["", f"{name_process(rank, look)} (pid {look.pid}), {count}"]
        for sample in look.samples:
            lines.append(
                f"  {(case.taken_ns - sample.taken_ns) / NANOSECONDS:.1f} s before the end"
            )
            if (kernel := sample.kernel) is not None:
                waits = kernel.threads[0].wchan if kernel.threads else ""
                where = f", main thread in {waits}" if waits else ""
                lines.append(f"    kernel: state {kernel.state}, {kernel.cpu_s:.2f} s CPU{where}")
            for thread in shown_threads(sample.stack) if sample.stack is not None else ():
                marks = ", ".join(filter(None, ("active" * thread.active, "gil" * thread.owns_gil)))
                holds = f" ({marks})" if marks else ""
                lines.append(f"    thread {thread.name or thread.tid or '?'}{holds}")
                lines += [f"      {frame}" for frame in thread.frames]
    if case.gaps:
        lines += ["", "not seen"]
    for gap in case.gaps:
        whose = "" if gap.rank is None else f"rank {gap.rank}: "
        lines.append(f"  {whose}{gap.what}: {gap.reason}")
    return "\n".join(map(visible, lines)) + "\n"


def name_process(rank: int, look: ProcessLook) -> str:
    """Name a process of a rank, for example ``rank 1`` or ``worker 1/0``."""
    return f"rank {rank}" if look.role == "rank" else f"{look.role} {rank}/{look.index}"
