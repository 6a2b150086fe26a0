"""The plan's arithmetic against real models of the same configuration."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from planning.planned import LLAMA_8B
from planning.tiny_models import FAMILIES, GENERATING, VOCABULARY, real_model, save_config

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.plan import count_weights, plan_memory
from lightning_hangcheck.planning.config import read_config, read_fields
from lightning_hangcheck.planning.plan import GB, Machine, Model, Use
from lightning_hangcheck.planning.planner import piece_bytes, place

if TYPE_CHECKING:
    from pathlib import Path

for needed in ("torch", "transformers", "accelerate"):
    pytest.importorskip(needed, exc_type=ImportError)
# what the guests warn of while they are imported is theirs
pytestmark = pytest.mark.filterwarnings("ignore")
BIG = Machine(gpus=(80 * GB,), cpu=64 * GB)


def bytes_of(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_of_the_real_model(family: str, dtype: Any, tmp_path: Path) -> None:
    plan = plan_memory(str(save_config(family, tmp_path)), BIG, dtype=dtype)
    assert plan.weights == bytes_of(real_model(tmp_path, dtype).parameters())


@pytest.mark.parametrize("context", [24, 48])
@pytest.mark.parametrize("family", GENERATING)
def test_the_cache_is_that_of_a_real_forward(family: str, context: int, tmp_path: Path) -> None:
    """A window of 32 lies between the two contexts."""
    import torch

    folder = save_config(family, tmp_path)
    fields = read_fields(read_config(folder / "config.json"))
    plan = plan_memory(str(folder), BIG, dtype="bfloat16", context=context, batch=2)
    tokens = torch.randint(2, VOCABULARY, (2, context))
    decoder = {"decoder_input_ids": tokens} if fields.two_stacks else {}
    with torch.no_grad():
        cache = real_model(folder, "bfloat16")(tokens, use_cache=True, **decoder).past_key_values
    parts = [cache.self_attention_cache, cache.cross_attention_cache] if decoder else [cache]
    layers = [layer for part in parts for layer in part.layers]
    assert plan.cache == bytes_of(tensor for one in layers for tensor in (one.keys, one.values))


@pytest.mark.parametrize("shares", [(2,), (0.5,), (0.3,), (0.6, 0.7), (0.4, 0.3), (0.2, 0.2, 0.9)])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mixtral"])
def test_layers_go_where_accelerate_puts_them(
    family: str, shares: tuple[float, ...], tmp_path: Path
) -> None:
    """As from_pretrained asks it: with each GPU's room balanced."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    config = save_config(family, tmp_path) / "config.json"
    fields, model = read_fields(read_config(config)), real_model(tmp_path, "bfloat16")
    counted = Model("", fields, *count_weights(config))
    pieces = piece_bytes(counted, Use(dtype="bfloat16", context=64))
    limits = [int(sum(pieces) * share) for share in (*shares, 0.5)]
    names = [*range(len(shares)), "cpu"]
    whole = list(model._no_split_modules)  # noqa: SLF001 - what from_pretrained passes
    options = {"no_split_module_classes": whole, "dtype": model.dtype}
    room = get_balanced_memory(model, dict(zip(names, limits, strict=True)), **options)
    room = {name: room[name] for name in names}
    theirs = infer_auto_device_map(model, room, **options)
    layers = [
        next(
            theirs[at] for at in (f"model.layers.{n}", "model.layers", "model", "") if at in theirs
        )
        for n in range(len(model.model.layers))
    ]
    placed = [count for count, _ in place(pieces, limits, 1.0)]
    assert placed == [*map(layers.count, [*names, "disk"])]


def test_planning_says_nothing_by_itself_and_notes_what_it_assumed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """accelerate would warn that the GPUs planned for are not in this machine."""
    plan = plan_memory(str(save_config("llama", tmp_path, dtype="bfloat16")), BIG)
    assert capfd.readouterr() == ("", "")
    assert (plan.use.dtype, plan.use.context) == ("bfloat16", 2048)
    assert plan.notes[0] == "weights in bfloat16: says config.json"
    assert plan.notes[1].startswith("a context of 2048 tokens")


def test_without_what_counts_weights_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(save_config("llama", tmp_path))
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(BadUsage, match="lightning-hangcheck\\[plan\\]"):
        plan_memory(folder, BIG)


def test_a_model_that_transformers_does_not_know_is_one_sentence(tmp_path: Path) -> None:
    config = {**LLAMA_8B, "model_type": "llm_of_tomorrow"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadUsage, match="cannot build") as raised:
        plan_memory(str(tmp_path), BIG)
    assert "\n" not in str(raised.value)


def test_code_of_a_model_is_not_run_for_a_plan(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And nobody is asked whether it may: a plan reads a configuration."""
    own = {"auto_map": {"AutoConfig": "own.Own"}, "model_type": "own", "architectures": ["Own"]}
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_8B, **own}))
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')\n")
    with pytest.raises(BadUsage, match="no code of a model runs for a plan"):
        plan_memory(str(tmp_path), BIG)
    assert "[y/N]" not in "".join(capfd.readouterr())
