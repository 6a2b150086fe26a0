"""What `--inject CAUSE@RANK[:STEP]` accepts: the faults by name, and how the text is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Place = Literal["step", "worker", "save", "logger", "rendezvous"]


@dataclass(frozen=True)
class FaultKind:
    """A fault that the reference script can cause.

    Attributes:
        effect: What the rank does, for ``--help``.
        place: Where in the program it strikes.
        default_step: Step at which it strikes unless told; None where it strikes before training.
        least_step: First step at which it can strike.
        healthy: It only looks bad: the run goes on and ends well, and no alarm may come of it.
    """

    effect: str
    place: Place = "step"
    default_step: int | None = 10
    least_step: int = 0
    healthy: bool = False


KINDS: dict[str, FaultKind] = {
    "rank_stalled": FaultKind("waits in training_step for an event that nobody sets"),
    "spinning": FaultKind("turns in an endless loop in training_step"),
    "process_stopped": FaultKind("stops itself with SIGSTOP"),
    "process_dead": FaultKind("kills itself with SIGKILL"),
    "crashed": FaultKind("raises ValueError in training_step"),
    "dataloader_worker": FaultKind("a DataLoader worker blocks in __getitem__", place="worker"),
    "logger_init": FaultKind(
        "creating the logger waits for a server that accepts and never answers",
        place="logger",
        default_step=None,
    ),
    "rendezvous": FaultKind(
        "looks for its peers at a wrong MASTER_PORT", place="rendezvous", default_step=None
    ),
    "slow_first_step": FaultKind(
        "computes for 20 s in its first step", default_step=0, healthy=True
    ),
    "slow_save": FaultKind(
        "rank 0 writes its checkpoint to a slow disk for 15 s",
        place="save",
        default_step=5,
        least_step=1,
        healthy=True,
    ),
    "straggler": FaultKind(
        "is five times slower from this step on", default_step=5, least_step=2, healthy=True
    ),
    "uneven_pauses": FaultKind(
        "pauses before some steps, 0.05 to 20 s, mostly short", default_step=5, healthy=True
    ),
}


class BadFault(ValueError):
    """The text of an ``--inject`` cannot be used; the message says what to write instead."""


@dataclass(frozen=True)
class Fault:
    """One fault, for one rank. ``step`` counts from 0; None strikes before training."""

    cause: str
    rank: int
    step: int | None

    @property
    def kind(self) -> FaultKind:
        """What the catalogue says of this fault."""
        return KINDS[self.cause]


def parse_fault(text: str) -> Fault:
    """Read CAUSE@RANK[:STEP].

    Raises:
        BadFault: The text is malformed, the cause is unknown, or the fault cannot strike there.
    """
    match = re.fullmatch(r"(?P<cause>[^@]*)@(?P<rank>\d+)(:(?P<step>\d+))?", text)
    if match is None:
        raise BadFault(
            f"--inject {text!r} is not CAUSE@RANK[:STEP]; write for example rank_stalled@1 or "
            f"rank_stalled@1:5, with one of {_names()}"
        )
    cause = match["cause"]
    if cause not in KINDS:
        raise BadFault(f"--inject {text!r} names no fault; use one of {_names()}")
    step = KINDS[cause].default_step if match["step"] is None else int(match["step"])
    return _checked(text, Fault(cause, int(match["rank"]), step))


def _checked(text: str, fault: Fault) -> Fault:
    kind = fault.kind
    if fault.step is not None and kind.default_step is None:
        raise BadFault(
            f"--inject {text!r} names a step, but {fault.cause} strikes before training; "
            f"write {fault.cause}@{fault.rank}"
        )
    if fault.step is not None and fault.step < kind.least_step:
        raise BadFault(
            f"--inject {text!r} strikes too early; write {fault.cause}@{fault.rank}:"
            f"{kind.least_step} or a later step"
        )
    if kind.place == "save" and fault.rank != 0:
        raise BadFault(f"--inject {text!r}: only rank 0 saves; write {fault.cause}@0")
    return fault


def _names() -> str:
    return ", ".join(KINDS)
