"""hc.transformers on a tiny real model: what it says, and that nothing else changes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hooks.launching import OFFLINE as WANDB_OFFLINE
from hooks.launching import Ended, run_job
from long_tests import WHEN_ASKED_FOR

if TYPE_CHECKING:
    from pathlib import Path

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
    return {name: word for name, word in words.items() if name not in ("event", "rank")}


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
    "to where": ("device_map=None", "offline"),
    "that a load returned": ("returned (", "model from_pretrained (Spying) returned"),
    "what was loaded": ("model: Spying, its first parameter on cpu",),
    "where it is": ("parameters: ", " on cpu"),
    "which GPU it is on": ("the model is on no GPU",),
    "a missing pad token": ("the tokenizer had no pad token; it is now its end-of-sequence token",),
    "a missing pad id": ("no pad_token_id on config and generation_config",),
    "what goes in": (
        "generate: 2 prompts, 13 characters, 5 tokens; max_new_tokens=12; ",
        "first parameter on cpu; the model is on no GPU",
    ),
    "what came out": ("generate: 2 prompts of 5 tokens gave ", " characters) in ", "; total "),
    "a prompt that is cut": ("1 prompt cut to 5 tokens on the right",),
    "a limit of tokens": ("50 new tokens were asked for, 6 will be made at most",),
    "the trap of a state dictionary": ("WARNING: offload_state_dict",),
    "the trap of offloading": ("WARNING: with a device map and offload_folder",),
    "what is offloaded": ("WARNING: ", "offloaded and shown on the meta device"),
    "what has no data": ("model.embed_tokens.weight", "parameters still on the meta device"),
    "why nothing is tried": ("test generation: left out, because parameters have no data",),
    "what is shared": ("test generation: left out, because its parameters are shared out",),
    "a failure of our own": ("looking at the files failed (DecodeError",),
}


@pytest.mark.parametrize("what", SAID)
def test_it_is_said(what: str, job: Ended) -> None:
    """In one line."""
    lines = job.errors.splitlines()
    assert any(all(word in line for word in SAID[what]) for line in lines), job.errors


def test_each_weight_file_gets_a_line_when_it_is_loaded(job: Ended) -> None:
    first_load = job.errors.partition("from_pretrained (Spying) returned")[0]
    loaded = re.findall(r"loaded weight file (\d+/\d+)", first_load)
    assert len(loaded) > 3
    assert len(set(loaded)) == len(loaded)


def test_the_test_generation_says_each_step(job: Ended) -> None:
    steps = [line.split("test generation: ")[1] for line in job.errors.splitlines()
             if "test generation: " in line]  # fmt: skip
    assert [step[0] for step in steps[:7]] == ["1", "2", "3", "4", "4", "5", "6"]
    assert "(1, 8)" in steps[5]


@pytest.mark.parametrize("kind", ["greedy", "sampled", "beams"])
def test_tokens_and_texts_are_those_of_the_model_alone(job: Ended, kind: str) -> None:
    assert fact(job, kind) == {"same": True, "texts": True}


def test_the_report_has_counts_and_a_rate(job: Ended) -> None:
    report = fact(job, "report")
    assert isinstance(report.pop("rate"), float)
    assert report == {"prompts": 2, "prompt_tokens": 5, "device": "cpu"}


def test_each_token_is_a_beat_in_the_phase_generate(job: Ended) -> None:
    watched = fact(job, "watched")
    assert watched["new_tokens"] == 20
    assert watched["phases"] == ["generate"]
    assert isinstance(watched["beats"], list)
    assert min(watched["beats"]) >= 1


def test_a_long_generation_is_warned_of_while_it_runs(job: Ended) -> None:
    lines = job.errors.splitlines()
    warned = next(place for place, line in enumerate(lines) if "generation has run for" in line)
    began = [place for place, line in enumerate(lines) if "About to call generate" in line]
    ended = [place for place, line in enumerate(lines) if "generate (Spying) returned" in line]
    assert any(first < warned < last for first, last in zip(began, ended, strict=False))


def test_what_the_user_raises_passes_through_and_closes_the_section(job: Ended) -> None:
    assert fact(job, "raised") == {"error": "the user's own", "open_sections": 0}


def test_a_debug_run_is_kept_finite_and_says_so(job: Ended) -> None:
    limited = fact(job, "limited")
    assert (limited["truncated"], limited["prompt_tokens"]) == (1, 6)
    assert (limited["asked"], limited["columns"]) == (50, 5 + 6)


def test_flags_that_do_nothing_are_named(job: Ended) -> None:
    assert "temperature=0.3 is ignored without do_sample=True" in str(fact(job, "limited"))


def test_a_pipeline_returns_what_transformers_own_returns(job: Ended) -> None:
    pipeline = fact(job, "pipeline")
    assert "temperature" not in str(pipeline.pop("warnings"))
    told = ("new_tokens", "prompt_characters", "response_characters")
    assert pipeline == {"same": True, "kind": True, "prompts": 2, **dict.fromkeys(told, True)}


def test_a_pipeline_has_the_limits_of_a_debug_run(job: Ended) -> None:
    assert fact(job, "short") == {"tokens": 5, "asked": 50, "new": 6}


def test_a_generation_with_offloaded_parts_is_warned_of(job: Ended) -> None:
    assert "offloaded (disk)" in str(fact(job, "traps"))


def test_a_load_that_fails_fails_as_it_does_without_us(job: Ended) -> None:
    errors = fact(job, "failed")["errors"]
    assert isinstance(errors, list)
    alone, ours, bad_kind = errors
    assert ours == alone
    assert bad_kind[0] == "BadUsage"


def test_a_failure_of_our_own_is_said_and_the_load_goes_on(job: Ended) -> None:
    assert fact(job, "stumbled") == {"words": 64}


@WHEN_ASKED_FOR
def test_disabled_it_says_nothing_and_changes_nothing(tmp_path: Path) -> None:
    off = {**OFFLINE, "HANGCHECK_DISABLE": "1"}
    ended = run_job(tmp_path, "hooks_pretrained.py", "briefly", environment=off)
    assert fact(ended, "loaded")["same"] is True
    assert fact(ended, "greedy") == {"same": True, "texts": True}
    assert "[PID:" not in ended.errors
    assert not (tmp_path / "hangcheck_runs").exists()
