"""What is said of a load and of a generation, from facts alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lightning_hangcheck.hooks.loading import Source, find_source, traps

HERE = Source(offline=False, weight_files={Path("/m/model.safetensors"): 2_000_000})
CACHED = Source("cache", offline=False, has_generation_config=True)
NOWHERE = Source("hub", offline=False)


OF_CONFIG = {"loader": "GenerationConfig"}


@pytest.mark.parametrize(
    ("source", "given", "trap", "named"),
    [
        (CACHED, {"offload_state_dict": True}, "ignored from transformers 4.57 on", True),
        (CACHED, {"device_map": "auto", "offload_folder": "x"}, "meta device", True),
        (CACHED, {"offload_folder": "x"}, "meta device", False),
        (CACHED, {"device_map": "auto", "ranks": 4}, "device_map='auto' in each of 4 ranks", True),
        (CACHED, {"device_map": {"": 0}, "ranks": 4}, "in each of", False),
        (CACHED, {}, "local_files_only=True", True),
        (Source("cache"), {}, "asks the hub", False),
        (NOWHERE, {}, "there is no folder ./modles/llama", True),
        (HERE, {}, "GenerationConfig.from_model_config", True),
        (Source(), OF_CONFIG, "GenerationConfig.from_model_config(model.config)", True),
        (Source(has_generation_config=True), OF_CONFIG, "from_model_config", False),
    ],
)  # fmt: skip
def test_a_trap_is_named_and_what_is_none_is_not(
    source: Source, given: dict[str, Any], trap: str, named: bool
) -> None:
    arguments = {"loader": "LlamaForCausalLM", "ranks": 1, **given}
    loader, ranks = arguments.pop("loader"), arguments.pop("ranks")
    found = traps("./modles/llama", loader, arguments, source, ranks)
    assert (trap in "\n".join(found)) == named


def test_weights_are_found_as_transformers_finds_them(tmp_path: Path) -> None:
    assert find_source(str(tmp_path), {}).weight_files == {}
    held = {"a": "one.bin", "b": "two.bin"}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": held}))
    for name in held.values():
        (tmp_path / name).write_bytes(b"12")
    found = find_source(str(tmp_path), {})
    sizes = {file.name: size for file, size in found.weight_files.items()}
    assert sizes == {"one.bin": 2, "two.bin": 2}
    assert found.file_of_weight == held
    (tmp_path / "model.fp16.safetensors").write_bytes(b"123")
    assert list(find_source(str(tmp_path), {"variant": "fp16"}).weight_files.values()) == [3]
