"""Planned activations against the tensors of a real forward, within the promised factor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from planning.tiny_models import KNOWN, VOCABULARY, real_model, save_config

from lightning_hangcheck.planning.config import read_config, read_fields
from lightning_hangcheck.planning.planner import activation_bytes, cache_bytes

if TYPE_CHECKING:
    from pathlib import Path

for needed in ("torch", "transformers"):
    pytest.importorskip(needed, exc_type=ImportError)
# what the guests warn of while they are imported is theirs
pytestmark = pytest.mark.filterwarnings("ignore")
FACTOR = 1.5
BATCH, CONTEXT = 2, 256


@pytest.mark.parametrize(
    ("family", "dtype", "number_bytes"),
    [*((family, "bfloat16", 2) for family in KNOWN), ("llama", "float32", 4)],
)
def test_planned_activations_are_right_within_the_promised_factor(
    family: str, dtype: str, number_bytes: int, tmp_path: Path
) -> None:
    import torch
    from planning.tensor_peak import TensorPeak

    # a window would be shorter than the context, so that the cache is cut while it is counted
    window = {"sliding_window": 4096} if family == "mistral" else {}
    folder = save_config(family, tmp_path, **window)
    fields = read_fields(read_config(folder / "config.json"))
    model = real_model(folder, dtype)
    tokens = torch.randint(2, VOCABULARY, (BATCH, CONTEXT))
    options: dict[str, Any] = {} if family in ("bert", "t5") else {"logits_to_keep": 1}
    if family == "t5":
        options["decoder_input_ids"] = tokens
    measured = TensorPeak([*model.parameters(), *model.buffers(), tokens])
    with torch.no_grad(), measured:
        model(tokens, **options)
    cache = sum(cache_bytes(fields, CONTEXT, BATCH, number_bytes))
    planned = activation_bytes(fields, CONTEXT, BATCH, number_bytes)
    assert 1 / FACTOR < planned / (measured.peak - cache) < FACTOR
