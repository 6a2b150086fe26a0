"""What can be seen of a loaded model of transformers: where it is, what is wrong with its settings.

A missing pad token is set from the end-of-sequence token, and that is said. What of a model is kept
outside its GPU goes into the journal, for the ledger, and to the phases of this process.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from lightning_hangcheck.text.shown import bytes_in_words, several

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from torch import Tensor, device

    from lightning_hangcheck.recorder.lifecycle import Recorder

Model: TypeAlias = Any  # of transformers, which is not imported here
# a flag of sampling and the value at which it does nothing; from GenerationConfig.validate
_SAMPLING = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 50, "typical_p": 1.0, "min_p": None, "top_h": None,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
}  # fmt: skip
_BEAMS = {"early_stopping": False, "length_penalty": 1.0}
# of DeepSpeed's ZeRO-3, of torch's DTensor (FSDP2, tensor parallel), and of FSDP1
_SHARED_OUT = ("ds_id", "device_mesh", "_is_flat_param", "_fsdp_flattened")
offloaded_so_far: dict[str, None] = {}
"""What `tell_offloaded` told of this process, in that order."""


class GpuMemory(msgspec.Struct, frozen=True):
    """One GPU at one moment, in bytes: ``used`` by all, ``by_us`` by tensors of this process.

    ``reserved`` are those, and what torch keeps for further ones.
    """

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
    """Look at each GPU among these devices: asking another one makes a context there (300 MB)."""
    indices = sorted({place.index or 0 for place in devices if place.type == "cuda"})
    if not indices:
        return ()
    from torch import cuda

    def look(index: int) -> GpuMemory:
        free, total = cuda.mem_get_info(index)
        ours = cuda.memory_allocated(index), cuda.memory_reserved(index)
        return GpuMemory(index, total - free, total, *ours)

    return tuple(map(look, indices))


def in_one_line(memory: Sequence[GpuMemory]) -> str:
    """Say how full each GPU is, or that the model is on none."""
    return ", ".join(map(str, memory)) or "the model is on no GPU"


def clear_cache() -> str | None:
    """Free what torch keeps of the GPUs for tensors to come; say how much, None without a GPU."""
    from torch import cuda

    def reserved() -> int:
        return sum(map(cuda.memory_reserved, range(cuda.device_count())))

    if not cuda.is_initialized():
        return None
    before = reserved()
    cuda.empty_cache()
    freed, kept = bytes_in_words(before - reserved()), bytes_in_words(reserved())
    return f"cache of the GPU cleared: {freed} given back, {kept} reserved still"


def first_device(model: Model) -> device:
    """The device of the first parameter; the CPU for a model that has none."""
    import torch

    return next((one.device for one in model.parameters()), torch.device("cpu"))


def input_device(model: Model) -> device:
    """Where inputs go: to the first parameter's device, or the first of the map that has data."""
    import torch

    first = first_device(model)
    if first.type != "meta":
        return first
    places = device_map_of(model).values()
    return torch.device(next((place for place in places if place != "disk"), "cpu"))


def are_shared_out(tensors: Iterable[Tensor]) -> bool:
    """Whether each rank holds only a share of these, so that a step with them waits for others."""
    return any(hasattr(tensor, mark) for tensor in tensors for mark in _SHARED_OUT)


def without_data(model: Model) -> list[str]:
    """Names of parameters on the meta device that no offloading hook of accelerate will fill."""
    filled = []
    for name, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        if any(getattr(one, "offload", False) for one in getattr(hook, "hooks", (hook,))):
            filled.append(f"{name}." if name else "")
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.device.type == "meta" and not name.startswith(tuple(filled))
    ]


def device_map_of(model: Model) -> dict[str, Any]:
    """Where accelerate put each part; empty where it put none."""
    return getattr(model, "hf_device_map", None) or {}


def offloaded_places(model: Model) -> list[str]:
    """Which of ``cpu`` and ``disk`` hold parts of a model; the CPU only counts beside a GPU."""
    places = {str(place) for place in device_map_of(model).values()}
    slow = {"cpu", "disk"} if places - {"cpu", "disk"} else {"disk"}
    return sorted(places & slow)


def tell_offloaded(what: str, recorder: Recorder) -> None:
    """Note once that parts of a model are offloaded: which model, where to, by which setting."""
    if what not in offloaded_so_far:
        offloaded_so_far[what] = None
        recorder.note("offloaded", what=what)


def show_class_and_device(model: Model, recorder: Recorder) -> None:
    """Say in one line what was loaded and where it begins; note what of it is offloaded."""
    recorder.say(f"model: {type(model).__name__}, its first parameter on {first_device(model)}")
    places = offloaded_places(model)
    if places:
        parts = f"parts on {' and '.join(places)} (device map)"
        tell_offloaded(f"{type(model).__name__}, {parts}", recorder)


def look_at_model(model: Model, recorder: Recorder) -> None:
    """Say where the model is and what is wrong with it; give it the pad token that it lacks."""
    show_class_and_device(model, recorder)
    sizes: Counter[str] = Counter()
    for parameter in model.parameters():
        sizes[str(parameter.device)] += parameter.numel() * parameter.element_size()
    parts = [f"{name or 'all'}: {place}" for name, place in device_map_of(model).items()]
    recorder.say(f"device map: {_some(parts, 12) or 'none'}")
    held = ", ".join(f"{bytes_in_words(size)} on {where}" for where, size in sizes.items())
    recorder.say(f"parameters: {held}")
    recorder.say(in_one_line(gpu_memory(one.device for one in model.parameters())))
    pad_token_set = set_on_model(model)
    if pad_token_set:
        recorder.say(pad_token_set)
    names = without_data(model)
    if names:
        recorder.say(
            f"WARNING: {several(len(names), 'parameter')} still on the meta device without data "
            f"({_some(names, 3)}): using or moving them fails or never ends; "
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
    config = getattr(model, "generation_config", None)
    for doubt in doubtful_flags(config.to_diff_dict()) if config is not None else ():
        recorder.say(f"WARNING: generation_config.json: {doubt}")


def _some(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def doubtful_flags(flags: Mapping[str, Any], given: Container[str] | None = None) -> list[str]:
    """Name what is wrong with a set of generation flags, each with the way out."""
    samples, beams = flags.get("do_sample") is True, flags.get("num_beams") or 1

    def idle(known: Mapping[str, Any], way_out: str) -> list[str]:
        return [
            f"{name}={flags[name]} is ignored without {way_out}"
            for name, value in known.items()
            if flags.get(name) not in (None, value) and (given is None or name in given)
        ]

    found = []
    if not samples:
        found += idle(_SAMPLING, "do_sample=True; add that, or leave it out")
    elif flags.get("temperature") == 0:
        found.append("temperature=0 with do_sample=True is refused; write do_sample=False")
    if beams == 1:
        found += idle(_BEAMS, "num_beams > 1; leave it out")
    least, most = flags.get("min_new_tokens"), flags.get("max_new_tokens")
    if most is not None and flags.get("max_length") is not None:
        found.append("max_length is ignored beside max_new_tokens; leave one of them out")
    if least is not None and most is not None and least > most:
        found.append(f"min_new_tokens={least} is above max_new_tokens={most}; raise the latter")
    wanted = flags.get("num_return_sequences") or 1
    if wanted > beams and not (samples and beams == 1):
        found.append(
            f"num_return_sequences={wanted} is refused with num_beams={beams}; raise num_beams, "
            "or set do_sample=True and no beams"
        )
    return found


def set_on_tokenizer(tokenizer: Any) -> str | None:  # noqa: ANN401 - a guest's
    """Give a tokenizer its end-of-sequence token as pad token; say so, None if it has one."""
    if getattr(tokenizer, "pad_token", "unknown") is not None:
        return None
    if tokenizer.eos_token is None:
        return (
            "WARNING: there is neither a pad token nor an end-of-sequence token, so prompts cannot "
            "be batched; tokenizer.add_special_tokens({'pad_token': '<pad>'}), then "
            "model.resize_token_embeddings(len(tokenizer))"
        )
    tokenizer.pad_token = tokenizer.eos_token
    return (
        f"the tokenizer had no pad token; it is now its end-of-sequence token "
        f"{tokenizer.eos_token!r} (id {tokenizer.pad_token_id})"
    )


def set_on_model(model: Model) -> str | None:
    """Give a model's configs the end-of-sequence id as pad id; say so, None if they have one."""
    changed = {}
    for where in ("config", "generation_config"):
        config = getattr(model, where, None)
        end = getattr(config, "eos_token_id", None)
        end = end[0] if isinstance(end, (list, tuple)) and end else end
        if getattr(config, "pad_token_id", 0) is None and isinstance(end, int):
            config.pad_token_id = changed[where] = end  # type: ignore[union-attr]
    if not changed:
        return None
    end = next(iter(changed.values()))
    return f"no pad_token_id on {' and '.join(changed)}; it is now the end-of-sequence id {end}"
