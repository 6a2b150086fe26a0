"""Which programs only start ranks, told by their command line."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LAUNCHERS = frozenset(
    {
        "accelerate",
        "accelerate.commands.accelerate_cli",
        "accelerate.commands.launch",
        "deepspeed",
        "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
        "fabric",
        "torch.distributed.launch",
        "torch.distributed.run",
        "torchrun",
    }
)
"""Scripts and modules. What is run in every Python process has its own copy, as imports cost."""
_WITH_VALUE = ("-W", "-X")


def is_launcher(words: Sequence[str]) -> bool:
    """Whether a command line is that of a program which trains nothing itself.

    Args:
        words: As /proc has it: Python, its options, and a script or a module behind ``-m``.
    """
    rest = iter(words)
    if not PurePath(next(rest, "")).name.startswith("python"):
        return bool(words) and PurePath(words[0]).name in LAUNCHERS
    for word in rest:
        if word == "-m":
            return next(rest, "") in LAUNCHERS
        if word in _WITH_VALUE:
            next(rest, "")
        elif word[:1] != "-":
            return PurePath(word).name in LAUNCHERS
    return False
