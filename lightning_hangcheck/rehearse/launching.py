"""The user's command as one that starts a few CPU ranks of one machine."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.launch_command import read_launch
from lightning_hangcheck.errors import HangcheckError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_FILES = 200
MOST_BYTES = 1_000_000
STARTS_RANKS = re.compile(
    r"\b(mp\.spawn|multiprocessing\.spawn|start_processes|notebook_launcher|mp\.Process)\b"
    r"|(?m:^\s*(?:import|from)\s+(?:pytorch_lightning|lightning)\b)"
)
"""In a script that starts its ranks itself; Lightning does."""
NO_RANK = "write the launcher in front of it: hangcheck rehearse -- torchrun train.py"


class CannotRehearse(HangcheckError):
    """A command that cannot be rehearsed; the sentence says why."""

    def __str__(self) -> str:
        return f"cannot be rehearsed: {super().__str__()}"


CPU_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",  # hides GPUs
    "HIP_VISIBLE_DEVICES": "",
    "ACCELERATE_USE_CPU": "true",
    "ACCELERATE_MIXED_PRECISION": "no",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "offline",
    "OMP_NUM_THREADS": "1",
}


def on_cpu_ranks(command: Sequence[str], ranks: int) -> tuple[tuple[str, ...], bool]:
    """Turn a command into one for CPU ranks.

    torchrun's number of ranks is replaced. `accelerate launch` starts several CPU ranks only by
    MPI, so torchrun takes its place. A script started plainly is left to start its own ranks where
    it has Lightning or spawns them; else torchrun starts it.

    Returns:
        The command, and whether the program or a file of its own that it imports speaks of cuda.

    Raises:
        CannotRehearse: Another program starts it, or none does.
    """
    launch = read_launch(command, {})
    program, source = launch.program, _source(launch.script)
    if launch.launcher == "python":
        if not program:
            raise CannotRehearse("python was given no script", NO_RANK)
        if program[0] == "-c":
            raise CannotRehearse("python -c has no file that ranks could start", NO_RANK)
        if STARTS_RANKS.search(source):
            return tuple(command), "cuda" in source
    elif launch.launcher not in ("torchrun", "accelerate") or not program:
        raise CannotRehearse(
            f"{Path(command[0]).name} is neither torchrun, accelerate launch nor python",
            "give the command that it starts on each node: hangcheck rehearse -- torchrun train.py",
        )
    elif launch.script is None and any(word in ("-m", "--module") for word in command):
        program = ("-m", *program)
    # --standalone: on a port of its own, so that another job of this machine is not met
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    return (*torchrun, f"--nproc_per_node={ranks}", *program), "cuda" in source


def _source(script: str | None) -> str:
    """The text of a script, and of what it imports from its own folder."""
    texts: dict[Path, str] = {}
    todo = [] if script is None else [Path(script)]
    while todo and len(texts) < MOST_FILES:
        path = todo.pop()
        if path in texts:
            continue
        texts[path] = ""
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                texts[path] = file.read(MOST_BYTES)
            tree = ast.parse(texts[path])
        except (OSError, SyntaxError, ValueError):
            continue
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        for name in names:
            place = Path(script or "").parent.joinpath(*name.split("."))
            beside = (place.with_suffix(".py"), place / "__init__.py")
            todo += [one for one in beside if one.is_file()]
    return "\n".join(texts.values())
