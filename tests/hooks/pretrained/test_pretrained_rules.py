"""What is said of a load or a generation, from facts alone."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from processes import until

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.pretrained.generation.generated import LongRun
from lightning_hangcheck.hooks.pretrained.generation.generation_watch import doubts_before
from lightning_hangcheck.hooks.pretrained.generation.token_limits import Limits, beyond, capped
from lightning_hangcheck.hooks.pretrained.generation_flags import (
    doubtful_flags,
    set_on_model,
    set_on_tokenizer,
)
from lightning_hangcheck.hooks.pretrained.gpu_memory import GpuMemory, in_one_line
from lightning_hangcheck.hooks.pretrained.loading.shard_progress import (
    SMALLEST_MODEL,
    ShardProgress,
    reading_rate,
)
from lightning_hangcheck.hooks.pretrained.loading.source import Source, WeightFile, find_weights
from lightning_hangcheck.hooks.pretrained.loading.traps import Wish, traps
from lightning_hangcheck.hooks.pretrained.loading.watched_load import announcement, expectation

if TYPE_CHECKING:
    from pathlib import Path

FILES = (WeightFile("/m/model-1.safetensors", 2_000_000), WeightFile("/m/model-2.safetensors", 10))
HERE = Source(name="/m", kind="folder", offline=False, weight_files=FILES)
CACHED = Source(name="me/llama", kind="cache", offline=False, has_generation_config=True)
END = "</s>"
FULL_GPU = GpuMemory(index=1, used=95, total=100, by_us=50)


def named_traps(source: Source = CACHED, world_size: int = 1, **named: Any) -> str:
    version = named.pop("version", (5, 23))
    return "\n".join(
        traps(
            Wish(
                loader="LlamaForCausalLM",
                source=source,
                named=named,
                version=version,
                world_size=world_size,
            )
        )
    )


def test_offload_state_dict_is_a_trap_of_old_versions_and_nothing_in_new_ones() -> None:
    old = named_traps(offload_state_dict=True, version=(4, 48))
    assert "seems never to end" in old
    assert "has no effect" in named_traps(offload_state_dict=True, version=(4, 57))


def test_an_offload_folder_is_a_trap_only_beside_a_device_map() -> None:
    assert "meta device" in named_traps(device_map="auto", offload_folder="x")
    assert "meta device" in named_traps(device_map={"": "disk"})
    assert "meta device" not in named_traps(offload_folder="x")


def test_an_automatic_device_map_in_several_ranks_is_a_trap() -> None:
    assert "in each of 4 ranks" in named_traps(device_map="auto", world_size=4)
    assert "in each of" not in named_traps(device_map={"": 0}, world_size=4)


def test_the_hub_is_asked_even_for_what_is_in_the_cache() -> None:
    assert "local_files_only=True" in named_traps()
    assert "asks the hub" not in named_traps(msgspec.structs.replace(CACHED, offline=True))


def test_a_path_that_is_no_folder_is_taken_for_a_name_of_the_hub() -> None:
    typo = Source(name="./modles/llama", kind="hub", offline=False)
    assert "there is no folder ./modles/llama" in named_traps(typo)
    assert "this fails" in named_traps(msgspec.structs.replace(typo, offline=True))


def test_a_missing_generation_config_is_named_for_models_that_generate() -> None:
    assert "GenerationConfig.from_model_config" in named_traps(HERE)
    assert "generation_config.json" not in named_traps(CACHED)


def test_an_announcement_says_what_is_known() -> None:
    line = announcement("AutoModel", HERE, {"device_map": "auto", "torch_dtype": "bfloat16"}, True)
    assert "the local folder /m; 2 weight files, 2.0 MB" in line
    assert "device_map='auto'" in line
    assert "dtype=bfloat16" in line
    assert line.endswith("online")


def test_the_expected_time_is_an_estimate_or_left_out() -> None:
    large = msgspec.structs.replace(HERE, weight_files=(WeightFile("a", 10_000_000_000),))
    assert "about 10 s (an estimate: 10.0 GB at 1.0 GB/s" in str(expectation(large, 1e9))
    assert expectation(large, None) is None


def test_a_rate_is_measured_on_large_models_only(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as sparse:
        sparse.truncate(SMALLEST_MODEL + 1)
    rate = reading_rate([WeightFile(str(file), file.stat().st_size)])
    assert rate is not None
    assert rate > 0
    assert reading_rate(FILES) is None


def test_weights_are_found_as_transformers_finds_them(tmp_path: Path) -> None:
    assert find_weights(tmp_path) == ((), {})
    held = {"a": "one.bin", "b": "two.bin"}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_bytes(msgspec.json.encode({"metadata": {}, "weight_map": held}))
    for name in held.values():
        (tmp_path / name).write_bytes(b"12")
    files, file_of_weight = find_weights(tmp_path)
    assert [(file.name, file.size) for file in files] == [("one.bin", 2), ("two.bin", 2)]
    assert file_of_weight == held
    (tmp_path / "model.fp16.safetensors").write_bytes(b"123")
    assert [file.size for file in find_weights(tmp_path, "fp16")[0]] == [3]


class Heard:
    """A progress with its lines and beats, and a clock that stands still unless it is moved."""

    def __init__(self, source: Source) -> None:
        self.lines: list[str] = []
        self.beats = 0
        self.now = 0.0
        self.progress = ShardProgress(source, self.lines.append, self.count, lambda: self.now)

    def count(self) -> None:
        self.beats += 1


def test_a_file_is_loaded_with_its_last_weight() -> None:
    table = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}
    heard = Heard(msgspec.structs.replace(HERE, file_of_weight=table))
    heard.progress.opening("/m/model-1.safetensors")
    heard.progress.loaded_weights(["a"])
    assert heard.lines == ["opening weight file 1/2 model-1.safetensors"]
    heard.now = 2.0
    heard.progress.loaded_weights(["b"])
    assert heard.lines[1:] == ["loaded weight file 1/2 model-1.safetensors (2.0 MB, 2.000s)"]
    heard.progress.ended()
    assert heard.lines[2:] == ["loaded weight file 2/2 model-2.safetensors (10 B, 0.000s)"]
    assert heard.beats >= 4


def test_one_large_file_is_not_silent() -> None:
    heard = Heard(HERE)
    for second in range(0, 25, 3):
        heard.now = float(second)
        heard.progress.loaded_weights(["x"])
    assert heard.lines == ["5 weights loaded so far", "9 weights loaded so far"]


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


def test_only_flags_that_were_given_are_spoken_of() -> None:
    assert doubtful_flags({"temperature": 0.2}, given={"max_new_tokens"}) == []


def test_a_full_gpu_offload_and_the_cpu_are_doubts() -> None:
    assert "GPU 1 is 95% full" in doubts_before("cuda", [FULL_GPU], [])[0]
    assert "offloaded (cpu, disk)" in doubts_before("cuda", [], ["cpu", "disk"])[0]
    assert "on the CPU" in doubts_before("cpu", [], [])[0]
    assert doubts_before("cuda", [GpuMemory(0, 90, 100, 90)], []) == []


def test_memory_is_told_for_each_gpu() -> None:
    assert in_one_line((FULL_GPU,)) == "GPU 1: 95 B of 100 B used (95%), 50 B by this process"
    assert in_one_line(()) == "the model is on no GPU"


def config(**flags: Any) -> Any:
    return SimpleNamespace(**flags)


def test_new_tokens_beyond_the_limit_are_found_wherever_they_are_asked_for() -> None:
    limits, short = Limits(), config(max_new_tokens=20, max_length=None)
    assert beyond(limits, short, {"max_new_tokens": 2000}, 5) == 2000
    assert beyond(limits, short, {"max_length": 605}, 5) == 600
    assert beyond(limits, config(max_length=4096), {}, 96) == 4000
    assert beyond(limits, short, {"generation_config": config(max_new_tokens=700)}, 5) == 700
    assert beyond(limits, short, {}, 5) is None
    assert beyond(None, short, {"max_new_tokens": 2000}, 5) is None
    assert capped({"max_length": 9, "x": 1}, limits) == {"max_new_tokens": 512, "x": 1}


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


def test_a_long_run_is_warned_of_once_while_it_runs() -> None:
    warned = threading.Event()
    with LongRun(0.001, warned.set):
        assert warned.wait(10.0)


def test_a_short_run_is_not_warned_of() -> None:
    warned = threading.Event()
    with LongRun(60.0, warned.set):
        pass
    assert not warned.is_set()
    until(lambda: not any(isinstance(one, threading.Timer) for one in threading.enumerate()), "end")
