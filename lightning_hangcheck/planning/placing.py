"""Which weights go where: the rules of accelerate's device_map="auto", without a model.

accelerate/utils/modeling.py, get_balanced_memory and infer_auto_device_map: each GPU but the last
takes its even share plus a quarter more than the largest part; pieces are placed in order; the
first GPU and the main memory keep room for the largest piece still to come, to which an offloaded
one is brought when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from lightning_hangcheck.planning.sizes import Sizes

BUFFER = 1.25
QUANTIZING_SHARE = 0.9
"""transformers leaves a tenth of each limit for quantizing (quantizer_bnb_8bit.py)."""
OWN_RULES = "accelerate's rules"


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


if TYPE_CHECKING:
    Placing: TypeAlias = Callable[[Sizes, tuple[int, ...]], Placement]


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


def _balanced(sizes: Sizes, limits: tuple[int, ...]) -> tuple[int, ...]:
    gpus = len(limits) - 1
    if gpus < 2:
        return limits
    fair = sizes.weights // gpus + int(BUFFER * max(sizes.pieces))
    return (*(min(limit, fair) for limit in limits[: gpus - 1]), *limits[gpus - 1 :])
