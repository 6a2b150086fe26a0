"""How fast a placement will be, told by what must be carried for every token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from lightning_hangcheck.planning.plan import Share, SpeedClass

BUS = 12e9
"""Bytes a second from main memory to a GPU. PCIe 4.0 with 16 lanes can carry 32e9; weights that
accelerate offloads lie in pageable memory, which goes through a buffer at about a third of that."""
DISK = 2e9
"""Bytes a second that a local NVMe disk reads; network storage is far slower."""
MAIN_MEMORY = 50e9
"""Bytes a second that a processor reads of its memory: two channels of DDR5-4800 carry 77e9."""
GPU_MEMORY = 1e12
"""Bytes a second that a GPU reads of its own memory, by their data sheets: RTX 4090 1.0e12, A100
1.6e12 to 2.0e12, H100 3.4e12, but L4 and T4 0.3e12."""
LAYER_S = 0.5e-3
"""Seconds in which Python starts the kernels of one layer, whatever they compute: a token of a
model of 32 layers takes 20 to 30 ms in `generate`, also where the GPU could read it in 5."""
ANSWER = 512
"""Tokens of a debugging run's longest answer, the cap that `generate` sets by default."""
ACCEPTABLE_S, SLOW_S = 300.0, 3600.0
"""Seconds for such an answer: `generate` warns from five minutes on; none waits beyond an hour."""
TIGHT = 0.05
"""Share of a GPU's memory that should be left: the allocator's fragments take some of it."""
MEANS: dict[SpeedClass, str] = {
    "fast": f"one GPU holds all, with {TIGHT:.0%} left for the allocator's fragments",
    "good": "GPUs hold all, and nothing is carried for a token",
    "acceptable": f"{ANSWER} tokens within {ACCEPTABLE_S / 60:.0f} minutes of carrying: from there "
    "on `generate` warns",
    "slow": f"{ANSWER} tokens within {SLOW_S / 60:.0f} minutes of carrying: nobody waits longer "
    "for one answer",
    "too slow": f"{ANSWER} tokens take over {SLOW_S / 60:.0f} minutes, or it does not fit",
}
"""What each class promises, with the reason for its threshold."""


def seconds_per_pass(shares: tuple[Share, ...]) -> float:
    """Seconds that one token takes at least to carry offloaded weights; 0 without GPUs."""
    weights = {share.device: share.weights for share in shares}
    disk = weights.get("disk", 0) / DISK
    if "0" not in weights:
        return weights.get("cpu", 0) / MAIN_MEMORY + disk
    return weights.get("cpu", 0) / BUS + disk


def seconds_per_token(shares: tuple[Share, ...], layers: int) -> float:
    """Seconds that one token takes, about: each weight is read once, and each layer is started."""
    on_gpus = sum(share.weights + share.cache for share in shares if share.device.isdigit())
    return on_gpus / GPU_MEMORY + layers * LAYER_S + seconds_per_pass(shares)


def speed_of(shares: tuple[Share, ...]) -> tuple[SpeedClass, str]:
    """Return the class to expect, and why in one sentence."""
    short = [share for share in shares if share.headroom < 0]
    if short:
        return "too slow", f"it does not fit: {_device(short[0])} lacks {_gb(-short[0].headroom)}"
    seconds = seconds_per_pass(shares)
    if seconds:
        return _class_of(seconds), _carried(shares, seconds)
    holding = [share for share in shares if share.weights]
    if len(holding) > 1:
        return "good", f"all on {len(holding)} GPUs, which work one after the other"
    tight = min(share.headroom / max(1, share.memory) for share in shares)
    if tight < TIGHT:
        return "good", f"all on one GPU, with {tight:.0%} of its memory left: little for surprises"
    return "fast", f"all on one GPU, with {tight:.0%} of its memory left"


def _class_of(seconds: float) -> SpeedClass:
    if seconds * ANSWER <= ACCEPTABLE_S:
        return "acceptable"
    return "slow" if seconds * ANSWER <= SLOW_S else "too slow"


def _carried(shares: tuple[Share, ...], seconds: float) -> str:
    """For example ``9 layers (3.9 GB) in main memory: ...``."""
    away = [share for share in shares if share.device in ("cpu", "disk") and share.weights]
    names = {"cpu": "in main memory", "disk": "on disk"}
    where = " and ".join(
        f"{_held(share)} ({_gb(share.weights)}) {names[share.device]}" for share in away
    )
    what = "must be carried to the GPU" if any(s.device == "0" for s in shares) else "must be read"
    answer = f"{seconds * ANSWER / 60:.0f} minutes" if seconds * ANSWER > 99 else "under 2 minutes"
    return f"{where} {what} for every token: {seconds:.2g} s each, {answer} for {ANSWER} tokens"


def _held(share: Share) -> str:
    return several(share.layers, "layer") if share.layers else "what is outside the layers"


def _device(share: Share) -> str:
    return "the main memory" if share.device == "cpu" else f"GPU {share.device}"


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
