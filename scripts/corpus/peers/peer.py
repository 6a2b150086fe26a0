"""What a peer is to the benchmark: how it starts a case, and how its output is understood."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from corpus.peers.transcript import Said, Transcript
from hangbench.bench import Truth

BINARIES = Path(sys.executable).parent
STARTS_ITSELF = [sys.executable]
"""Of a script that starts its ranks itself: no launcher stands before it."""


def nothing_more(script: Path, folder: Path) -> dict[str, str]:
    """A peer that needs no environment."""
    del script, folder
    return {}


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A peer.

    Attributes:
        distribution: What has to be installed.
        launcher: The words before the script, of a case's truth.
        environment: Added variables, of the script and of the folder for the run.
        hear: What the output of a run says.
        stack_files: Pattern of the stack dumps that it writes below the folder for the run.
    """

    name: str
    distribution: str
    launcher: Callable[[Truth], list[str]]
    hear: Callable[[Transcript], Said]
    environment: Callable[[Path, Path], dict[str, str]] = nothing_more
    stack_files: str = ""

    @property
    def version(self) -> str | None:
        """The installed version; None where it is not installed."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return None


def torchrun(truth: Truth) -> list[str]:
    """The launcher of torch, or none."""
    if truth.launcher == "python":
        return STARTS_ITSELF
    return [str(BINARIES / "torchrun"), f"--nproc_per_node={truth.processes}"]
