"""Models as transformers makes and saves them: each belongs to itself, and to no other size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from planning.tiny_models import FAMILIES, real_model, save_config
from subjects import loading

from lightning_hangcheck.doctor.data_checks import FIT, model_fits

if TYPE_CHECKING:
    from pathlib import Path


for needed in ("torch", "transformers"):
    pytest.importorskip(needed, exc_type=ImportError)
# what the guests warn of while they are imported is theirs
pytestmark = pytest.mark.filterwarnings("ignore")
LARGER = {"gpt2": {"n_embd": 128}, "t5": {"d_model": 128}, "bart": {"d_model": 128}}
OF_KNOWN_LAYERS = ("llama", "mistral", "qwen2", "mixtral", "gpt2")
"""Families of which config.json alone tells shapes."""
ALWAYS_TRIED = ("gpt2", "mixtral", "t5")


@pytest.mark.parametrize(
    "family",
    [one if one in ALWAYS_TRIED else pytest.param(one, marks=WHEN_ASKED_FOR) for one in FAMILIES],
)
def test_a_real_model_belongs_to_itself_and_to_no_other_size(family: str, tmp_path: Path) -> None:
    import torch

    config = save_config(family, tmp_path / "config")
    model = real_model(config, "float32")
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "parts", max_shard_size="60KB")
    torch.save({"state_dict": model.state_dict()}, tmp_path / "model.ckpt")
    other = save_config(family, tmp_path / "other", **LARGER.get(family, {"hidden_size": 128}))
    for saved in (tmp_path / "whole", tmp_path / "parts", tmp_path / "model.ckpt"):
        for backbone in (tmp_path / "whole", config):
            told = model_fits(loading(saved, backbone))
            assert {one.status for one in told} == {"ok"}, told
    for name in ("whole", "model.ckpt") if family in OF_KNOWN_LAYERS else ("whole",):
        told = model_fits(loading(tmp_path / name, other))
        assert [one.status for one in told if one.check == FIT] == ["failed"]
