"""What journal and run.json tell of a rank's surroundings: one list of variables, one of versions.

Told is what decides how a distributed job behaves; nobody needs the rest, so it stays private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DISTRIBUTIONS = (
    "lightning-hangcheck",
    "torch",
    "lightning",
    "pytorch-lightning",
    "transformers",
    "wandb",
    "deepspeed",
    "py-spy",
)
"""Each is imported by its own name, with underscores."""
_READ_BY_TRAINING = (
    "ACCELERATE_",
    "CUDA_",
    "FI_",
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
    "UCX_",
    "WANDB_",
    "WORLD_SIZE",
)
"""Beginnings of names."""


def published_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Choose the variables that are told, by name; their values are not redacted yet."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_READ_BY_TRAINING)
    }
