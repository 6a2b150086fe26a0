"""hc.transformers on a tiny real model: what it says, and that nothing else changes."""

from __future__ import annotations

import re

import pytest
from hooks.launching import OFFLINE as WANDB_OFFLINE
from hooks.launching import Ended, run_job

OFFLINE = {**WANDB_OFFLINE, "HF_HUB_OFFLINE": "1"}
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One process that loads and generates in every way; importing transformers takes its time."""
    folder = tmp_path_factory.mktemp("pretrained")
    return run_job(folder, "hooks_pretrained.py", environment=OFFLINE)


def fact(job: Ended, event: str) -> dict[str, object]:
    assert job.code == 0, job.errors
    words: dict[str, object] = job.of(event)[0]
    return {name: word for name, word in words.items() if name not in ("event", "pid", "rank")}


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


def test_a_generation_is_counted_beats_and_is_warned_of_while_it_runs(job: Ended) -> None:
    report, watched = fact(job, "report"), fact(job, "watched")
    assert isinstance(report.pop("rate"), float)
    assert report == {"prompts": 2, "prompt_tokens": 5, "device": "cpu"}
    assert (watched["new_tokens"], watched["phases"]) == (20, ["generate"])
    assert isinstance(watched["beats"], list)
    assert min(watched["beats"]) >= 1, "each token is a sign of life"
    lines = job.errors.splitlines()
    warned = next(place for place, line in enumerate(lines) if "generation has run for" in line)
    began = [place for place, line in enumerate(lines) if "generate: 1 prompt, 2 char" in line]
    ended = [place for place, line in enumerate(lines) if "generate: 1 prompt of 1 token" in line]
    assert any(first < warned < last for first, last in zip(began, ended, strict=False))


def test_a_debug_run_is_kept_finite_and_traps_are_named(job: Ended) -> None:
    limited = fact(job, "limited")
    assert (limited["truncated"], limited["prompt_tokens"]) == (1, 6)
    assert (limited["asked"], limited["columns"]) == (50, 5 + 6)
    assert "`temperature` is set to `0.3`" in str(limited["warnings"])
    traps = fact(job, "traps")
    assert "offloaded (disk)" in str(traps["warnings"])
    assert traps["offloaded"] == ["LlamaForCausalLM, parts on disk (device map)"]
