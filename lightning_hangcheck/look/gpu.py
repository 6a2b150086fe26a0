"""Reads the GPUs of this machine and who uses them, by NVIDIA's management library (NVML).

A stuck driver blocks its caller. So this file is also a program: it runs as a child process, reads
everything at once, and is killed if it is late. With 8 GPUs the first call may take a second.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.isolation.command import environment_of_module, folder_of, own_command
from lightning_hangcheck.look.proc import Looked, Unseen, guarded
from lightning_hangcheck.look.programs import ChildLate, answer_of
from lightning_hangcheck.model.codec import json_decoder
from lightning_hangcheck.model.evidence import Gap, GpuState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

DRIVER = Path("/proc/driver/nvidia")
"""Folder of the driver's kernel module; without it there are no GPUs to read."""
HIDDEN = (
    "GPUs are busy, but the driver names no process that uses them: a container hides process ids "
    "(docker run --pid=host shows them)"
)
LOST = "the driver can no longer reach it: it fell off the bus, or needs a reset"
SEE_KERNEL_LOG = "dmesg -T | grep -i xid tells why"
SEE = "ask the driver itself: nvidia-smi"
TIME_LIMIT_S = 5.0  # A driver that lost a GPU can take this long, or block forever
Gpus = dict[int, tuple[GpuState, ...]]


class Device(Struct, frozen=True):
    """A GPU and its compute processes: bytes and busy percent, by the driver's process ids.

    ``unseen``: why the GPU could not be read, and how to find out more.
    """

    state: GpuState
    processes: dict[int, tuple[int | None, int | None]] = {}
    unseen: tuple[str, str] | None = None


def gpus_of(pids: Collection[int], time_limit_s: float) -> Looked[Gpus]:
    """Read the GPUs of processes, by process id, in a child process: the driver may block.

    Takes about 0.1 s, once a look for all ranks of this node; a late child is killed. Without a
    driver no child is started, and there is no gap.
    """
    devices, gaps = _devices(time_limit_s) if pids else ((), ())
    return ({}, gaps) if devices is None else shared_out(devices, pids)


def gpus_here(time_limit_s: float) -> Looked[tuple[GpuState, ...]]:
    """Read all GPUs of this machine, as `gpus_of` does; empty if there is no driver."""
    devices, gaps = _devices(time_limit_s)
    return tuple(device.state for device in devices or ()), gaps


def gpu_names(time_limit_s: float) -> tuple[str, ...]:
    """Return the models of this machine's GPUs; empty if the driver does not answer in time."""
    states, _ = gpus_here(time_limit_s)
    return tuple(state.name for state in states or () if state.name)


def gpu_memory() -> tuple[int, ...] | Gap:
    """Return the bytes of each GPU without starting CUDA; a gap if they cannot be read."""
    if not DRIVER.exists():
        return Gap("memory of the GPUs", None, "there is no NVIDIA driver here", "gpu")
    states, gaps = gpus_here(TIME_LIMIT_S)
    if gaps:
        return replace(gaps[0], what="memory of the GPUs")
    return tuple(state.memory_bytes or 0 for state in states or ())


def _devices(time_limit_s: float) -> Looked[tuple[Device, ...]]:
    def look() -> tuple[Device, ...]:
        if not DRIVER.exists():
            return ()
        if folder_of("pynvml") is None:
            absent = "the library that reads GPUs is not installed"
            raise Unseen(absent, "pip install 'lightning-hangcheck[gpu]'")
        try:
            ended = answer_of(own_command(__name__), time_limit_s, environment_of_module())
            if ended.returncode == 0:
                return json_decoder(tuple[Device, ...]).decode(ended.stdout)
        except ChildLate as error:
            raise Unseen(f"the driver gave {error}", SEE) from error
        except (OSError, msgspec.MsgspecError) as error:
            raise Unseen(f"they cannot be read ({error})", SEE) from error
        complaint = ended.stderr.decode(errors="replace").rstrip().rpartition("\n")[2]
        raise Unseen(f"NVML: {complaint or f'exit code {ended.returncode}'}", SEE)

    return guarded("gpu", "GPUs", None, look)


def shared_out(devices: Sequence[Device], pids: Collection[int]) -> Looked[Gpus]:
    """Assign GPUs to the processes that use them. Pure.

    The driver names processes by the ids of its own namespace, which may not match in a container.
    If it names no process at all, a machine's only GPU counts as used by all.
    """
    gaps = tuple(
        Gap(f"GPU {device.state.index}", None, device.unseen[0], "gpu", device.unseen[1])
        for device in devices
        if device.unseen is not None
    )
    used: Gpus = {}
    for pid in pids:
        for device in devices:
            if pid in device.processes:
                own, busy_percent = device.processes[pid]
                state = replace(device.state, own_memory_bytes=own, own_busy_percent=busy_percent)
                used[pid] = (*used.get(pid, ()), state)
    if used or any(device.processes for device in devices):
        return used, gaps
    if len(devices) == 1 and not gaps:
        return dict.fromkeys(pids, (devices[0].state,)), ()
    busy = any((device.state.busy_percent or 0) > 0 for device in devices)
    return {}, (*gaps, Gap("GPU of each rank", None, HIDDEN, "gpu")) if busy else gaps


# The program that asks the driver

SLOWDOWNS = {0x4: "power", 0x8: "hardware", 0x20: "thermal", 0x40: "thermal", 0x80: "power"}
"""nvmlClocksEventReasons in nvml.h: software power cap, hardware slowdown, software thermal,
hardware thermal, power brake."""
LATELY_S = 2.0  # Use of a GPU that is this recent counts: the driver remembers some seconds


def read_all() -> tuple[Device, ...]:
    """Read all GPUs of this machine; one that cannot be read does not hide the others."""
    import pynvml

    try:
        pynvml.nvmlInit()
        indices = range(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        sys.exit(str(error))
    return tuple(_read(pynvml, index) for index in indices)


def _read(nvml: Any, index: int) -> Device:  # noqa: ANN401 - a library without types
    lost = (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired)
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        # an old card without utilisation may have other values
        with suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
            nvml.nvmlDeviceGetUtilizationRates(handle)
    except lost:  # a GPU off the bus is Xid 79
        return Device(GpuState(index=index), unseen=(LOST, SEE_KERNEL_LOG))
    except nvml.NVMLError as error:
        return Device(GpuState(index=index), unseen=(f"NVML: {error}", SEE))

    def ask(name: str, *arguments: Any) -> Any:  # noqa: ANN401 - as above
        """Return None for what this card, driver or library does not provide."""
        try:
            return getattr(nvml, f"nvmlDevice{name}")(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    memory, rates = ask("GetMemoryInfo"), ask("GetUtilizationRates")
    milliwatts, reasons = ask("GetPowerUsage"), ask("GetCurrentClocksThrottleReasons") or 0
    state = GpuState(
        index=index,
        name=ask("GetName") or "",
        busy_percent=rates.gpu if rates is not None else None,
        memory_used_bytes=memory.used if memory is not None else None,
        memory_bytes=memory.total if memory is not None else None,
        power_w=milliwatts / 1000 if milliwatts is not None else None,
        clock_mhz=ask("GetClockInfo", nvml.NVML_CLOCK_SM),
        full_clock_mhz=ask("GetMaxClockInfo", nvml.NVML_CLOCK_SM),
        slowed_by=tuple(sorted({word for bit, word in SLOWDOWNS.items() if reasons & bit})),
        uncorrected_errors=ask(
            "GetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    )
    running = ask("GetComputeRunningProcesses") or []
    used = ask("GetProcessUtilization", int((time.time() - LATELY_S) * 1e6)) or []
    newest = {
        sample.pid: sample.smUtil for sample in sorted(used, key=lambda sample: sample.timeStamp)
    }
    return Device(
        state,
        {process.pid: (process.usedGpuMemory, newest.get(process.pid)) for process in running},
    )


if __name__ == "__main__":
    os.write(sys.stdout.fileno(), msgspec.json.encode(read_all()))
