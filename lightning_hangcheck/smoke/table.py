"""What a smoke test found: what the runs say together, and all of it as plain text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.report.paragraphs import aligned, labelled, listed
from lightning_hangcheck.text.shown import several

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.verdict import RankState, Verdict
    from lightning_hangcheck.smoke.sequence import Outcome, Result

SHOWN: dict[Result, tuple[str, str]] = {
    "passed": ("passed", "passed"),
    "hang": ("HANG", "hangs"),
    "late": ("LATE", "did not end in its time"),
    "failed": ("FAILED", "failed"),
}
"""In the table, and in the headline."""


class Meaning(NamedTuple):
    """What it says, and what to do; the first step first."""

    sentence: str
    remedies: tuple[str, ...] = ()


PASSED = Meaning("the runs that usually show a hang at once all ended well")
ONLY_WITH_WORKERS = Meaning(
    "only with workers: the DataLoader, or what its fork copies (threads, locks, open connections)",
    (
        "go on with num_workers=0, and see which worker stands where in the verdict",
        'start workers without fork: DataLoader(..., multiprocessing_context="spawn")',
        "export TOKENIZERS_PARALLELISM=false: a tokenizer's threads do not survive a fork",
    ),
)
ONLY_WITH_RANKS = Meaning(
    "only with 2 ranks: communication between them, or a call that only some ranks make",
    (
        "look for calls under a rank condition (if rank == 0, is_global_zero, rank_zero_only) that "
        "the other ranks wait for: logger, barrier, save, validation",
        'say strategy="ddp" in place of "auto"',
        "see what the connection does: NCCL_DEBUG=INFO with GPUs, TORCH_DISTRIBUTED_DEBUG=INFO "
        "without; and name the interface: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME",
    ),
)
ALONE_TOO = Meaning(
    "alone, too: the program itself, not communication and not the number of ranks",
    ("mend the run with 1 process first: it is the quickest to repeat",),
)
ONLY_ALONE = Meaning(
    "only alone: the program needs what a launcher gives (a process group, RANK, WORLD_SIZE)",
    ("start it with the launcher for one rank, too: torchrun --nproc_per_node=1",),
)
WITHOUT_WORKERS_TOO = Meaning(
    "without workers, too: not the DataLoader's workers",
    ("let the number of ranks be chosen as well: write {devices} where the command names it",),
)
NOTHING_TO_COMPARE = Meaning(
    "nothing was compared: the command names neither {devices} nor {workers}, so it ran once",
    ("write {devices} and {workers} in the command where it names these numbers",),
)


def interpret(outcomes: Sequence[Outcome]) -> Meaning:
    """Say what it means which of the runs passed, and which did not."""
    passed = {(one.trial.devices, one.trial.workers): one.result == "passed" for one in outcomes}
    if (None, None) in passed:
        return NOTHING_TO_COMPARE
    if all(passed.values()):
        return PASSED
    alone = next((well for (devices, _), well in passed.items() if devices == 1), None)
    without = next(
        (well for (devices, workers), well in passed.items() if devices != 1 and not workers), None
    )
    if alone is False:
        return ONLY_ALONE if without else ALONE_TOO
    if alone is None and without is False:
        return WITHOUT_WORKERS_TOO
    return ONLY_WITH_WORKERS if without else ONLY_WITH_RANKS


def first_trouble(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The first run that hangs; where none hangs, the first that did not pass."""
    hung = (one for one in outcomes if one.result in ("hang", "late"))
    return next(hung, next((one for one in outcomes if one.result != "passed"), None))


def name_picture(verdict: Verdict) -> str:
    """Name which of three usual pictures this is, and what it says; empty where it is none."""
    phases = {state.phase for state in verdict.ranks}
    who = "all ranks are" if len(verdict.ranks) > 1 else "the process is"
    if phases == {"logger_init"}:
        return f"at the logger: {who} creating the experiment logger, and none came out of it"
    if phases and phases <= {"trainer_init", "rendezvous"}:
        return f"at the Trainer: {who} in its constructor or in its first rendezvous"
    furthest = max(map(_reached, verdict.ranks), default=(0, 0))
    ahead = [state for state in verdict.ranks if _reached(state) == furthest]
    if len(ahead) != 1 or len(verdict.ranks) < 2:
        return ""
    mark, step = ahead[0].last_checkpoint, ahead[0].step
    reached = [] if mark is None else [f"checkpoint {mark.number} {mark.name}"]
    reached += [] if step is None else [f"step {step}"]
    there = ", ".join(reached)
    return f"one rank ahead: rank {ahead[0].rank} has come to {there}, and no other rank has"


def _reached(state: RankState) -> tuple[int, int]:
    mark = state.last_checkpoint
    return mark.number if mark is not None else 0, -1 if state.step is None else state.step


def render(outcomes: Sequence[Outcome]) -> str:
    """Write it all, at most 40 lines, ending in a newline."""
    meaning, trouble = interpret(outcomes), first_trouble(outcomes)
    runs, passed = several(len(outcomes), "run"), sum(one.result == "passed" for one in outcomes)
    headline = f"SMOKE  {runs} passed"
    if trouble is not None:
        said = SHOWN[trouble.result][1]
        headline = f"SMOKE  {trouble.trial.name}: {said}; {passed} of {runs} passed"
    rows = []
    for one in outcomes:
        verdict = one.verdict if one.result in ("hang", "late") else None
        phase = f"phase {verdict.phase}" if verdict and verdict.phase else ""
        facts = f"{verdict.cause or '' if verdict else ''}  {phase}".strip()
        rows.append((one.trial.name, SHOWN[one.result][0], f"{one.seconds:.1f} s", facts))
    lines = [headline, "", *aligned(rows, (3,), -1), ""]
    known = trouble.verdict if trouble is not None else None
    if trouble is not None:
        lines += labelled("where", trouble.where, most=5)
    if known is not None and (picture := name_picture(known)):
        lines += labelled("picture", picture, most=3)
    lines += labelled("means", meaning.sentence, most=3)
    # what is known of this hang says more than what is known of its kind
    texts = [*(remedy.text for remedy in (known.remedies[:1] if known else ())), *meaning.remedies]
    remedies = [f"{number}. {text}" for number, text in enumerate(texts, start=1)]
    lines += listed("do", remedies, most=10) if remedies else []
    if trouble is not None:
        lines += labelled("more", f"hangcheck report {shlex.quote(trouble.run_folder)}", most=1)
        lines += labelled("", f"what it printed: {trouble.output_file}", most=1)
    return "\n".join(lines) + "\n"
