"""Which weights go where: the rules of accelerate's device_map="auto", without a model.

accelerate/utils/modeling.py, get_balanced_memory and infer_auto_device_map: each GPU but the last
takes its even share plus a quarter more than the largest part; pieces are placed in order; the
first GPU and the main memory keep room for the largest piece still to come, to which an offloaded
one is brought when it runs. How many weights a device may take follows from what it holds besides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.planning.plan import Share

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from lightning_hangcheck.planning.plan import Machine
    from lightning_hangcheck.planning.sizes import Sizes

    Placing: TypeAlias = "Callable[[Sizes, tuple[int, ...]], Placement]"

BUFFER = 1.25
QUANTIZING_SHARE = 0.9
"""transformers leaves a tenth of each limit for quantizing (quantizer_bnb_8bit.py)."""
OWN_RULES = "accelerate's rules"
GPU_SHARE = 0.9
"""Of each GPU, for weights: what from_pretrained takes by itself too ("90% is a good compromise",
transformers/integrations/accelerate.py)."""
CUDA_CONTEXT = 500_000_000
"""Bytes that a process takes of each GPU before its first tensor: CUDA's context and the kernels of
its libraries. About 0.3 to 0.6 GB, by driver and GPU; nvidia-smi shows it."""


class Placement(Struct, frozen=True):
    """Weights of each device.

    Attributes:
        layers: Whole layers on each GPU, in main memory, and on disk, in this order.
        weights: Bytes likewise.
        by: Whose rules placed them.
    """

    layers: tuple[int, ...]
    weights: tuple[int, ...]
    by: str = OWN_RULES

    @property
    def offloaded_layers(self) -> int:
        """Layers in main memory and on disk."""
        return sum(self.layers[-2:])


def place(sizes: Sizes, limits: tuple[int, ...]) -> Placement:
    """Place all pieces.

    Args:
        sizes: Of the model.
        limits: ``max_memory`` of each GPU, then of the main memory; the disk takes the rest.
    """
    share = QUANTIZING_SHARE if sizes.quantized else 1.0
    rooms = [*(int(limit * share) for limit in _balanced(sizes, limits)), None]
    main = {0, len(limits) - 1}
    used, layers = [0] * len(rooms), [0] * len(rooms)
    device, last = 0, len(sizes.pieces) - 1
    for index, piece in enumerate(sizes.pieces):
        to_come = max(sizes.pieces[index + 1 :], default=0)
        while (room := rooms[device]) is not None:
            if used[device] + piece + (to_come if device in main else 0) <= room:
                break
            device += 1
        used[device] += piece
        layers[device] += 0 < index < last
    return Placement(tuple(layers), tuple(used))


def fitting_limits(sizes: Sizes, machine: Machine, placing: Placing) -> tuple[int, ...]:
    """Choose max_memory: 90 % of each GPU, or less where what stands beside the weights needs more.

    What stands beside them depends on where the layers are, and that on the limits: so they are
    lowered until what was placed leaves the room that it needs. Room that was kept is never given
    back, so this ends.

    Returns:
        Bytes for each GPU, then for the main memory.
    """
    main = machine.cpu - sizes.extras_on_cpu
    if not machine.gpus:
        return (max(0, main - sizes.cache - sizes.activations - sizes.extras),)
    tenths = tuple(int(memory * GPU_SHARE) for memory in machine.gpus)
    kept = (0,) * len(machine.gpus)
    for _ in range(sizes.layers + 1):
        rooms = (memory - taken for memory, taken in zip(machine.gpus, kept, strict=True))
        limits = (*(max(0, min(pair)) for pair in zip(tenths, rooms, strict=True)), max(0, main))
        needed = tuple(
            memory - share.weights - share.headroom
            for memory, share in zip(
                machine.gpus,
                shares_of(sizes, machine, limits, placing(sizes, limits)),
                strict=False,
            )
        )
        if all(need <= keep for need, keep in zip(needed, kept, strict=True)):
            break
        kept = tuple(map(max, needed, kept))
    return limits


def shares_of(
    sizes: Sizes, machine: Machine, limits: tuple[int, ...], placement: Placement
) -> tuple[Share, ...]:
    """Say what each device holds, GPUs first; main memory and disk only if they hold something.

    Layers that are offloaded run on the first GPU, so their keys and values are there.
    """
    gpus, layers = len(machine.gpus), max(1, sizes.layers)
    shares = []
    for index, (name, memory) in enumerate(_devices(machine)):
        is_gpu = index < gpus
        runs = is_gpu or (index == 0 and not gpus)
        mine = placement.layers[index] + (0 if index else sum(placement.layers[max(1, gpus) :]))
        share = Share(
            device=name,
            memory=memory,
            limit=limits[index] if index < len(limits) else 0,
            layers=placement.layers[index],
            weights=placement.weights[index],
            cache=sizes.cache * mine // layers if runs else 0,
            activations=sizes.activations if runs else 0,
            extras=(0 if index else sizes.extras) + (sizes.extras_on_cpu if name == "cpu" else 0),
        )
        taken = share.weights + share.cache + share.activations + share.extras
        taken += CUDA_CONTEXT if is_gpu else 0
        if is_gpu or taken:
            shares.append(replace(share, headroom=0 if name == "disk" else memory - taken))
    return tuple(shares)


def _balanced(sizes: Sizes, limits: tuple[int, ...]) -> tuple[int, ...]:
    gpus = len(limits) - 1
    if gpus < 2:
        return limits
    fair = sizes.weights // gpus + int(BUFFER * max(sizes.pieces))
    return (*(min(limit, fair) for limit in limits[: gpus - 1]), *limits[gpus - 1 :])


def _devices(machine: Machine) -> list[tuple[str, int]]:
    gpus = [(str(index), memory) for index, memory in enumerate(machine.gpus)]
    return [*gpus, ("cpu", machine.cpu), ("disk", 0)]
