"""Known traps of ``from_pretrained``, seen in its arguments before it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.hooks.pretrained.loading.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# transformers ignores offload_state_dict from here on (its pull request 41103)
_IGNORES_OFFLOAD_STATE_DICT = (4, 57)
# in the name of every class of transformers whose models generate
_GENERATING = ("LM", "Generation", "generation")


class LoadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of ``from_pretrained`` for a model or a generation config, not made yet.

    Attributes:
        loader: The class, or the pipeline's task.
        named: Its keyword arguments.
        version: Of transformers, major and minor.
        world_size: Ranks that do the same; 1 if unknown.
    """

    loader: str
    source: Source
    named: dict[str, Any]
    version: tuple[int, int]
    world_size: int = 1


def traps(load: LoadRequest) -> list[str]:
    """Name each trap that this call walks into, and the way round it."""
    found = (look(load) for look in _LOOKS)
    return [sentence for sentence in found if sentence]


def _offload_state_dict(load: LoadRequest) -> str | None:
    if not load.named.get("offload_state_dict"):
        return None
    if load.version >= _IGNORES_OFFLOAD_STATE_DICT:
        return "offload_state_dict has no effect in this transformers; leave it out"
    return (
        "offload_state_dict=True writes all weights to a temporary folder and reads them back at "
        "the end: on slow storage loading seems never to end, and parameters can stay on the meta "
        "device; leave it out, and limit memory with max_memory={0: '20GiB', 'cpu': '60GiB'}"
    )


def _offload_folder(load: LoadRequest) -> str | None:
    device_map = load.named.get("device_map")
    if device_map is None or not (load.named.get("offload_folder") or _has_disk(device_map)):
        return None
    return (
        "with a device map and offload_folder, what does not fit goes to disk: its parameters stay "
        "on the meta device, each forward pass reads them again, and DDP, FSDP or model.to() fail "
        "on them or never end; leave offload_folder out, and load in 8 bits, on more GPUs, or with "
        "a max_memory map that holds the whole model"
    )


def _device_map_per_rank(load: LoadRequest) -> str | None:
    spreads = load.named.get("device_map") in ("auto", "balanced", "balanced_low_0", "sequential")
    if load.world_size == 1 or not spreads:
        return None
    return (
        f"device_map={load.named['device_map']!r} in each of {load.world_size} ranks spreads every "
        "rank's model over all GPUs of its node; give each rank its own: "
        "device_map={'': int(os.environ['LOCAL_RANK'])}"
    )


def _asks_the_hub(load: LoadRequest) -> str | None:
    if load.source.kind != "cache" or load.source.offline:
        return None
    return (
        "all is in the cache, yet from_pretrained asks the hub about it, and so does "
        "GenerationConfig.from_pretrained: a hub that does not answer holds both up; pass "
        "local_files_only=True to both, or set HF_HUB_OFFLINE=1 before Python starts"
    )


def _not_here(load: LoadRequest) -> str | None:
    if load.source.kind != "hub":
        return None
    way_out = "give the path of a folder that exists, or the full name of the hub (owner/model)"
    if load.source.offline:
        return (
            f"{load.source.name} is not here, and the hub may not be asked: this fails; {way_out}"
        )
    if load.source.name.startswith(("/", ".", "~")):
        return f"there is no folder {load.source.name}, so it is taken for a hub's name; {way_out}"
    return (
        "the download counts as progress by the bytes that arrive; to keep it out of training, "
        f"fetch it once with: hf download {load.source.name}"
    )


def _no_generation_config(load: LoadRequest) -> str | None:
    source = load.source
    if load.loader == "GenerationConfig":  # what the cache lacks, the hub may have
        concerned = source.kind == "folder" or (source.kind == "cache" and source.offline)
    else:
        generates = any(word in load.loader for word in _GENERATING)
        concerned = generates and bool(source.weight_files)
    if not concerned or source.has_generation_config:
        return None
    return (
        "it has no generation_config.json: GenerationConfig.from_pretrained fails for it, and asks "
        "the network first where the model is given by its hub name; use "
        "GenerationConfig.from_model_config(model.config)"
    )


def _has_disk(device_map: object) -> bool:
    places: Mapping[str, object] = device_map if isinstance(device_map, dict) else {}
    return "disk" in places.values()


_LOOKS: tuple[Callable[[LoadRequest], str | None], ...] = (
    _offload_state_dict,
    _offload_folder,
    _device_map_per_rank,
    _asks_the_hub,
    _not_here,
    _no_generation_config,
)
