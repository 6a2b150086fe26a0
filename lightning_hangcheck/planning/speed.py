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
ANSWER = 512
"""Tokens of a debugging run's longest answer, the cap that `generate` sets by default."""
ACCEPTABLE_S, SLOW_S = 300.0, 3600.0
"""Seconds for such an answer: `generate` warns from five minutes on; none waits beyond an hour."""
TIGHT = 0.05
"""Share of a GPU's memory that should be left: the allocator's fragments take some of it."""


def seconds_per_pass(shares: tuple[Share, ...]) -> float:
    """Seconds that one token takes at least to carry offloaded weights; 0 without GPUs."""
    weights = {share.device: share.weights for share in shares}
    disk = weights.get("disk", 0) / DISK
    if "0" not in weights:
        return weights.get("cpu", 0) / MAIN_MEMORY + disk
    return weights.get("cpu", 0) / BUS + disk


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
