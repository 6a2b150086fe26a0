"""What a smoke test found: what the runs say together, and all of it as plain text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.report.paragraphs import aligned, labelled, listed
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.model.naming.slugs import Phase
    from lightning_hangcheck.model.verdict import RankState, Verdict
    from lightning_hangcheck.smoke.sequence import Outcome, Result


class Meaning(Struct, frozen=True):
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
    """Say what it means which of the runs passed, and which did not.

    Args:
        outcomes: Of all planned runs.
    """
    passed = {(one.trial.devices, one.trial.workers): one.result == "passed" for one in outcomes}
    if all(passed.values()):
        return NOTHING_TO_COMPARE if passed.keys() == {(None, None)} else PASSED
    alone = next((well for (devices, _), well in passed.items() if devices == 1), None)
    without = next(
        (well for (devices, workers), well in passed.items() if devices != 1 and not workers), None
    )
    if alone is False:
        return ONLY_ALONE if without else ALONE_TOO
    if alone is None and without is False:
        several = len(passed) > 1
        return WITHOUT_WORKERS_TOO if several else NOTHING_TO_COMPARE
    return ONLY_WITH_WORKERS if without else ONLY_WITH_RANKS


def first_trouble(outcomes: Sequence[Outcome]) -> Outcome | None:
    """The first run that hangs; where none hangs, the first that did not pass."""
    troubled = [one for one in outcomes if one.result != "passed"]
    hung = [one for one in troubled if one.result in ("hang", "late")]
    return next(iter(hung or troubled), None)


AT_TRAINER: frozenset[Phase] = frozenset({"trainer_init", "rendezvous"})


def name_picture(verdict: Verdict) -> str:
    """Name the picture and what it says; empty where it is none of the three.

    Args:
        verdict: On a job that hangs, or that is suspected of it.
    """
    phases = {state.phase for state in verdict.ranks}
    several = len(verdict.ranks) > 1
    if phases == {"logger_init"}:
        subject = "all ranks are" if several else "the process is"
        return f"at the logger: {subject} creating the experiment logger, and none came out of it"
    if phases and phases <= AT_TRAINER:
        subject = "all ranks are" if several else "the process is"
        return f"at the Trainer: {subject} in its constructor or in its first rendezvous"
    ahead = _one_ahead(verdict.ranks) if several else None
    if ahead is not None:
        return (
            f"one rank ahead: rank {ahead.rank} has come to {_name(ahead)}, and no other rank has"
        )
    return ""


def _one_ahead(states: tuple[RankState, ...]) -> RankState | None:
    """The only rank that has passed the last checkpoint or step that any rank has passed."""
    furthest = max(map(_reached, states))
    there = [state for state in states if _reached(state) == furthest]
    return there[0] if len(there) == 1 else None


def _reached(state: RankState) -> tuple[int, int]:
    mark = state.last_checkpoint
    return mark.number if mark is not None else 0, -1 if state.step is None else state.step


def _name(state: RankState) -> str:
    mark = state.last_checkpoint
    checkpoint = f"checkpoint {mark.number} {mark.name}" if mark is not None else ""
    return ", ".join(filter(None, (checkpoint, "" if state.step is None else f"step {state.step}")))


SHOWN: dict[Result, str] = {
    "passed": "passed",
    "hang": "HANG",
    "late": "LATE",
    "failed": "FAILED",
}
SAID: dict[Result, str] = {
    "passed": "passed",
    "hang": "hangs",
    "late": "did not end in its time",
    "failed": "failed",
}


def render(outcomes: Sequence[Outcome]) -> str:
    """Write it all, at most 40 lines, ending in a newline.

    Args:
        outcomes: Of all planned runs, at least one.
    """
    meaning, trouble = interpret(outcomes), first_trouble(outcomes)
    lines = [_headline(outcomes, trouble), "", *aligned(list(_rows(outcomes)), (3,), -1), ""]
    if trouble is not None:
        lines += labelled("where", trouble.where, most=5)
        picture = name_picture(trouble.verdict) if trouble.verdict is not None else ""
        lines += labelled("picture", picture, most=3) if picture else []
    lines += labelled("means", meaning.sentence, most=3)
    # what is known of this hang says more than what is known of its kind
    best = trouble.verdict.remedies[:1] if trouble is not None and trouble.verdict else ()
    texts = [*(remedy.text for remedy in best), *meaning.remedies]
    remedies = [f"{number}. {text}" for number, text in enumerate(texts, start=1)]
    lines += listed("do", remedies, most=10) if remedies else []
    if trouble is not None:
        lines += labelled("more", f"hangcheck report {shlex.quote(trouble.run_folder)}", most=1)
        lines += labelled("", f"what it printed: {trouble.output_file}", most=1)
    return "\n".join(lines) + "\n"


def _headline(outcomes: Sequence[Outcome], trouble: Outcome | None) -> str:
    runs = several(len(outcomes), "run")
    if trouble is None:
        return f"SMOKE  {runs} passed"
    passed = sum(one.result == "passed" for one in outcomes)
    return f"SMOKE  {trouble.trial.name}: {SAID[trouble.result]}; {passed} of {runs} passed"


def _rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str, str, str]]:
    for one in outcomes:
        verdict = one.verdict if one.result in ("hang", "late") else None
        facts = (
            [verdict.cause or "", f"phase {verdict.phase}" if verdict.phase else ""]
            if verdict is not None
            else []
        )
        yield one.trial.name, SHOWN[one.result], f"{one.seconds:.1f} s", "  ".join(facts).strip()
