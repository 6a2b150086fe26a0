"""Variables of NCCL and of torch's flight recorder: old names, and values that blind it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.surroundings.versions import numbers

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

NAMES = "NCCL variables"
RECORDER = "flight recorder"
BACKEND = "NCCL backend"
# torch 2.2 renamed them and reads the old names with a warning (ProcessGroupNCCL.hpp, 2.13)
RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
}
RECORDER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The name since torch 2.7, and the one before that."""
SECOND_GENERATION = (2, 15)
"""The torch whose backend of NCCL is `nccl2` by default, without a flight record of its own."""


def nccl_names(subject: Subject) -> tuple[Check, ...]:
    """Find variables under a name that torch has given up.

    Args:
        subject: The run.
    """
    found = {old: new for old, new in RENAMED.items() if old in subject.environment}
    return tuple(
        Check(
            NAMES,
            "warning",
            f"{old} is the name before torch 2.2: newer ones warn of it, and will drop it",
            f"unset {old}; export {new}={subject.environment[old]}",
        )
        for old, new in found.items()
    ) or (Check(NAMES, "ok", "no variable has a name that was given up"),)


def recorder_on(subject: Subject) -> tuple[Check, ...]:
    """Find a flight recorder that is switched off.

    Args:
        subject: The run.
    """
    off = [name for name in RECORDER_SIZES if subject.environment.get(name) == "0"]
    return tuple(
        Check(RECORDER, "warning", f"{name}=0 switches the flight recorder off", f"unset {name}")
        for name in off
    ) or (Check(RECORDER, "ok", "no variable switches it off"),)


def backend_generation(_: Subject, torch: str | None = None) -> tuple[Check, ...]:
    """Say which generation of the NCCL backend the installed torch takes by default.

    Args:
        torch: Version; that of the installed one where None.
    """
    try:
        known = torch or version("torch")
    except PackageNotFoundError:
        return ()
    if numbers(known) >= SECOND_GENERATION:
        found = f"torch {known} takes nccl2; collectives on it are recorded by hangcheck run"
        return (Check(BACKEND, "ok", found),)
    return (Check(BACKEND, "ok", f"torch {known} takes the first one, with a flight record"),)
