"""How many weights a model has, where, and how many bytes they take in a number format."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import Struct

Dtype = Literal["float32", "bfloat16", "float16", "int8", "int4"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
Sureness = Literal["counted", "computed", "guessed"]
QUANTIZED: tuple[Dtype, ...] = ("int8", "int4")
_BYTES: dict[Dtype, float] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    # bitsandbytes packs two weights in a byte, and keeps a float32 scale for each 64 of them
    # (bitsandbytes/functional.py, quantize_4bit: blocksize 64)
    "int4": 0.5 + 4 / 64,
}


class Piece(Struct, frozen=True):
    """A part of the model that stays on one device.

    Attributes:
        parameters: All of its weights.
        linear: Those in linear layers, which 8-bit and 4-bit loading shrinks. bitsandbytes
            replaces ``nn.Linear`` and ``Conv1D`` only (transformers/integrations/bitsandbytes.py):
            not embeddings, norms, the head, or experts that are kept in one tensor.
    """

    parameters: int
    linear: int = 0

    def bytes_in(self, dtype: Dtype) -> int:
        """Bytes of these weights; what is not quantized stays in 16 bits."""
        linear = self.linear if dtype in QUANTIZED else 0
        return round((self.parameters - linear) * compute_bytes(dtype) + linear * _BYTES[dtype])


class Weights(Struct, frozen=True, kw_only=True):
    """The weights in the order in which a model runs.

    Attributes:
        before: Embeddings, with the head where it shares their weights.
        blocks: The layers, of which none is ever split between devices.
        after: The last norm and the head.
        sureness: ``counted``: on the real model without its data. ``computed``: by formulas that
            are exact for this family. ``guessed``: by those of a family like it.
        source: Who says so, in words.
    """

    before: Piece
    blocks: tuple[Piece, ...]
    after: Piece
    sureness: Sureness
    source: str

    @property
    def parameters(self) -> int:
        """All of them."""
        return sum(piece.parameters for piece in (self.before, *self.blocks, self.after))

    def bytes_in(self, dtype: Dtype) -> int:
        """Bytes of all of them in this number format."""
        return sum(piece.bytes_in(dtype) for piece in (self.before, *self.blocks, self.after))


def compute_bytes(dtype: Dtype) -> int:
    """Bytes of one number in activations and cache: quantized weights compute in 16 bits."""
    return 4 if dtype == "float32" else 2
