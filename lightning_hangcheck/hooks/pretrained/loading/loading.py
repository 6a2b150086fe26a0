"""`load_pretrained`: from_pretrained with a view of what it does, and a look at what it loaded."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.generation_flags import (
    doubtful_flags,
    set_on_model,
    set_on_tokenizer,
)
from lightning_hangcheck.hooks.pretrained.gpu_memory import clear_cache
from lightning_hangcheck.hooks.pretrained.loading.trial_generation import try_generation
from lightning_hangcheck.hooks.pretrained.loading.watched_load import Load, watched_load
from lightning_hangcheck.hooks.pretrained.offloading import tell_offloaded_parts
from lightning_hangcheck.hooks.pretrained.placement import meta_warning, placement_lines
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    import os

    from transformers import PreTrainedModel
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    from lightning_hangcheck.recorder.lifecycle import Recorder

Loader = Any  # a class with from_pretrained: all of transformers is untyped here
Loaded = Any  # what it returns: a model, a tokenizer, or a model and a report
_WITHOUT_WEIGHTS = ("Tokenizer", "Processor", "Config", "FeatureExtractor")


def load_pretrained(
    name_or_path: str | os.PathLike[str],
    kind: type | str = "AutoModelForCausalLM",
    *,
    test_generation: bool = True,
    **named: object,
) -> Loaded:
    """Call ``kind.from_pretrained``, and say what it is about to do, how far it is, how it ended.

    Example:
        >>> tokenizer = load_pretrained("./llama", "AutoTokenizer")
        >>> model = load_pretrained("./llama", device_map="auto", dtype="bfloat16")

    Known traps in the arguments are named before, with the way round them; parameters without data,
    flags that contradict each other, the device map and the memory of each GPU after it. A missing
    pad token is set from the end-of-sequence token. A failure of any of this is said once and
    changes nothing; with ``HANGCHECK_DISABLE=1`` only the pad token is set.

    Args:
        name_or_path: A folder, or a name of the hub.
        kind: A class with ``from_pretrained``, or the name of one in transformers.
        test_generation: Generate four tokens with a model that can, step by step.
        **named: Of ``from_pretrained``.

    Returns:
        What ``from_pretrained`` returned.

    Raises:
        BadUsage: There is no such kind.
        Exception: Whatever ``from_pretrained`` raises, unchanged.
    """
    loader, recorder = _find_loader(kind), current()
    without_weights = any(word in loader.__name__ for word in _WITHOUT_WEIGHTS)
    load = Load(
        name=str(name_or_path),
        loader=loader.__name__,
        what="tokenizer" if without_weights else "model",
        named=dict(named),
    )
    loaded = watched_load(recorder, load, partial(loader.from_pretrained, name_or_path, **named))
    _look_after(loaded[0] if isinstance(loaded, tuple) else loaded, recorder, test_generation)
    return loaded


def look_at_model(model: PreTrainedModel, recorder: Recorder) -> None:
    """Say where the model is and what is wrong with it; give it the pad token that it lacks."""
    lines = [*placement_lines(model), set_on_model(model)]
    config = getattr(model, "generation_config", None)
    doubts = doubtful_flags(config.to_diff_dict()) if config is not None else []
    warnings = [meta_warning(model), *(f"generation_config.json: {doubt}" for doubt in doubts)]
    lines += [f"WARNING: {warning}" for warning in warnings if warning]
    for line in filter(None, lines):
        recorder.say(line)


def look_at_tokenizer(tokenizer: PreTrainedTokenizerBase, recorder: Recorder) -> None:
    """Give a tokenizer, or that of a processor, the pad token that it lacks."""
    line = set_on_tokenizer(getattr(tokenizer, "tokenizer", tokenizer))
    if line:
        recorder.say(line)


def _find_loader(kind: type | str) -> Loader:
    import transformers

    loader = getattr(transformers, kind, None) if isinstance(kind, str) else kind
    if not hasattr(loader, "from_pretrained"):
        raise BadUsage(
            f"kind={kind!r} has no from_pretrained",
            "write the name of a class of transformers, as 'AutoModelForCausalLM' or "
            "'AutoTokenizer', or give the class itself",
        )
    return loader


def _look_after(loaded: Loaded, recorder: Recorder, test_generation: bool) -> None:
    if not hasattr(loaded, "named_parameters"):
        attempt("a look at the tokenizer", partial(look_at_tokenizer, loaded, recorder))
        return
    attempt("a look at the model", partial(look_at_model, loaded, recorder))
    attempt("what is offloaded", partial(tell_offloaded_parts, loaded, recorder))
    if recorder.settings.disable:
        return
    cleared = attempt("clearing the cache of the GPU", clear_cache)
    if cleared:
        recorder.say(f"after loading: {cleared}")
    if test_generation:
        try_generation(loaded, recorder)
