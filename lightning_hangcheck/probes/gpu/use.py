"""The GPUs that processes use, as NVIDIA's driver sees them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from lightning_hangcheck.isolation.command import environment_of_module, folder_of, own_command
from lightning_hangcheck.model.decoders import json_decoder
from lightning_hangcheck.model.evidence import Gap, GpuState
from lightning_hangcheck.probes.bounded_child import ChildLate, answer_of
from lightning_hangcheck.probes.gpu.nvml_reader import Answer, Device
from lightning_hangcheck.time_limit import Looked, guarded

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

WHAT = "GPUs"
READER = "lightning_hangcheck.probes.gpu.nvml_reader"
DRIVER = Path("/proc/driver/nvidia")
ABSENT = Gap(
    WHAT,
    None,
    "the library that reads GPUs is not installed",
    "gpu",
    "pip install 'lightning-hangcheck[gpu]'",
)
HIDDEN = (
    "GPUs are busy, but the driver names no process that uses them: a container hides process ids "
    "(docker run --pid=host shows them)"
)
LOST = "the driver can no longer reach it: it fell off the bus, or needs a reset"
SEE_KERNEL_LOG = "dmesg -T | grep -i xid tells why"
SEE = "ask the driver itself: nvidia-smi"
Gpus = dict[int, tuple[GpuState, ...]]


def gpus_of(pids: Collection[int], time_limit_s: float, driver: Path = DRIVER) -> Looked[Gpus]:
    """Read the GPUs that processes use, in a child process: a stuck driver stops only that.

    About 0.1 s, once a look for all processes of this node.

    Args:
        pids: Of the ranks.
        time_limit_s: Seconds until the child is killed.
        driver: Folder of the driver's kernel module; without it there is nothing to see, nothing
            is started and nothing is missed.

    Returns:
        GPUs by process id, of those that use any.
    """
    if not pids or not driver.exists():
        return {}, ()
    if folder_of("pynvml") is None:
        return {}, (ABSENT,)
    return guarded("gpu", WHAT, None, lambda: _look(pids, time_limit_s))


def gpus_here(time_limit_s: float, driver: Path = DRIVER) -> Looked[tuple[GpuState, ...]]:
    """Read all GPUs of this machine, as `gpus_of` does; none where there is no driver.

    Args:
        time_limit_s: Seconds until the child is killed.
        driver: Folder of the driver's kernel module.
    """
    if not driver.exists():
        return (), ()
    if folder_of("pynvml") is None:
        return (), (ABSENT,)
    return guarded("gpu", WHAT, None, lambda: _states(time_limit_s))


def gpu_names(time_limit_s: float, driver: Path = DRIVER) -> tuple[str, ...]:
    """Return the models of this machine's GPUs; empty where the driver tells none in time."""
    states, _ = gpus_here(time_limit_s, driver)
    return tuple(state.name for state in states or () if state.name)


def _states(time_limit_s: float) -> Looked[tuple[GpuState, ...]]:
    devices, gaps = _devices(time_limit_s)
    return tuple(device.state for device in devices or ()), gaps


def _look(pids: Collection[int], time_limit_s: float) -> Looked[Gpus]:
    devices, gaps = _devices(time_limit_s)
    return ({}, gaps) if devices is None else shared_out(devices, pids)


def _devices(time_limit_s: float) -> Looked[tuple[Device, ...]]:
    """All devices, None where the driver does not tell."""
    try:
        answer = _ask(time_limit_s)
    except ChildLate as error:
        return None, (_unread(f"the driver gave {error}"),)
    except (OSError, msgspec.MsgspecError) as error:
        return None, (_unread(f"they cannot be read ({error})"),)
    if answer.failure:
        return None, (_unread(f"NVML: {answer.failure}"),)
    return answer.devices, ()


def _unread(why: str) -> Gap:
    return Gap(WHAT, None, why, "gpu", SEE)


def _ask(time_limit_s: float) -> Answer:
    ended = answer_of(own_command(READER), time_limit_s, environment_of_module())
    if ended.returncode != 0:
        complaint = ended.stderr.decode(errors="replace").rstrip()
        return Answer(failure=complaint.rpartition("\n")[2] or f"exit code {ended.returncode}")
    return json_decoder(Answer).decode(ended.stdout)


def shared_out(devices: Sequence[Device], pids: Collection[int]) -> Looked[Gpus]:
    """Tell whose GPU is whose. Pure.

    The driver names processes by the ids of its own namespace: in a container they may not match.
    Where it names nobody at all, a machine's only GPU counts as everybody's.

    Args:
        devices: All of this machine.
        pids: Of the ranks.
    """
    gaps = tuple(
        Gap(f"GPU {one.state.index}", None, LOST, "gpu", SEE_KERNEL_LOG)
        for one in devices
        if one.lost
    )
    found = {
        pid: tuple(_as_seen_by(pid, one) for one in devices if pid in one.processes) for pid in pids
    }
    used = {pid: states for pid, states in found.items() if states}
    if used or any(one.processes for one in devices):
        return used, gaps
    seen = [one.state for one in devices if not one.lost]
    if len(seen) == 1 == len(devices):
        return dict.fromkeys(pids, (seen[0],)), gaps
    busy = any((state.busy_percent or 0) > 0 for state in seen)
    return {}, (*gaps, Gap("GPU of each rank", None, HIDDEN, "gpu")) if busy else gaps


def _as_seen_by(pid: int, device: Device) -> GpuState:
    own = device.processes[pid]
    return replace(
        device.state, own_memory_bytes=own.memory_bytes, own_busy_percent=own.busy_percent
    )
