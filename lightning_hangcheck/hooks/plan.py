"""Plans a model's memory before anything is loaded; what `hangcheck plan` calls."""

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
    FAMILIES,
    Piece,
    Weights,
    compute_bytes,
    count_weights,
    find_config,
    read_config,
    read_fields,
)
from lightning_hangcheck.planning.placing import QUANTIZING_SHARE, Placement, place
from lightning_hangcheck.planning.plan import settle_use
from lightning_hangcheck.planning.planner import Model, make_plan
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.planning.config import Dtype
    from lightning_hangcheck.planning.placing import Sizes
    from lightning_hangcheck.planning.plan import Extra, Machine, Plan, PlannedPhase


TIME_LIMIT_S = 15.0
_HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")
_REASONS = {
    "GatedRepoError": "its owner must grant you access first",
    "RepositoryNotFoundError": "the hub has no such model, or it is private",
    "LocalEntryNotFoundError": "there is no network, and it is not in the local cache",
    "OfflineModeIsEnabled": "offline mode is on, and it is not in the local cache",
}


def fetch_config(name: str, time_limit_s: float = TIME_LIMIT_S) -> Path:
    """Return the path of a hub model's config.json, from the local cache where it is there."""
    if not _HUB_NAME.fullmatch(name):
        raise BadUsage(f"there is no folder or file {name}", "name a folder that holds config.json")

    def download() -> Path:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, "config.json"))

    cause: Exception
    try:
        # the hub's library announces each of its attempts; one sentence at the end says it all
        with _quiet("huggingface_hub"):
            return within(time_limit_s, download)
    except ImportError as error:
        reason, cause = "huggingface_hub is not installed", error
    except NoAnswer as error:
        reason, cause = f"the hub did not answer within {time_limit_s:g} s", error
    except (OSError, ValueError) as error:
        kind, said = type(error).__name__, " ".join(str(error).split())[:120]
        reason, cause = _REASONS.get(kind, f"{kind}: {said}"), error
    raise BadUsage(
        f"{name} is no folder here, and its config.json cannot be had from the hub ({reason})",
        f"where there is network: hf download {name} config.json --local-dir DIR, "
        "then: hangcheck plan DIR",
    ) from cause


# classes of torch and transformers are untyped where these are not installed
Module: TypeAlias = Any
Device: TypeAlias = "int | str"


class MetaModel:
    """A model whose weights have shapes and no data, so that it takes no memory."""

    def __init__(self, config: Path) -> None:
        self._module = _build(config)
        self._blocks = _blocks(self._module)

    def weights(self) -> Weights:
        """Count the weights; a weight that two modules share counts once."""
        linear = _linear_weights(self._module)
        pieces = {name: [0, 0] for name in ("before", *self._blocks, "after")}
        seen_block = False
        for name, parameter in self._module.named_parameters():
            block = next((one for one in self._blocks if name.startswith(one + ".")), None)
            seen_block = seen_block or block is not None
            piece = pieces[block or ("after" if seen_block else "before")]
            piece[0] += parameter.numel()
            piece[1] += parameter.numel() if name in linear else 0
        found = [Piece(*piece) for piece in pieces.values()]
        return Weights(
            before=found[0],
            blocks=tuple(found[1:-1]),
            after=found[-1],
            sureness="counted",
            source=f"{type(self._module).__name__} of transformers {version('transformers')}, "
            "built without loading weights",
        )

    def place(self, sizes: Sizes, limits: tuple[int, ...], dtype: Dtype) -> Placement:
        """Ask accelerate where it would place the weights, as from_pretrained does."""
        from accelerate import infer_auto_device_map
        from accelerate.utils import get_balanced_memory

        names = [*range(len(limits) - 1), "cpu"]
        options = {
            "no_split_module_classes": list(self._module._no_split_modules or ()),  # noqa: SLF001 - what from_pretrained passes
            **_formats(self._module, dtype),
        }
        balanced = get_balanced_memory(
            self._module, max_memory=dict(zip(names, limits, strict=True)), **options
        )
        share = QUANTIZING_SHARE if sizes.quantized else 1
        room = {name: int(balanced[name] * share) for name in names}
        devices = infer_auto_device_map(self._module, max_memory=room, **options)

        def device_of(name: str) -> Device:
            """That of the nearest module around it; "" is the whole model."""
            while name and name not in devices:
                name = name.rpartition(".")[0]
            found: Device = devices[name]
            return found

        linear = _linear_weights(self._module)
        layers: dict[Device, int] = dict.fromkeys([*names, "disk"], 0)
        weights = dict(layers)
        for block in self._blocks:
            layers[device_of(block)] += 1
        for name, parameter in self._module.named_parameters():
            piece = Piece(parameter.numel(), parameter.numel() if name in linear else 0)
            weights[device_of(name)] += piece.bytes_in(dtype)
        by = f"accelerate {version('accelerate')}"
        return Placement(tuple(layers.values()), tuple(weights.values()), by)


def _build(config: Path) -> Module:
    import transformers
    from accelerate import init_empty_weights

    known = transformers.AutoConfig.from_pretrained(
        str(config.parent if config.name == "config.json" else config), local_files_only=True
    )
    named = getattr(transformers, next(iter(known.architectures or ()), ""), None)
    # buffers too: GPT-J keeps a mask of positions x positions
    with init_empty_weights(include_buffers=True):
        module = named(known) if named is not None else _kind(known).from_config(known)
    module.tie_weights()
    return module


def _kind(config: Module) -> Module:
    """The automatic class for a configuration that names no architecture."""
    import transformers

    family = FAMILIES.get(config.model_type)
    if family is not None and not family.head:
        return transformers.AutoModel
    for kind, known in (
        (transformers.AutoModelForCausalLM, transformers.MODEL_FOR_CAUSAL_LM_MAPPING),
        (transformers.AutoModelForSeq2SeqLM, transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING),
    ):
        if type(config) in known:
            return kind
    return transformers.AutoModel


def _blocks(module: Module) -> list[str]:
    """Names of the modules that are never split; of a model that names none, its list's items."""
    whole = set(module._no_split_modules or ())  # noqa: SLF001 - what from_pretrained goes by
    items = [
        (name, type(one).__name__)
        for name, one in module.named_modules()
        if name.rpartition(".")[2].isdigit()
    ]
    found = [name for name, kind in items if kind in whole] or [name for name, _ in items]
    return [name for name in found if not any(name.startswith(f"{one}.") for one in found)]


def _linear_weights(module: Module) -> set[str]:
    """Names of the weights that bitsandbytes replaces: of exactly these classes, not the head."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head = module.get_output_embeddings()
    return {
        f"{name}.weight"
        for name, one in module.named_modules()
        if one is not head and (type(one) is nn.Linear or isinstance(one, Conv1D))
    }


def _formats(module: Module, dtype: Dtype) -> dict[str, Any]:
    """The number formats as accelerate wants them."""
    import torch
    from accelerate.utils import CustomDtype

    if dtype not in ("int8", "int4"):
        return {"dtype": getattr(torch, dtype)}
    small = torch.int8 if dtype == "int8" else CustomDtype.INT4
    return {
        "dtype": torch.float16 if compute_bytes(dtype) == 2 else torch.float32,
        "special_dtypes": dict.fromkeys(_linear_weights(module), small),
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

    Weights are counted and placed by transformers and accelerate on the model without its data
    where both are installed and know it, else by formulas. Nothing is downloaded but config.json,
    and that only for a hub name.

    Args:
        model: A model's folder, its config.json, or its name on the hub.
        machine: GPUs and main memory.
        dtype: Number format of the weights; None for the one they are stored in.
        context: Tokens of prompt and answer; None for 4,096, or as many as the model takes.
        batch: Sequences at a time.
        extras: Modules kept beside it.
        phases: In which context, batch or extras differ.

    Raises:
        BadUsage: The configuration cannot be had, read or understood.
    """
    path = find_config(model) or fetch_config(model)
    config = read_config(path)
    fields = read_fields(config)
    use, assumed = settle_use(config, fields, dtype, context, batch, extras)
    with _quiet("transformers", "accelerate"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            meta = MetaModel(path)
        except Exception as error:  # noqa: BLE001 - models raise anything on configurations they don't know; formulas still hold
            why = f"transformers cannot build it ({type(error).__name__})"
            if isinstance(error, ImportError):
                why = f"{error.name or error} is not installed"
            known = Model(model, fields, count_weights(fields))
            notes = (*assumed, f"weights by formula: {why}")
            return make_plan(known, machine, use, place, notes, phases)

        def placing(sizes: Sizes, limits: tuple[int, ...]) -> Placement:
            return meta.place(sizes, limits, use.dtype)

        known = Model(model, fields, meta.weights())
        return make_plan(known, machine, use, placing, assumed, phases)


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Keep to ourselves that the GPUs planned for are not in this machine, and the like."""
    loud = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loud]
    try:
        for logger in loud:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loud, levels, strict=True):
            logger.setLevel(level)
