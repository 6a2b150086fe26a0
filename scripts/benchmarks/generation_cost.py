#!/usr/bin/env python
"""What a beat per token costs `generate`: by itself, and within the generation of a small model."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from figures import Figure, tell
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteriaList

from lightning_hangcheck.hooks.generating import token_beat
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = 64  # of each generation, of two sequences
SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="pairs of generations (20)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(HANGCHECK_RUN_DIR=f"{folder}/run", HANGCHECK_CONSOLE="off")
        tell([beat_alone(), *within_generate(options.rounds)], as_json=options.json)


def beat_alone(calls: int = 50_000) -> Figure:
    """Call it as ``generate`` does, with what that does with its answer."""
    beat, tokens = token_beat(current().beat), torch.ones(2, 8, dtype=torch.long)
    done = torch.zeros(2, dtype=torch.bool)
    rounds = []
    for _ in range(7):
        began = time.perf_counter()
        for _ in range(calls):
            done = done | beat(tokens, None)
        rounds.append((time.perf_counter() - began) / calls * 1e6)
    return Figure("beat of a token", median(rounds), "us", note=f"median of 7 rounds of {calls}")


def within_generate(rounds: int) -> list[Figure]:
    """Generate with and without in turn, and compare neighbours."""
    end = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    model = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, **end)).eval()
    tokens = torch.ones(2, 8, dtype=torch.long)
    named: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False}
    named["attention_mask"] = torch.ones_like(tokens)

    def plain() -> None:
        model.generate(tokens, **named)

    def beating() -> None:
        criteria = StoppingCriteriaList([token_beat(current().beat)])
        model.generate(tokens, stopping_criteria=criteria, **named)

    plain_s, ratios = [], []
    for number in range(rounds + 1):
        order: list[Callable[[], None]] = [plain, beating] if number % 2 else [beating, plain]
        spent = {kind: _time(kind) for kind in order}
        if number:  # the first pair warms up
            plain_s.append(spent[plain])
            ratios.append(spent[beating] / spent[plain])
    note = f"median of {rounds} pairs of {TOKENS} tokens, one thread"
    return [
        Figure("generate, a token without a beat", median(plain_s) / TOKENS * 1e3, "ms", note=note),
        Figure(
            "generate with a beat per token", (median(ratios) - 1) * 100, "%", "under 1 %", note
        ),
    ]


def _time(work: Callable[[], None]) -> float:
    """Seconds of the processor, which other programs on the machine disturb least."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
