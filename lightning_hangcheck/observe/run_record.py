"""What run.json says of a rank and of what is installed: for a sidecar, attach and merge."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import TYPE_CHECKING

from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import RankRecord
from lightning_hangcheck.probes.proc.process_tree import read_environment
from lightning_hangcheck.text.redaction import redact_values

if TYPE_CHECKING:
    from lightning_hangcheck.observe.discovery import FoundRank

DISTRIBUTIONS = (
    "lightning-hangcheck",
    "torch",
    "lightning",
    "pytorch-lightning",
    "transformers",
    "wandb",
    "py-spy",
)
READ_BY_TRAINING = (
    "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "NODE_RANK", "MASTER_", "CUDA_", "NCCL_", "GLOO_",
    "TORCH", "PL_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "WANDB_", "SLURM_", "OMP_", "MKL_",
    "HANGCHECK_", "PYTHON", "ACCELERATE_", "FI_", "UCX_",
)  # fmt: skip


def rank_record(found: FoundRank, host: str) -> RankRecord:
    """Describe one rank as it was started, its environment redacted.

    Args:
        found: Whose process may be gone by now: then it has no environment any more.
        host: Where it runs.
    """
    environment = read_environment(found.pid)
    shown = {
        name: value
        for name, value in ({} if isinstance(environment, Gap) else environment).items()
        if name.startswith(READ_BY_TRAINING)
    }
    return RankRecord(
        rank=found.rank,
        local_rank=found.local_rank,
        host=host,
        pid=found.pid,
        environment=redact_values(shown),
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of what is installed beside this package."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
