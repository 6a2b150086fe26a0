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
)
WITH_LIGHTNING = re.compile(r"^\s*(?:import|from)\s+(?:pytorch_lightning|lightning)\b", re.M)
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
    module = launch.program[:1] and any(word in ("-m", "--module") for word in command)
    source = "" if launch.script is None else _source(Path(launch.script))
    # --standalone: on a port of its own, so that another job of this machine is not met
    torchrun = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        f"--nproc_per_node={ranks}",
    )
    if launch.launcher == "python":
        starts_itself = WITH_LIGHTNING.search(source) or STARTS_RANKS.search(source)
        words = tuple(command) if starts_itself else (*torchrun, *_python_program(command))
    elif launch.launcher in ("torchrun", "accelerate") and launch.program:
        as_module = ("-m",) if module and launch.script is None else ()
        words = (*torchrun, *as_module, *launch.program)
    else:
        name = Path(command[0]).name
        raise CannotRehearse(
            f"{name} is neither torchrun, accelerate launch nor python",
            "give the command that it starts on each node: hangcheck rehearse -- torchrun train.py",
        )
    return words, "cuda" in source


def _python_program(command: Sequence[str]) -> tuple[str, ...]:
    """What torchrun shall start of ``python train.py`` or ``python -m package``."""
    for at, word in enumerate(command[1:], start=1):
        if word == "-m":
            return tuple(command[at:])
        if word == "-c":
            raise CannotRehearse("python -c has no file that ranks could start", NO_RANK)
        if not word.startswith("-"):
            return tuple(command[at:])
    raise CannotRehearse("python was given no script", NO_RANK)


def _source(script: Path) -> str:
    """The text of a script, and of what it imports from its own folder."""
    texts: list[str] = []
    seen: set[Path] = set()
    todo = [script]
    while todo and len(seen) < MOST_FILES:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                text = file.read(MOST_BYTES)
            names = _imported(text)
        except (OSError, SyntaxError, ValueError):
            continue
        texts.append(text)
        for name in names:
            place = script.parent.joinpath(*name.split("."))
            todo += [one for one in (place.with_suffix(".py"), place / "__init__.py")
                     if one.is_file()]  # fmt: skip
    return "\n".join(texts)


def _imported(text: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names |= {f"{node.module}.{one.name}" for one in node.names}
    return names
