"""Asks NVIDIA's management library about every GPU, and prints the answer: a program of its own.

A driver that is stuck blocks whoever asks it, so `probes.gpu` starts this and kills it when it is
late. On a machine with 8 GPUs the first call may take a second, while the driver wakes them.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from lightning_hangcheck.model.evidence import GpuState

if TYPE_CHECKING:
    from collections.abc import Callable

Told = TypeVar("Told")
SLOWDOWNS = {0x4: "power", 0x8: "hardware", 0x20: "thermal", 0x40: "thermal", 0x80: "power"}
"""nvml.h, nvmlClocksEventReasons: software power cap, hardware slowdown, software thermal, hardware
thermal, power brake."""
MILLI = 1000
LATELY_S = 2.0
"""Age of what a process used that still counts: the driver keeps some seconds."""


class Share(Struct, frozen=True):
    """What one process has of a GPU."""

    memory_bytes: int | None = None
    busy_percent: int | None = None


class Device(Struct, frozen=True):
    """A GPU and the processes that compute on it.

    Attributes:
        processes: By process id, as the driver counts them.
        lost: The driver can no longer reach it: it fell off the bus (Xid 79), or needs a reset.
    """

    state: GpuState
    processes: dict[int, Share] = {}
    lost: bool = False


class Answer(Struct, frozen=True):
    """What is printed: the devices, or why there are none."""

    devices: tuple[Device, ...] = ()
    failure: str = ""


def read_all() -> Answer:
    """Read all GPUs of this machine."""
    import pynvml

    try:
        pynvml.nvmlInit()
        indices = range(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return Answer(failure=str(error))
    return Answer(devices=tuple(_read(pynvml, index) for index in indices))


def _read(nvml: Any, index: int) -> Device:  # noqa: ANN401 - a library without types
    gone = (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired)
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceGetUtilizationRates(handle)
    except gone:
        return Device(GpuState(index=index), lost=True)
    except nvml.NVMLError:  # an old card that tells no utilisation may tell other things
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return Device(_state(nvml, handle, index), _processes(nvml, handle))


def _state(nvml: Any, handle: Any, index: int) -> GpuState:  # noqa: ANN401 - as above
    def ask(call: Callable[[], Told]) -> Told | None:
        return _told(nvml, call)

    memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    milliwatts = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    reasons = ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    return GpuState(
        index=index,
        name=ask(lambda: nvml.nvmlDeviceGetName(handle)) or "",
        busy_percent=rates.gpu if rates is not None else None,
        memory_used_bytes=memory.used if memory is not None else None,
        memory_bytes=memory.total if memory is not None else None,
        power_w=milliwatts / MILLI if milliwatts is not None else None,
        clock_mhz=ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        full_clock_mhz=ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        slowed_by=tuple(sorted({word for bit, word in SLOWDOWNS.items() if reasons & bit})),
        uncorrected_errors=ask(
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        ),
    )


def _processes(nvml: Any, handle: Any) -> dict[int, Share]:  # noqa: ANN401 - as above
    running = _told(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
    since_us = int((time.time() - LATELY_S) * 1e6)
    used = _told(nvml, lambda: nvml.nvmlDeviceGetProcessUtilization(handle, since_us)) or []
    newest = {one.pid: one.smUtil for one in sorted(used, key=lambda one: one.timeStamp)}
    return {one.pid: Share(one.usedGpuMemory, newest.get(one.pid)) for one in running}


def _told(nvml: Any, call: Callable[[], Told]) -> Told | None:  # noqa: ANN401 - as above
    """Not every card, driver and library tells everything."""
    try:
        return call()
    except (nvml.NVMLError, AttributeError):
        return None


if __name__ == "__main__":
    os.write(sys.stdout.fileno(), msgspec.json.encode(read_all()))
