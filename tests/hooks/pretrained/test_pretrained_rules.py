"""What is said of a load and of a generation, from facts alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.generating import (
    GenerationReport,
    Limits,
    asked_new_tokens,
    doubts_before,
)
from lightning_hangcheck.hooks.loading import (
    SMALLEST_MODEL,
    Load,
    ShardProgress,
    find_weights,
    reading_rate,
    traps,
)
from lightning_hangcheck.hooks.models import (
    GpuMemory,
    doubtful_flags,
    set_on_model,
    set_on_tokenizer,
)

FILES = {Path("/m/model-1.safetensors"): 2_000_000, Path("/m/model-2.safetensors"): 10}
HERE = Load("/m", "LlamaForCausalLM", "model", {}, offline=False, weight_files=FILES)
CACHED = Load(
    "me/llama", "LlamaForCausalLM", "model", {}, "cache", offline=False, has_generation_config=True
)
TYPO = msgspec.structs.replace(CACHED, name="./modles/llama", kind="hub")
CONFIG = msgspec.structs.replace(HERE, loader="GenerationConfig", weight_files={}, offline=True)


def named_traps(load: Load = CACHED, world_size: int = 1, **named: Any) -> str:
    version = named.pop("version", (5, 23))
    known = {name: named.pop(name) for name in ("offline", "has_generation_config", "loader")
             if name in named}  # fmt: skip
    load = msgspec.structs.replace(load, named=named, **known)
    return "\n".join(traps(load, version, world_size))


@pytest.mark.parametrize(
    ("given", "trap"),
    [
        ({"offload_state_dict": True, "version": (4, 48)}, "seems never to end"),
        ({"offload_state_dict": True, "version": (4, 57)}, "has no effect"),
        ({"device_map": "auto", "offload_folder": "x"}, "meta device"),
        ({"device_map": {"": "disk"}}, "meta device"),
        ({"device_map": "auto", "world_size": 4}, "in each of 4 ranks"),
        ({}, "local_files_only=True"),
        ({"load": TYPO}, "there is no folder ./modles/llama"),
        ({"load": TYPO, "offline": True}, "this fails"),
        ({"load": HERE}, "GenerationConfig.from_model_config"),
        ({"load": CONFIG}, "use GenerationConfig.from_model_config(model.config)"),
    ],
)
def test_a_trap_is_named(given: dict[str, Any], trap: str) -> None:
    assert trap in named_traps(**given)


@pytest.mark.parametrize(
    ("given", "trap"),
    [
        ({"offload_folder": "x"}, "meta device"),
        ({"device_map": {"": 0}, "world_size": 4}, "in each of"),
        ({"offline": True}, "asks the hub"),
        ({}, "generation_config.json"),
        ({"load": CONFIG, "has_generation_config": True}, ""),
        # the hub may have it
        (
            {"loader": "GenerationConfig", "has_generation_config": False},
            "generation_config.json",
        ),
    ],
)
def test_what_is_no_trap_is_not_named(given: dict[str, Any], trap: str) -> None:
    found = named_traps(**given)
    assert trap not in found if trap else not found


def test_a_rate_is_measured_on_large_models_only(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as sparse:
        sparse.truncate(SMALLEST_MODEL + 1)
    rate = reading_rate({file: file.stat().st_size})
    assert rate is not None
    assert rate > 0
    assert reading_rate(FILES) is None


def test_weights_are_found_as_transformers_finds_them(tmp_path: Path) -> None:
    assert find_weights(tmp_path) == ({}, {})
    held = {"a": "one.bin", "b": "two.bin"}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_bytes(msgspec.json.encode({"metadata": {}, "weight_map": held}))
    for name in held.values():
        (tmp_path / name).write_bytes(b"12")
    files, file_of_weight = find_weights(tmp_path)
    assert {file.name: size for file, size in files.items()} == {"one.bin": 2, "two.bin": 2}
    assert file_of_weight == held
    (tmp_path / "model.fp16.safetensors").write_bytes(b"123")
    assert list(find_weights(tmp_path, "fp16")[0].values()) == [3]


class Heard:
    """A progress with its lines and beats, and a clock that stands still unless it is moved."""

    def __init__(self, load: Load) -> None:
        self.lines: list[str] = []
        self.beats = 0
        self.now = 0.0
        self.progress = ShardProgress(load, self.lines.append, self.count, lambda: self.now)

    def count(self) -> None:
        self.beats += 1


def test_a_file_is_loaded_with_its_last_weight() -> None:
    table = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    heard = Heard(msgspec.structs.replace(HERE, file_of_weight=table))
    heard.progress.loaded_weights(["a"])
    assert heard.lines == []
    heard.now = 2.0
    heard.progress.loaded_weights(["b"])
    assert heard.lines == ["loaded weight file 1/2 model-1.safetensors (2.0 MB, 2.000s)"]
    assert list(heard.progress.items([])) == []
    assert heard.lines[1:] == ["loaded weight file 2/2 model-2.safetensors (10 B, 0.000s)"]
    assert heard.beats >= 3


END = "</s>"


FULL_GPU = GpuMemory(index=1, used=95, total=100, by_us=50, reserved=60)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"temperature": 0.2}, "temperature=0.2 is ignored without do_sample=True"),
        ({"temperature": 0, "do_sample": True}, "temperature=0 with do_sample=True is refused"),
        ({"early_stopping": True}, "without num_beams > 1"),
        ({"max_length": 9, "max_new_tokens": 9}, "max_length is ignored"),
        ({"min_new_tokens": 9, "max_new_tokens": 5}, "is above max_new_tokens=5"),
        ({"num_return_sequences": 3, "num_beams": 2}, "num_return_sequences=3 is refused"),
    ],
)
def test_a_flag_that_contradicts_another_is_named(flags: dict[str, Any], words: str) -> None:
    assert words in "\n".join(doubtful_flags(flags))


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"temperature": 0.2, "do_sample": True, "num_return_sequences": 3},
        {"temperature": 1.0, "top_k": 50},
        {"num_beams": 4, "early_stopping": True, "num_return_sequences": 4},
    ],
)
def test_flags_that_fit_are_not_spoken_of(flags: dict[str, Any]) -> None:
    assert doubtful_flags(flags) == []


def test_a_full_gpu_offload_and_the_cpu_are_doubts() -> None:
    assert "GPU 1 is 95% full" in doubts_before("cuda", [FULL_GPU], [])[0]
    assert "offloaded (cpu, disk)" in doubts_before("cuda", [], ["cpu", "disk"])[0]
    assert "on the CPU" in doubts_before("cpu", [], [])[0]
    assert doubts_before("cuda", [GpuMemory(0, 90, 100, 90)], []) == []


def report(**figures: Any) -> GenerationReport:
    known = {"prompts": 2, "prompt_tokens": 310, "new_tokens": 200, "tokenize_s": 0.002}
    return GenerationReport(**{**known, **figures})


def test_a_time_past_a_minute_is_told_in_minutes_too() -> None:
    line = str(report(generate_s=180.0, move_s=3.0))
    assert "in 180.000 s (1.1 a second)" in line
    assert line.endswith("total 183.002 s = 3 min 03 s")


def config(**flags: Any) -> Any:
    return SimpleNamespace(**flags)


def test_new_tokens_beyond_the_limit_are_capped_wherever_they_are_asked_for() -> None:
    short = config(max_new_tokens=20, max_length=None)
    assert asked_new_tokens(short, {"max_length": 605}, 5) == 600
    assert asked_new_tokens(config(max_length=4096), {}, 96) == 4000
    assert asked_new_tokens(short, {"generation_config": config(max_new_tokens=700)}, 5) == 700
    assert Limits().cap({"max_length": 9, "x": 1}, 600) == {"max_new_tokens": 512, "x": 1}
    assert Limits().cap({"max_length": 9, "x": 1}, 512) is None
    assert Limits().cap({}, None) is None


def test_limits_that_leave_nothing_are_refused() -> None:
    with pytest.raises(BadUsage, match="above 0"):
        Limits(max_new_tokens=0)


def test_a_pad_token_is_set_from_the_end_of_sequence_and_only_if_missing() -> None:
    tokenizer = config(pad_token=None, eos_token=END, pad_token_id=2)
    assert "'</s>' (id 2)" in str(set_on_tokenizer(tokenizer))
    assert tokenizer.pad_token == END
    assert set_on_tokenizer(tokenizer) is None
    assert "WARNING" in str(set_on_tokenizer(config(pad_token=None, eos_token=None)))
    model = config(
        config=config(pad_token_id=None, eos_token_id=[7, 8]),
        generation_config=config(pad_token_id=0, eos_token_id=7),
    )
    assert "no pad_token_id on config; it is now the end-of-sequence id 7" in str(
        set_on_model(model)
    )
    assert (model.config.pad_token_id, model.generation_config.pad_token_id) == (7, 0)
