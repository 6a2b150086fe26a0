"""A node whose clocks are others: its wall clock by a library of ours, its start by the kernel."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from launch.nodes.nodes_of_a_job import Host
from processes import PROGRAMS

if TYPE_CHECKING:
    from pathlib import Path

IN_OWN_ETC = 'mount -t overlay none -o "lowerdir=$0:/etc" /etc && exec "$@"'
"""What /etc/ld.so.preload names is loaded by all programs, whatever environment they get."""


def host_with_clocks(folder: Path, ahead_s: int, up_s: int = 0) -> Host:
    """A node of its own time; skips where there can be none.

    Args:
        folder: For what it needs, made anew.
        ahead_s: By how much its wall clock is ahead of this machine's.
        up_s: For how much longer it seems to be up.
    """
    if shutil.which("gcc") is None:
        pytest.skip("a clock of its own needs gcc: apt-get install gcc libc6-dev")
    etc, library = folder / "etc", folder / "other_clock.so"
    etc.mkdir(parents=True)
    source = str(PROGRAMS / "other_clock.c")
    flags = ["-O2", "-shared", "-fPIC", f"-DSHIFT_S={ahead_s}LL", "-o", str(library)]
    subprocess.run(["gcc", *flags, source], check=True, timeout=120)
    (etc / "ld.so.preload").write_text(f"{library}\n")
    apart = ["unshare", "--time", f"--monotonic={up_s}", f"--boottime={up_s}", "--mount"]
    prefix = [*apart, "sh", "-c", IN_OWN_ETC, str(etc)]
    tried = subprocess.run([*prefix, "true"], check=False, timeout=120, capture_output=True)
    if tried.returncode:
        pytest.skip(f"a clock of its own is refused here: {tried.stderr.decode().strip()}")
    return Host(prefix)
