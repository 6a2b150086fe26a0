"""What can be seen of a loaded transformers model: where it is, what is wrong with its settings.

Parts outside the GPU are noted in the journal, for the ledger, and passed to this process's phases.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from lightning_hangcheck.text.shown import bytes_in_words, several

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor, device

    from lightning_hangcheck.recorder.lifecycle import Recorder

Model: TypeAlias = Any  # of transformers, which is not imported here
# of DeepSpeed's ZeRO-3, of torch's DTensor (FSDP2, tensor parallel), and of FSDP1
SHARED_OUT = ("ds_id", "device_mesh", "_is_flat_param", "_fsdp_flattened")
offloaded_so_far: dict[str, None] = {}  # what `tell_offloaded` has noted in this process, in order


class GpuMemory(msgspec.Struct, frozen=True):
    """One GPU in bytes: ``used`` by all, ``by_us`` by our tensors, ``reserved`` with the cache."""

    index: int
    used: int
    total: int
    by_us: int
    reserved: int = 0

    def __str__(self) -> str:
        return (
            f"GPU {self.index}: {bytes_in_words(self.used)} of {bytes_in_words(self.total)} used "
            f"({self.used / self.total:.0%}), {bytes_in_words(self.by_us)} by this process, "
            f"{bytes_in_words(self.reserved)} reserved by it"
        )


def gpu_memory(devices: Iterable[device]) -> tuple[GpuMemory, ...]:
    """Look at each GPU among these devices; any other would get a CUDA context (300 MB)."""
    found = []
    for index in sorted({place.index or 0 for place in devices if place.type == "cuda"}):
        from torch import cuda

        free, total = cuda.mem_get_info(index)
        ours = cuda.memory_allocated(index), cuda.memory_reserved(index)
        found.append(GpuMemory(index, total - free, total, *ours))
    return tuple(found)


def in_one_line(memory: Sequence[GpuMemory]) -> str:
    """Say how full each GPU is, or that the model is on none."""
    return ", ".join(map(str, memory)) or "the model is on no GPU"


def devices_of(model: Model) -> list[device]:
    """Return the device of each parameter in order; the CPU if the model has no parameters."""
    import torch

    return [parameter.device for parameter in model.parameters()] or [torch.device("cpu")]


def input_device(model: Model) -> device:
    """Return where inputs go: the first parameter's device, or the map's first with data."""
    import torch

    first = devices_of(model)[0]
    places = (place for place in device_map_of(model).values() if place != "disk")
    return first if first.type != "meta" else torch.device(next(places, "cpu"))


def device_map_of(model: Model) -> dict[str, Any]:
    """Return where accelerate put each part; empty if it was not used."""
    return getattr(model, "hf_device_map", None) or {}


def offloaded_places(model: Model) -> list[str]:
    """Return which of ``cpu`` and ``disk`` hold parts; the CPU counts only beside a GPU."""
    places = {str(place) for place in device_map_of(model).values()}
    slow = {"cpu", "disk"} if places - {"cpu", "disk"} else {"disk"}
    return sorted(places & slow)


def tell_offloaded(what: str, recorder: Recorder) -> None:
    """Note once that parts of a model are offloaded: which model, where to, by which setting."""
    if what not in offloaded_so_far:
        offloaded_so_far[what] = None
        recorder.note("offloaded", what=what)


def are_shared_out(tensors: Iterable[Tensor]) -> bool:
    """Whether the tensors are sharded over ranks, so that a step with them waits for others."""
    return any(hasattr(tensor, mark) for tensor in tensors for mark in SHARED_OUT)


def look_at_model(model: Model, recorder: Recorder) -> None:
    """Say where a model is and what is wrong with it; note what is offloaded."""
    model = model[0] if isinstance(model, tuple) else model  # with output_loading_info=True
    if not hasattr(model, "named_parameters"):  # a tokenizer, a configuration
        return
    kind, devices, sizes = type(model).__name__, devices_of(model), Counter[str]()
    for parameter in model.parameters():
        sizes[str(parameter.device)] += parameter.numel() * parameter.element_size()
    held = ", ".join(f"{bytes_in_words(size)} on {where}" for where, size in sizes.items())
    parts = [f"{name or 'all'}: {place}" for name, place in device_map_of(model).items()]
    recorder.say(
        f"model: {kind}, its first parameter on {devices[0]}; parameters: {held}; "
        f"{in_one_line(gpu_memory(devices))}; device map: {', '.join(parts) or 'none'}"
    )
    places = offloaded_places(model)
    if places:
        tell_offloaded(f"{kind}, parts on {' and '.join(places)} (device map)", recorder)
    on_meta = [name for name, made in model.named_parameters() if made.device.type == "meta"]
    if on_meta:
        why = "without data, so using them fails: see whether the weight files hold these names"
        if any(hasattr(module, "_hf_hook") for module in model.modules()):  # accelerate's
            why = "offloaded, so each forward pass brings them again"
        recorder.say(
            f"WARNING: {several(len(on_meta), 'parameter')}, {bytes_in_words(sizes['meta'])}, on "
            f"the meta device ({', '.join(on_meta[:3])}...), {why}. Training, DDP, FSDP and "
            "model.to() fail on them or never end; load without offload_state_dict, offload_folder "
            "and torch.device('meta'), with a max_memory map that holds the whole model, or in 8 "
            "bits"
        )
    config = getattr(model, "generation_config", None)
    for doubt in doubtful_flags({} if config is None else config.to_diff_dict()):
        recorder.say(f"WARNING: generation_config.json: {doubt}")


def doubtful_flags(flags: Mapping[str, Any]) -> list[str]:
    """Return what transformers finds wrong with generation flags, a sentence each."""
    # Its older versions, whose ``validate`` has no ``strict``, only log it.
    from transformers import GenerationConfig

    config = GenerationConfig()
    vars(config).update({name: flags[name] for name in flags if name in vars(config)})
    try:
        config.validate(strict=True)
    except ValueError as error:
        lines = str(error).splitlines()
        return [line.removeprefix("- ") for line in lines if line.startswith("- ")] or lines[:1]
    return []


def give_pad_token(guest: Any, recorder: Recorder) -> None:  # noqa: ANN401 - a guest's
    """Use the end-of-sequence token as the missing pad token of a model, tokenizer or processor."""
    for where in ("config", "generation_config"):
        settings: Any = getattr(guest, where, None)
        end = getattr(settings, "eos_token_id", None)
        end = end[0] if isinstance(end, (list, tuple)) and end else end
        if getattr(settings, "pad_token_id", 0) is None and isinstance(end, int):
            settings.pad_token_id = end
            recorder.say(f"no pad_token_id on {where}; it is now the end-of-sequence id {end}")
    tokenizer = getattr(guest, "tokenizer", guest)
    end = getattr(tokenizer, "eos_token", None)
    if end is not None and tokenizer.pad_token is None:
        tokenizer.pad_token = end
        now = f"its end-of-sequence token {end!r} (id {tokenizer.pad_token_id})"
        recorder.say(f"the tokenizer had no pad token; it is now {now}")


def sign_of_life(recorder: Recorder) -> None:
    """Show that the rank is alive; not a beat, which would count as the script's own pace."""
    if recorder.in_training_thread():
        recorder.page.show_phase(recorder.page.phase)
