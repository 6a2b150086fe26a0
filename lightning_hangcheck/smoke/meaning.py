"""What the runs of a smoke test say together: pure, from their outcomes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.smoke.trial import Outcome


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
