"""The bytes of one model in one use: what placing works with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.planning.activations import activation_bytes
from lightning_hangcheck.planning.cache import cache_bytes
from lightning_hangcheck.planning.weights import compute_bytes

if TYPE_CHECKING:
    from lightning_hangcheck.planning.config_fields import Fields
    from lightning_hangcheck.planning.plan import Use
    from lightning_hangcheck.planning.weights import Weights


class Sizes(Struct, frozen=True, kw_only=True):
    """Bytes of a model's parts.

    Attributes:
        pieces: Weights in the order of running: embeddings, each layer, norm and head.
        cache: Keys and values of all layers.
        activations: In flight while one layer runs.
        extras: Of all modules beside the model.
        quantized: The weights are loaded in 8 or 4 bits.
    """

    pieces: tuple[int, ...]
    cache: int
    activations: int
    extras: int
    quantized: bool

    @property
    def weights(self) -> int:
        """All weights."""
        return sum(self.pieces)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.pieces) - 2


def sizes_of(fields: Fields, weights: Weights, use: Use) -> Sizes:
    """Work out all bytes of a model in this use."""
    number = compute_bytes(use.dtype)
    pieces = (weights.before, *weights.blocks, weights.after)
    return Sizes(
        pieces=tuple(piece.bytes_in(use.dtype) for piece in pieces),
        cache=sum(cache_bytes(fields, use.context, use.batch, number)),
        activations=activation_bytes(fields, use.context, use.batch, number),
        extras=sum(extra.size for extra in use.extras),
        quantized=use.dtype in ("int8", "int4"),
    )
