"""hc.transformers on a tiny real model, and what is said of a load from facts alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hooks.launching import OFFLINE as WANDB_OFFLINE
from hooks.launching import Ended, run_job

from lightning_hangcheck.hooks.loading import Source, find_source, traps

OFFLINE = {**WANDB_OFFLINE, "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One process that loads and generates in every way; importing transformers takes its time."""
    folder = tmp_path_factory.mktemp("pretrained")
    return run_job(folder, "hooks_pretrained.py", environment=OFFLINE)


def fact(job: Ended, event: str) -> dict[str, object]:
    assert job.code == 0, job.errors
    words: dict[str, object] = job.of(event)[0]
    return {name: word for name, word in words.items() if name not in ("event", "pid", "rank")}


@pytest.mark.real
def test_what_is_loaded_is_what_was_saved_and_all_else_is_as_it_was(job: Ended) -> None:
    assert fact(job, "loaded") == {
        "phase": "model_load",
        "same": True,
        "random_untouched": True,
        "beats_by_hand": False,
        "pad": ["</s>", 2, 2],
    }


SAID = {
    "where from and how much": (
        "Spying.from_pretrained will read the local folder model; 6 weight files",
    ),
    "what was loaded": ("model: Spying, its first parameter on cpu",),
    "a missing pad token": ("the tokenizer had no pad token; it is now its end-of-sequence token",),
    "what goes in": (
        "generate: 2 prompts, 13 characters, 5 tokens; max_new_tokens=12; ",
        "first parameter on cpu; the model is on no GPU",
    ),
    "what came out": ("generate: 2 prompts of 5 tokens gave ", " characters) in ", "; total "),
    "a prompt that is cut": ("1 prompt cut to 5 tokens on the right",),
    "a limit of tokens": ("50 new tokens were asked for, 6 will be made at most",),
    "the trap of offloading": ("WARNING: with a device map and offload_folder",),
    "what is offloaded": (
        "WARNING: ",
        " on the meta device (model.layers.3.",
        "), offloaded, so each forward",
    ),
    "a failure of our own": ("looking at the files failed (DecodeError",),
}


@pytest.mark.real
def test_it_is_said(job: Ended) -> None:
    """Each in one line; each weight file when it is loaded, each step of the test generation."""
    lines = job.errors.splitlines()
    unsaid = [
        what
        for what, words in SAID.items()
        if not any(all(word in line for word in words) for line in lines)
    ]
    assert unsaid == [], job.errors
    first_load = job.errors.partition("from_pretrained (Spying) returned")[0]
    loaded = re.findall(r"loaded weight file (\d+/\d+)", first_load)
    assert len(loaded) > 3
    assert len(set(loaded)) == len(loaded)
    assert "test generation of 4 tokens on cpu returned (" in job.errors


@pytest.mark.real
def test_tokens_texts_and_errors_are_those_of_transformers_alone(job: Ended) -> None:
    for kind in ("greedy", "sampled", "beams"):
        assert fact(job, kind) == {"same": True, "texts": True}
    pipeline = fact(job, "pipeline")
    assert "temperature" not in str(pipeline.pop("warnings"))
    assert pipeline == {"same": True, "kind": True, "prompts": 2, "new_tokens": True}
    errors = fact(job, "failed")["errors"]
    assert isinstance(errors, list)
    alone, ours, bad_kind = errors
    assert ours == alone
    assert bad_kind[0] == "BadUsage"
    assert fact(job, "raised") == {"error": "the user's own", "open_sections": 0}
    assert fact(job, "stumbled") == {"words": 64}, "a failure of our own stops no load"


@pytest.mark.real
def test_a_generation_is_counted_beats_and_is_warned_of_while_it_runs(job: Ended) -> None:
    report, watched = fact(job, "report"), fact(job, "watched")
    assert isinstance(report.pop("rate"), float)
    assert report == {"prompts": 2, "prompt_tokens": 5, "device": "cpu"}
    assert (watched["new_tokens"], watched["phases"]) == (20, ["generate"])
    assert any(watched["beats"]), "a token after a pulse is a sign of life"
    lines = job.errors.splitlines()
    warned = next(place for place, line in enumerate(lines) if "generation has run for" in line)
    began = [place for place, line in enumerate(lines) if "generate: 1 prompt, 2 char" in line]
    ended = [place for place, line in enumerate(lines) if "generate: 1 prompt of 1 token" in line]
    assert any(first < warned < last for first, last in zip(began, ended, strict=False))


@pytest.mark.real
def test_a_debug_run_is_kept_finite_and_traps_are_named(job: Ended) -> None:
    limited = fact(job, "limited")
    assert (limited["truncated"], limited["prompt_tokens"]) == (1, 6)
    assert (limited["asked"], limited["columns"]) == (50, 5 + 6)
    assert "`temperature` is set to `0.3`" in str(limited["warnings"])
    traps = fact(job, "traps")
    assert "offloaded (disk)" in str(traps["warnings"])
    assert traps["offloaded"] == ["LlamaForCausalLM, parts on disk (device map)"]


# What is said of a load and of a generation, from facts alone.

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
