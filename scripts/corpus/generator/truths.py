"""The truth about a composition, by the contract's definitions; never by what the tool says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hangbench.bench import Truth, any_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpus.generator.composition import Composition

BESIDE_PLACE = ("rank_stalled", "network_wait", "filesystem_wait")
WITH_PLACE = {"logger": "logger_init", "model_load": "model_load", "checkpoint": "checkpoint_io"}
"""By place: the slug that it has, as right as those of `BESIDE_PLACE`: a function's name shows what
it is for, and proves nothing."""
BECAUSE_OF_PLACE = {
    "logger": "creating the experiment logger blocks, and what blocks has a slug of its own",
    "model_load": "it blocks while a model is loaded, and what blocks has a slug of its own",
    "checkpoint": "it blocks while a checkpoint is saved, and what blocks has a slug of its own",
}


def truth_of_composition(one: Composition, names: Mapping[str, str]) -> Truth:
    """Work out who, why, where in life and at which function.

    Args:
        one: The composition.
        names: Of its functions.
    """
    launcher = "torchrun" if one.launch == "torchrun" else "python"
    if one.healthy:
        return Truth(healthy=True, processes=one.ranks, launcher=launcher, says=_says(one))
    causes, reasons = _causes(one)
    culprits, others, why_others = _culprits(one)
    functions = [names[function] for function in one.mechanism.function if names.get(function)]
    if functions and one.thread != "main":
        functions.append(names["through"])
        reasons.append("the line of the thread and the one where the main thread waits for it")
    verdict = _verdict(one)
    if (len(functions) > 1 and one.thread == "main") or len(any_of(verdict)) > 1:
        reasons.append(one.mechanism.because)
    return Truth(
        verdict=verdict,
        culprits=culprits,
        or_culprits=others,
        cause=causes if len(causes) > 1 else causes[0],
        phase=_phase(one),
        function=functions if len(functions) != 1 else functions[0],
        because="; ".join(dict.fromkeys(filter(None, [*reasons, why_others]))),
        processes=one.ranks,
        launcher=launcher,
    )


def _says(one: Composition) -> list[str]:
    """What every healthy program prints at its end, once a rank."""
    return [f"rank {rank} done" for rank in range(one.ranks)]


def _causes(one: Composition) -> tuple[list[str], list[str]]:
    mechanism = one.mechanism
    causes = list(mechanism.cause)
    reasons = [mechanism.because] if len(causes) > 1 else []
    if not mechanism.has_process:
        return causes, reasons
    if one.thread == "process" and causes == ["spinning"]:
        causes.append("rank_stalled")
        reasons.append("the rank waits for its child, which burns CPU")
    if mechanism.ranked or "process_stopped" in causes or "dataloader_worker" in causes:
        return causes, reasons
    if one.place in WITH_PLACE and set(causes) & set(BESIDE_PLACE):
        causes.append(WITH_PLACE[one.place])
        reasons.append(BECAUSE_OF_PLACE[one.place])
    return causes, reasons


def _culprits(one: Composition) -> tuple[list[int], list[list[int]], str]:
    (first, *_), kind = one.affected, one.mechanism.culprits
    if kind == "holder_too":
        return sorted([first, holder_of(one)]), [], ""
    if kind == "either_end":
        peer = (first + 1) % one.ranks
        return [first], [[peer], sorted([first, peer])], "one receives what the other never sends"
    return list(one.affected), [], ""


def holder_of(one: Composition) -> int:
    """The rank that keeps the lock which the affected one wants."""
    return (one.affected[0] + 1) % one.ranks


def _phase(one: Composition) -> str | None:
    """None where the first culprit has no process any more: the contract asks for none there."""
    return one.phase if one.mechanism.has_process else None


def _verdict(one: Composition) -> str | list[str]:
    verdicts = list(one.mechanism.verdict)
    # this launcher does not look after its ranks, and nobody who polls a file hears of an end
    if one.launch == "own" and one.waiting in ("store", "flag_file") and verdicts == ["crashed"]:
        hosts_store = one.waiting == "store" and one.affected == (0,)
        return "crashed" if hosts_store else "dead"
    return verdicts if len(verdicts) > 1 else verdicts[0]
