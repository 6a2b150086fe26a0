"""The reference script's checkpoints, for a script that never says one.

Only those that a watched call proves, with their numbers and names; each once a process. A script
that names this package says its own, and then none of these.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

from lightning_hangcheck.recorder.recording import current

Number: TypeAlias = Literal[1, 4, 5, 7, 8, 9, 11, 12]
NAMES: dict[Number, str] = {
    1: "Script started",
    4: "Tokenizer loaded",
    5: "Model created",
    7: "DataModule ready",
    8: "Accelerator configured",
    9: "WandbLogger ready (prime suspect)",
    11: "Trainer ready (prime suspect)",
    12: "Training finished",
}
LARGEST_SCRIPT = 1_000_000  # bytes that are looked at


@cache
def passed(number: Number) -> None:
    """Say that this checkpoint was passed; asking again changes nothing."""
    if not script_names_us():
        current().checkpoint(NAMES[number], number, ours=True)


@cache
def script_names_us() -> bool:
    """Whether the script's own file speaks of this package."""
    script = Path(sys.argv[0]) if sys.argv else Path()
    try:
        with script.open("rb") as file:
            return b"lightning_hangcheck" in file.read(LARGEST_SCRIPT)
    except OSError:  # python -c, python -m
        return False
