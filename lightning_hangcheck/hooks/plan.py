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
    Dtype,
    Piece,
    Weights,
    count_weights,
    find_config,
    read_config,
    read_fields,
)
from lightning_hangcheck.planning.plan import Extra, Machine, Plan, PlannedPhase, settle_use
from lightning_hangcheck.planning.planner import ENCODERS, Model, make_plan
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator


TIME_LIMIT_S = 15.0
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


def counted_weights(config: Path) -> Weights:
    """Count the weights of the model's own class, built without data; shared weights count once."""
    module = _build(config)
    blocks, linear = _blocks(module), _linear_weights(module)
    pieces = {name: [0, 0] for name in ("before", *blocks, "after")}
    seen_block = False
    for name, parameter in module.named_parameters():
        block = next((block for block in blocks if name.startswith(block + ".")), None)
        seen_block = seen_block or block is not None
        piece = pieces[block or ("after" if seen_block else "before")]
        piece[0] += parameter.numel()
        piece[1] += parameter.numel() if name in linear else 0
    return Weights(
        pieces=tuple(Piece(*piece) for piece in pieces.values()),
        sureness="counted",
        source=f"{type(module).__name__} of transformers {version('transformers')}, "
        "built without loading weights",
    )


def _build(config: Path) -> Module:
    import transformers
    from accelerate import init_empty_weights

    known = transformers.AutoConfig.from_pretrained(
        str(config.parent if config.name == "config.json" else config), local_files_only=True
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
        module = named(known) if named is not None else kind.from_config(known)
    module.tie_weights()
    return module


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


def _linear_weights(module: Module) -> set[str]:
    """Return the weights that bitsandbytes replaces: exactly these classes, not the head."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head = module.get_output_embeddings()
    return {
        f"{name}.weight"
        for name, child in module.named_modules()
        if child is not head and (type(child) is nn.Linear or isinstance(child, Conv1D))
    }


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

    Weights are counted on the model's own class without data, if transformers and accelerate are
    installed and know the class, else by formulas. Only config.json is downloaded, and only for a
    hub name. `BadUsage` if it cannot be found, read or understood.

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
    fields = read_fields(config)
    use, assumed = settle_use(config, fields, dtype, context, batch, extras)
    with _quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            weights = counted_weights(path)
        except Exception as error:  # noqa: BLE001 - models raise anything on configurations they don't know; formulas still hold
            why = f"transformers cannot build it ({type(error).__name__})"
            if isinstance(error, ImportError):
                why = f"{error.name or error} is not installed"
            weights = count_weights(fields)
            assumed = (*assumed, f"weights by formula: {why}")
    return make_plan(Model(model, fields, weights), machine, use, assumed, phases)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress log messages, such as that the GPUs planned for are not in this machine."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
