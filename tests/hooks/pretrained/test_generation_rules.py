"""What is said of a generation, from facts alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.generating import (
    GenerationReport,
    Limits,
    asked_new_tokens,
    doubts_before,
)
from lightning_hangcheck.hooks.models import (
    GpuMemory,
    doubtful_flags,
    set_on_model,
    set_on_tokenizer,
)

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
