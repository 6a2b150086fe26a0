"""Plans a model's memory before anything is loaded, for `hangcheck plan`."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.config import (
    CONFIG_NAME,
    ENCODERS,
    Dtype,
    find_config,
    read_config,
    read_fields,
    stored_dtype,
)
from lightning_hangcheck.planning.plan import Extra, Machine, Model, Piece, Plan, PlannedPhase, Use
from lightning_hangcheck.planning.planner import make_plan
from lightning_hangcheck.recorder.announcer import describe_exception
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator
TIME_LIMIT_S = 15.0
CONTEXT = 4096  # tokens, if the model was made for so many
_HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")


def fetch_config(name: str, time_limit_s: float = TIME_LIMIT_S) -> Path:
    """Return the path of a hub model's config.json, from the local cache if it is there."""
    if not _HUB_NAME.fullmatch(name):
        raise BadUsage(f"there is no folder or file {name}", "name a folder that holds config.json")

    def download() -> Path:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, "config.json"))

    cause: Exception
    try:
        # huggingface_hub logs each attempt; one sentence at the end is enough
        with _quiet():
            return within(time_limit_s, download)
    except ImportError as error:
        reason, cause = "huggingface_hub is not installed", error
    except NoAnswer as error:
        reason, cause = f"the hub did not answer within {time_limit_s:g} s", error
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:120]
        reason, cause = f"{type(error).__name__}: {said}", error
    raise BadUsage(
        f"{name} is no folder here, and its config.json cannot be had from the hub ({reason})",
        f"where there is network: hf download {name} config.json --local-dir DIR, "
        "then: hangcheck plan DIR",
    ) from cause


# classes of torch and transformers are untyped if these are not installed
Module: TypeAlias = Any


def count_weights(config: Path) -> tuple[tuple[Piece, ...], str]:
    """Count the weights of the model's own class, built without data; shared weights count once.

    Returns:
        As in `Model`: the pieces, and on what they were counted.
    """
    import transformers
    from accelerate import init_empty_weights
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    place = str(config.parent if config.name == CONFIG_NAME else config)
    known = transformers.AutoConfig.from_pretrained(  # runs no code of the model, and does not ask
        place, local_files_only=True, trust_remote_code=False
    )
    named = getattr(transformers, next(iter(known.architectures or ()), ""), None)
    kind = transformers.AutoModel
    if named is None and known.model_type not in ENCODERS:  # no architecture is named
        if type(known) in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
            kind = transformers.AutoModelForSeq2SeqLM
        if type(known) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            kind = transformers.AutoModelForCausalLM
    # buffers too: GPT-J keeps a mask of positions x positions
    with init_empty_weights(include_buffers=True):
        module: Module = (
            named(known) if named is not None else kind.from_config(known, trust_remote_code=False)
        )
    module.tie_weights()
    # bitsandbytes replaces exactly these classes, not the head
    head, modules = module.get_output_embeddings(), dict(module.named_modules())
    linear = {
        f"{name}.weight"
        for name, child in modules.items()
        if child is not head and (type(child) is nn.Linear or isinstance(child, Conv1D))
    }
    blocks = _blocks(module)
    counts = {name: [0, 0] for name in ("before", *blocks, "after")}
    outside = "before"
    for name, parameter in module.named_parameters():
        block = next((block for block in blocks if name.startswith(f"{block}.")), None)
        outside = "after" if block else outside
        count = counts[block or outside]
        count[0] += parameter.numel()
        count[1] += parameter.numel() if name in linear else 0
    by = f"{type(module).__name__} of transformers {version('transformers')}"
    return tuple(Piece(*count) for count in counts.values()), f"{by}, built without loading weights"


def _blocks(module: Module) -> list[str]:
    """Return modules that are never split; if the model names none, the items of its list."""
    whole = set(module._no_split_modules or ())  # noqa: SLF001 - what from_pretrained goes by
    items = [
        (name, type(child).__name__)
        for name, child in module.named_modules()
        if name.rpartition(".")[2].isdigit()
    ]
    found = [name for name, kind in items if kind in whole] or [name for name, _ in items]
    return [name for name in found if not any(name.startswith(f"{block}.") for block in found)]


def plan_memory(
    model: str,
    machine: Machine,
    *,
    dtype: Dtype | None = None,
    context: int | None = None,
    batch: int = 1,
    extras: tuple[Extra, ...] = (),
    phases: tuple[PlannedPhase, ...] = (),
) -> Plan:
    """Say whether a model fits, where its parts go, how fast it will be, and what would help.

    Weights are counted on the model's own class without data. Only config.json is downloaded, and
    only for a hub name. `BadUsage` if it cannot be found, read or understood, or if transformers or
    accelerate are not installed.

    Args:
        model: A model's folder, its config.json, or its hub name.
        machine: GPUs and main memory.
        dtype: Number format of the weights; None for the stored format.
        context: Tokens of prompt and answer; None for 4,096, or the model's maximum if less.
        batch: Sequences at a time.
        extras: Modules kept beside the model.
        phases: Phases with another context, batch or extras.
    """
    path = find_config(model) or fetch_config(model)
    config = read_config(path)
    fields, assumed = read_fields(config), []
    if dtype is None:
        dtype, why = stored_dtype(config)
        assumed.append(f"weights in {dtype}: {why}")
    if context is None:
        context = min(CONTEXT, fields.positions or CONTEXT)
        assumed.append(f"a context of {context} tokens, unless --context says another")
    try:
        with _quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pieces, source = count_weights(path)
    except ImportError as error:
        raise BadUsage(
            f"a plan counts weights with accelerate and transformers ({error})",
            "pip install 'lightning-hangcheck[plan]'",
        ) from error
    except Exception as error:  # models raise anything on configurations they don't know
        remedy = "install a version that knows its model_type, or correct its config.json"
        if "auto_map" in config:
            remedy = "no code of a model runs for a plan: plan one of its sizes that is known"
        raise BadUsage(
            f"transformers {version('transformers')} cannot build {model} "
            f"({describe_exception(error, 200)})",
            remedy,
        ) from error
    use = Use(dtype=dtype, context=context, batch=batch, extras=extras)
    return make_plan(Model(model, fields, pieces, source), machine, use, assumed, phases)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress log messages, such as that the GPUs planned for are not in this machine."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
