"""Variables that change how a hang looks, end the job before it is diagnosed, or switch us off."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.settings import Settings, from_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

DEBUG_SETTINGS = "debug settings"
HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"


def debug_settings(environment: Mapping[str, str]) -> tuple[Check, ...]:
    """Look for settings that hide hangs, cause them, or end a job before it can be diagnosed.

    Args:
        environment: That the ranks will have.

    Returns:
        A warning for each, or one check that says that there are none.
    """
    found = [
        Check(
            DEBUG_SETTINGS,
            "warning",
            f"{entry.variable}={entry.value} {entry.sentence}",
            entry.remedy,
        )
        for entry in QUESTIONABLE
        if environment.get(entry.variable, "").upper() == entry.value
    ]
    found += _own_settings(environment)
    return tuple(found) or (Check(DEBUG_SETTINGS, "ok", "no setting is in the way"),)


class _Questionable(NamedTuple):
    """A setting that a user should know the price of."""

    variable: str
    value: str
    sentence: str
    remedy: str


# torch 2.13: ProcessGroupNCCL.cpp, its documentation of environment variables, and our own runs
# (catalogue of hangs: DETAIL crashes every rank of DDP on gloo, 4.4 times the time per all_reduce).
QUESTIONABLE = (
    _Questionable(
        "TORCH_DISTRIBUTED_DEBUG",
        "DETAIL",
        "crashes DDP on gloo (CPU) in torch 2.13 and makes each all_reduce 4.4 times as slow",
        "unset TORCH_DISTRIBUTED_DEBUG",
    ),
    _Questionable(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "0",
        "lets ranks wait without end for a collective that NCCL has given up",
        "unset TORCH_NCCL_ASYNC_ERROR_HANDLING",
    ),
    _Questionable(
        "NCCL_ASYNC_ERROR_HANDLING",
        "0",
        "lets ranks wait without end for a collective that NCCL has given up",
        "unset NCCL_ASYNC_ERROR_HANDLING",
    ),
    _Questionable(
        "TORCH_NCCL_BLOCKING_WAIT",
        "1",
        "runs NCCL without its watchdog: a timeout is an exception in whichever rank waits first",
        "unset TORCH_NCCL_BLOCKING_WAIT",
    ),
)


def _own_settings(environment: Mapping[str, str]) -> list[Check]:
    try:
        settings = from_environment(environment)
    except BadUsage as error:
        return [
            Check(DEBUG_SETTINGS, "warning", f"{error.args[0]}; the defaults apply", error.remedy)
        ]
    if settings.disable:
        sentence = "HANGCHECK_DISABLE=1 switches everything off: ranks record nothing"
        return [Check(DEBUG_SETTINGS, "warning", sentence, "unset HANGCHECK_DISABLE")]
    return _early_end(environment, settings)


def _early_end(environment: Mapping[str, str], settings: Settings) -> list[Check]:
    """NCCL's monitor ends a rank whose watchdog is silent, 480 s by default."""
    text = environment.get(HEARTBEAT, "")
    if not text.isdecimal() or int(text) >= settings.stall_timeout:
        return []
    sentence = (
        f"{HEARTBEAT}={text} may end a stuck rank before the stall timeout of "
        f"{settings.stall_timeout:g} s: the hang then shows up as a dead rank"
    )
    lower = max(1, int(text) // 2)
    return [Check(DEBUG_SETTINGS, "warning", sentence, f"export HANGCHECK_STALL_TIMEOUT={lower}")]
