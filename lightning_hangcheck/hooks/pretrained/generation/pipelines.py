"""`pipeline`: transformers' own, loaded and generating with a view of what it does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.generation.generating import WARN_AFTER
from lightning_hangcheck.hooks.pretrained.generation.token_limits import Limits, limits_of
from lightning_hangcheck.hooks.pretrained.loading.loading import look_at_model, look_at_tokenizer
from lightning_hangcheck.hooks.pretrained.loading.watched_load import Load, watched_load
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from transformers import Pipeline, PreTrainedModel

TASK = "text-generation"


def pipeline(
    task: str = TASK,
    model: str | PreTrainedModel | None = None,
    *,
    debug: bool | Limits = False,
    warn_after_s: float = WARN_AFTER,
    **named: Any,  # noqa: ANN401 - they are transformers' own, of any type
) -> Pipeline:
    """Call ``transformers.pipeline``, and watch how the pipeline loads and generates.

    Example:
        >>> write = pipeline("text-generation", "./llama", device_map="auto")
        >>> write("Once upon a time", max_new_tokens=100)
        >>> write.last_report.tokens_per_second

    A text-generation pipeline is an instance of transformers' own class, and returns what that
    returns. One for another task, or of a class of your own, is watched only while it loads.

    Args:
        task: Of ``transformers.pipeline``.
        model: A folder, a name of the hub, or a model.
        debug: As in `generate`.
        warn_after_s: Seconds after which a generation that still runs is spoken of.
        **named: Of ``transformers.pipeline``.

    Raises:
        Exception: Whatever ``transformers.pipeline`` raises, unchanged.
    """
    import transformers

    recorder = current()
    is_ours = task == TASK and named.get("pipeline_class") is None
    if is_ours:
        from lightning_hangcheck.hooks.pretrained.generation.watched_pipeline import (
            WatchedTextGeneration,
        )

        named["pipeline_class"] = WatchedTextGeneration
    make = partial(transformers.pipeline, task, model, **named)
    if not isinstance(model, str):
        made = make()
    else:
        arguments = {**named, **(named.get("model_kwargs") or {})}
        load = Load(name=model, loader=f"{task} pipeline", what="model", named=arguments)
        made = watched_load(recorder, load, make)
        attempt("a look at the model", partial(look_at_model, made.model, recorder))
        if made.tokenizer is not None:
            attempt("a look at the tokenizer", partial(look_at_tokenizer, made.tokenizer, recorder))
    if is_ours:
        made.limits, made.warn_after_s = limits_of(debug), warn_after_s
    return made
