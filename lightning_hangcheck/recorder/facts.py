"""What a rank tells of itself once: the journal's first line, from which run.json is made."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.model.redaction import redact_values
from lightning_hangcheck.model.shown_command import show_command
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.identity import Identity

# variables that decide how a distributed job behaves; nobody needs the rest, so it stays private
_TOLD = (
    "ACCELERATE_",
    "CUDA_",
    "FSDP_",
    "GLOO_",
    "GROUP_",
    "HANGCHECK_",
    "HF_",
    "KMP_",
    "LIGHTNING_",
    "LOCAL_",
    "MASTER_",
    "MKL_",
    "NCCL_",
    "NODE_RANK",
    "NVIDIA_",
    "OMP_",
    "PL_",
    "PYTHON",
    "PYTORCH_",
    "RANK",
    "SLURM_",
    "TOKENIZERS_",
    "TORCH",
    "TRANSFORMERS_",
    "TRITON_",
    "WANDB_",
    "WORLD_SIZE",
)
_PACKAGES = ("torch", "lightning", "pytorch_lightning", "transformers", "wandb", "deepspeed")


def start_facts(environment: Mapping[str, str], identity: Identity) -> dict[str, object]:
    """Gather who and where this process is, redacted. Imports nothing."""
    told = {name: value for name, value in environment.items() if name.startswith(_TOLD)}
    return {
        "rank": identity.rank,
        "world_size": identity.world_size,
        "local_rank": identity.local_rank,
        "round": identity.round,
        "launcher": identity.launcher,
        "host": os.uname().nodename,
        "command": show_command(sys.orig_argv),
        "folder": _working_folder(),
        "versions": versions(),
        "environment": redact_values(dict(sorted(told.items()))),
    }


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the frameworks that are imported by now."""
    found = {
        name: str(getattr(sys.modules[name], "__version__", "unknown"))
        for name in _PACKAGES
        if sys.modules.get(name) is not None
    }
    return {"python": platform.python_version(), "lightning_hangcheck": __version__, **found}


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""
