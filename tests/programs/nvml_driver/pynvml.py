"""NVIDIA's library with two GPUs and no driver below it: its own structs, filled in here.

HANGCHECK_TEST_NVML says what the driver does: ``answers``, ``hangs`` or ``lost``.
The process HANGCHECK_TEST_GPU_USER uses GPU 1.
"""
# ruff: noqa: N802 - the library's own names

import importlib.util
import os
import signal
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path

_own = str(Path(__file__).parent)
_spec = PathFinder.find_spec("pynvml", [entry for entry in sys.path if entry != _own])
_real = sys.modules["pynvml"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_real)
_manner = os.environ["HANGCHECK_TEST_NVML"]
_user = int(os.environ.get("HANGCHECK_TEST_GPU_USER", "0"))


def nvmlInit():
    if _manner == "hangs":
        signal.pause()


def nvmlDeviceGetCount():
    return 2


def nvmlDeviceGetHandleByIndex(index):
    if _manner == "lost" and index == 0:
        raise _real.NVMLError(_real.NVML_ERROR_GPU_IS_LOST)
    return index


def nvmlDeviceGetUtilizationRates(handle):
    return _real.c_nvmlUtilization_t(gpu=100 * handle, memory=0)


def nvmlDeviceGetMemoryInfo(handle):
    return _real.c_nvmlMemory_t(total=80 << 30, free=19 << 30, used=61 << 30)


def nvmlDeviceGetPowerUsage(handle):
    return 412_000


def nvmlDeviceGetName(handle):
    return "Stand-in H200"


def nvmlDeviceGetClockInfo(handle, kind):
    return 1200


def nvmlDeviceGetMaxClockInfo(handle, kind):
    return 1980


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return _real.nvmlClocksThrottleReasonHwThermalSlowdown


def nvmlDeviceGetTotalEccErrors(handle, kind, counter):
    raise _real.NVMLError(_real.NVML_ERROR_NOT_SUPPORTED)


def nvmlDeviceGetComputeRunningProcesses(handle):
    if handle == 0:
        return []
    return [_real.c_nvmlProcessInfo_v3_t(pid=_user, usedGpuMemory=60 << 30)]


def nvmlDeviceGetProcessUtilization(handle, since):
    now = int(time.time() * 1e6)
    kind = _real.c_nvmlProcessUtilizationSample_t
    return [kind(pid=_user, timeStamp=now - 9, smUtil=3), kind(pid=_user, timeStamp=now, smUtil=97)]


vars(_real).update({name: value for name, value in globals().items() if name[:4] == "nvml"})
