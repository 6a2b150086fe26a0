"""Which host or container is this? Its name does not tell: many are called localhost."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
LETTERS = 8


def pid_namespace() -> str:
    """Name the pid namespace of this process, for example ``pid:[4026531836]``."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - a name, no path


@cache
def which_machine() -> str:
    """Name where the process ids that are seen from here hold: no two such places have one name.

    Each start of a kernel has an id of its own (random(4)), and each pid namespace on it a number.

    Returns:
        For example ``3f2a9c1e-4026531836``; empty where the kernel does not say.
    """
    try:
        number = pid_namespace().strip("pid:[]")
        return f"{BOOT.read_text()[:LETTERS]}-{number}"
    except OSError:
        return ""
