"""The reference script, where this package was installed with it or runs from a checkout."""

from __future__ import annotations

import sys
from pathlib import Path

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.smoke.trial import SEQUENCE, Trial

_PACKAGE = Path(__file__).parent.parent
PLACES = (_PACKAGE / "reference_script", _PACKAGE.parent / "scripts")
"""In a wheel (pyproject.toml puts it there), and in a checkout."""
SCRIPT = "train_reference.py"
BATCHES = 5
"""Of training and of validation: all that a first run needs to show that ranks agree."""


def reference_trials(output_dir: Path) -> tuple[Trial, ...]:
    """Plan the sequence with the reference script: by torchrun, and alone without a launcher.

    Args:
        output_dir: Where it keeps its tokenizer and its logs.

    Raises:
        BadUsage: This installation has no reference script.
    """
    script = _find()
    return tuple(
        Trial(
            devices=devices,
            workers=workers,
            command=(
                *_launcher(devices),
                *(str(script), "--fast_dev_run", str(BATCHES), "--batch_size", "4"),
                *("--num_workers", str(workers), "--output_dir", str(output_dir)),
            ),
        )
        for devices, workers in SEQUENCE
    )


def _launcher(devices: int) -> tuple[str, ...]:
    if devices == 1:
        return (sys.executable,)
    # --standalone: on a port of its own, so that another job of this machine is not met
    ranks = f"--nproc_per_node={devices}"
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", ranks)


def _find() -> Path:
    for place in PLACES:
        if (place / SCRIPT).is_file():
            return place / SCRIPT
    raise BadUsage(
        "this installation has no reference script",
        "name your own command: hangcheck smoke -- torchrun --nproc_per_node={devices} train.py "
        "--num_workers {workers}",
    )
