"""In which number format a model's weights are stored, as config.json tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.planning.weights import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.planning.weights import Dtype

_EIGHT_BITS = ("fp8", "fbgemm_fp8", "finegrained_fp8")
_FOUR_BITS = ("mxfp4", "awq", "gptq")


def stored_dtype(config: Mapping[str, object]) -> tuple[Dtype, str]:
    """Return the format that from_pretrained would take, and where that comes from.

    Without a word in config.json it is float32, which is what transformers takes then.
    """
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        dtype = _quantized(quantization)
        if dtype is not None:
            return dtype, "the checkpoint is quantized, says config.json"
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    stored = str(text.get("dtype") or text.get("torch_dtype") or "").removeprefix("torch.")
    if stored in DTYPES:
        return stored, "says config.json"
    return "float32", "config.json names no number format, so transformers loads float32"


def _quantized(quantization: Mapping[str, object]) -> Dtype | None:
    method, bits = quantization.get("quant_method"), quantization.get("bits")
    if bits == 8 or method in _EIGHT_BITS or quantization.get("load_in_8bit"):
        return "int8"
    if bits == 4 or method in _FOUR_BITS or quantization.get("load_in_4bit"):
        return "int4"
    return None
