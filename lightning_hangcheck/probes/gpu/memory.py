"""How much memory the GPUs of this machine have, asked of NVIDIA's management library."""

from __future__ import annotations

import warnings

from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.time_limit import NoAnswer, within

TIME_LIMIT_S = 5.0
"""A driver that lost a GPU can take this long, or for ever."""


def gpu_memory(time_limit_s: float = TIME_LIMIT_S) -> tuple[int, ...] | Gap:
    """Return the bytes of each GPU, without starting CUDA on any of them.

    Args:
        time_limit_s: Seconds after which the driver is given up.

    Returns:
        Empty where the driver knows no GPU; a gap where there is no driver to ask.
    """
    try:
        return within(time_limit_s, _ask)
    except ImportError:
        return _gap("nvidia-ml-py is not installed: pip install nvidia-ml-py")
    except NoAnswer:
        return _gap(f"the GPU driver did not answer within {time_limit_s:g} s")
    except _Refused as error:
        return _gap(f"the GPU driver says: {error}")


class _Refused(Exception):
    """The driver's answer where it gives none; the library's own class is known only there."""


def _ask() -> tuple[int, ...]:
    with warnings.catch_warnings():
        # a package of the same name that is older than nvidia-ml-py warns of itself
        warnings.simplefilter("ignore", FutureWarning)
        import pynvml  # nvidia-ml-py: an extra, so imported only when asked for
    try:
        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return tuple(int(pynvml.nvmlDeviceGetMemoryInfo(one).total) for one in handles)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise _Refused(str(error)) from error


def _gap(why: str) -> Gap:
    return Gap("memory of the GPUs", None, why, "gpu")
