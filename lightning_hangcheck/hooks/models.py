"""What can be seen of a loaded transformers model: where it is, what is wrong with its settings.

Parts outside the GPU are noted in the journal, for the ledger, and passed to this process's phases.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from lightning_hangcheck.recorder.announcer import attempt
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
    places = [place for place in device_map_of(model).values() if place != "disk"]
    return first if first.type != "meta" else torch.device(places[0] if places else "cpu")


def are_shared_out(tensors: Iterable[Tensor]) -> bool:
    """Whether the tensors are sharded over ranks, so that a step with them waits for others."""
    return any(hasattr(tensor, mark) for tensor in tensors for mark in SHARED_OUT)


def without_data(model: Model) -> list[str]:
    """Return parameters on the meta device that no accelerate offloading hook will fill."""
    filled = []
    for name, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        if any(getattr(part, "offload", False) for part in getattr(hook, "hooks", (hook,))):
            filled.append(f"{name}." if name else "")
    parameters = model.named_parameters()
    bare = [name for name, parameter in parameters if parameter.device.type == "meta"]
    return [name for name in bare if not name.startswith(tuple(filled))]


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


def show_class_and_device(model: Model, recorder: Recorder) -> None:
    """Say what was loaded and its first parameter's device; note what is offloaded."""
    recorder.say(f"model: {type(model).__name__}, its first parameter on {devices_of(model)[0]}")
    places = offloaded_places(model)
    if places:
        parts = f"parts on {' and '.join(places)} (device map)"
        tell_offloaded(f"{type(model).__name__}, {parts}", recorder)


def look_at_model(model: Model, recorder: Recorder) -> None:
    """Say where the model is and what is wrong with it; set its pad token id if it has none."""

    def some(names: Sequence[str], most: int) -> str:
        more = f" and {len(names) - most} more" if len(names) > most else ""
        return f"{', '.join(names[:most])}{more}"

    show_class_and_device(model, recorder)
    sizes: Counter[str] = Counter()
    for parameter in model.parameters():
        sizes[str(parameter.device)] += parameter.numel() * parameter.element_size()
    parts = [f"{name or 'all'}: {place}" for name, place in device_map_of(model).items()]
    recorder.say(f"device map: {some(parts, 12) or 'none'}")
    held = ", ".join(f"{bytes_in_words(size)} on {where}" for where, size in sizes.items())
    recorder.say(f"parameters: {held}")
    recorder.say(in_one_line(gpu_memory(devices_of(model))))
    for where in ("config", "generation_config"):
        settings: Any = getattr(model, where, None)
        end = getattr(settings, "eos_token_id", None)
        end = end[0] if isinstance(end, (list, tuple)) and end else end
        if getattr(settings, "pad_token_id", 0) is None and isinstance(end, int):
            settings.pad_token_id = end
            recorder.say(f"no pad_token_id on {where}; it is now the end-of-sequence id {end}")
    names, config = without_data(model), getattr(model, "generation_config", None)
    flags = {} if config is None else config.to_diff_dict()
    for doubt in attempt("a look at generation flags", doubtful_flags, flags) or ():
        recorder.say(f"WARNING: generation_config.json: {doubt}")
    if names:
        recorder.say(
            f"WARNING: {several(len(names), 'parameter')} still on the meta device without data "
            f"({some(names, 3)}): using or moving them fails or never ends; "
            "load without offload_state_dict, offload_folder and torch.device('meta'), and see "
            "whether the weight files hold these names"
        )
    elif sizes["meta"]:
        recorder.say(
            f"WARNING: {bytes_in_words(sizes['meta'])} of parameters are offloaded and shown on "
            "the meta device: each forward pass brings them again, and training, DDP, FSDP or "
            "model.to() fail on them; give a max_memory map that holds the whole model, or load "
            "in 8 bits"
        )


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


def give_pad_token(tokenizer: Any, recorder: Recorder) -> None:  # noqa: ANN401 - a guest's
    """Use the end-of-sequence token as a tokenizer's, or processor's, missing pad token."""
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    if getattr(tokenizer, "pad_token", "unknown") is not None:
        return
    if tokenizer.eos_token is None:
        recorder.say(
            "WARNING: there is neither a pad token nor an end-of-sequence token, so prompts cannot "
            "be batched; tokenizer.add_special_tokens({'pad_token': '<pad>'}), then "
            "model.resize_token_embeddings(len(tokenizer))"
        )
        return
    tokenizer.pad_token = tokenizer.eos_token
    is_now = f"{tokenizer.eos_token!r} (id {tokenizer.pad_token_id})"
    recorder.say(f"the tokenizer had no pad token; it is now its end-of-sequence token {is_now}")


def sign_of_life(recorder: Recorder) -> None:
    """Show that the rank is alive; not a beat, which would count as the script's own pace."""
    if recorder.in_training_thread():
        recorder.page.show_phase(recorder.page.phase)
