"""A small generation right after loading, one step at a time: what stands still has a name."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.generation.generation_watch import TokenBeat, with_beat
from lightning_hangcheck.hooks.pretrained.gpu_memory import clear_cache
from lightning_hangcheck.hooks.pretrained.placement import (
    are_shared_out,
    first_device,
    input_device,
    without_data,
)
from lightning_hangcheck.recorder.sections import Section

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel

    from lightning_hangcheck.recorder.lifecycle import Recorder

PROMPT_TOKENS = 4
NEW_TOKENS = 4


def try_generation(model: PreTrainedModel, recorder: Recorder) -> None:
    """Generate four tokens without sampling, and say each step. Never raises.

    Random numbers are left as they were. A model that cannot generate, has parameters without data,
    or is shared out over the ranks is not tried.
    """
    if not _can_generate(model):
        return
    reason = attempt("the test generation", partial(_obstacle, model))
    if reason is not None:
        recorder.say(f"test generation: left out, because {reason}")
        return
    attempt("the test generation", partial(_generate, model, recorder))


def _obstacle(model: PreTrainedModel) -> str | None:
    """Why this model must not be tried: a step of a sharded one waits for other ranks."""
    if without_data(model):
        return "parameters have no data"
    if are_shared_out(model.parameters()):
        return "its parameters are shared out over the ranks"
    return None


def _generate(model: PreTrainedModel, recorder: Recorder) -> None:
    import torch

    say = partial(_say, recorder)
    start = _first_token(model)
    tokens = torch.full((1, PROMPT_TOKENS), start, dtype=torch.long)
    say(f"1 input: {PROMPT_TOKENS} tokens of id {start}")
    device = input_device(model)
    say(f"2 device of the first parameter: {first_device(model)}; inputs go to {device}")
    began = time.perf_counter()
    tokens = tokens.to(device)
    say(f"3 input moved ({time.perf_counter() - began:.3f}s)")
    gpus = [device.index or 0] if device.type == "cuda" else []
    with (
        Section(recorder, "test generation: 4 generate"),
        torch.no_grad(),
        torch.random.fork_rng(gpus),
    ):
        made = model.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            **with_beat({"generation_config": _plainest(model)}, TokenBeat(recorder.beat)),
        )
    say(f"5 output of shape {tuple(made.shape)}")
    say(f"6 {clear_cache() or 'no GPU is used, so there is no cache to clear'}")


def _say(recorder: Recorder, step: str) -> None:
    recorder.beat()
    recorder.say(f"test generation: {step}")


def _can_generate(model: PreTrainedModel) -> bool:
    ask = getattr(model, "can_generate", None)
    return bool(callable(ask) and ask())


def _first_token(model: PreTrainedModel) -> int:
    """The token of a beginning; another where it means padding, as transformers warns of that."""
    start, padding = (getattr(model.config, f"{kind}_token_id", None) for kind in ("bos", "pad"))
    if isinstance(start, int) and start != padding:
        return start
    return 1 if padding == 0 else 0


def _plainest(model: PreTrainedModel) -> GenerationConfig:
    """As many steps on every rank, greedily, whatever the model's own settings are."""
    from transformers import GenerationConfig

    own = model.generation_config
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id,
        decoder_start_token_id=own.decoder_start_token_id,
    )
