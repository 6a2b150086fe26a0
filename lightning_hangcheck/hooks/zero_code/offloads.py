"""FSDP that keeps parameters in main memory between their uses: noted, for what it costs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.pretrained.offloading import tell_offloaded
from lightning_hangcheck.hooks.zero_code.sections import afterwards
from lightning_hangcheck.hooks.zero_code.wrapping import by_name, wrap
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Mapping
    from inspect import Signature
    from types import ModuleType
    from typing import Any

    from lightning_hangcheck.hooks.zero_code.wrapping import Around, Call


def instrument_sharding(module: ModuleType) -> None:
    """Watch what this module has of it: ``FullyShardedDataParallel``, or ``fully_shard``."""
    if hasattr(module, "FullyShardedDataParallel"):
        sharded = module.FullyShardedDataParallel
        wrap(sharded, "__init__", _noting(inspect.signature(sharded.__init__)))
    elif hasattr(module, "fully_shard"):
        wrap(module, "fully_shard", _noting(inspect.signature(module.fully_shard)))


def offload_asked_for(given: Mapping[str, Any]) -> str:
    """Say what the arguments of FSDP offload; empty where nothing is.

    Args:
        given: ``cpu_offload=CPUOffload(offload_params=True)`` of FSDP 1,
            ``offload_policy=CPUOffloadPolicy()`` of FSDP 2, and others.
    """
    first = getattr(given.get("cpu_offload"), "offload_params", False)
    second = type(given.get("offload_policy")).__name__ == "CPUOffloadPolicy"
    if not (first or second):
        return ""
    by = "cpu_offload" if first else "offload_policy"
    return f"parameters on cpu between their uses (FSDP, {by})"


def _noting(signature: Signature) -> Around:
    def note(call: Call) -> None:
        what = offload_asked_for(by_name(call, signature))
        if what:
            tell_offloaded(what, current())

    return afterwards(note)
