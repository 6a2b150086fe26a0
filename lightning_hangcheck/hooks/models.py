"""What a model's own settings do to ``generate``: contradicting flags, and a missing pad token.

Flags that contradict each other are ignored, or make ``generate`` raise. The pad token is set from
the end-of-sequence token, and that is said.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.text.amounts import bytes_in_words, several

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from torch import Tensor, device
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    from lightning_hangcheck.recorder.lifecycle import Recorder


class GpuMemory(msgspec.Struct, frozen=True):
    """One GPU at one moment, in bytes.

    Attributes:
        used: By all processes.
        by_us: By tensors of this process.
        reserved: By torch for this process: its tensors, and what it keeps for further ones.
    """

    index: int
    used: int
    total: int
    by_us: int
    reserved: int = 0

    @property
    def share(self) -> float:
        """How much of it is used, 0 to 1."""
        return self.used / self.total


def gpu_memory(model: PreTrainedModel) -> tuple[GpuMemory, ...]:
    """Look at each GPU that holds a parameter of the model.

    No other GPU is asked: asking makes a context there, which takes some hundred megabytes.
    """
    return memory_of(parameter.device for parameter in model.parameters())


def memory_of(devices: Iterable[device]) -> tuple[GpuMemory, ...]:
    """Look at each GPU among these devices, once."""
    indices = {place.index or 0 for place in devices if place.type == "cuda"}
    return tuple(_look(index) for index in sorted(indices))


def _look(index: int) -> GpuMemory:
    from torch import cuda

    free, total = cuda.mem_get_info(index)
    ours, reserved = cuda.memory_allocated(index), cuda.memory_reserved(index)
    return GpuMemory(index, total - free, total, ours, reserved)


def in_one_line(memory: tuple[GpuMemory, ...]) -> str:
    """Say how full each GPU is, or that the model is on none."""
    if not memory:
        return "the model is on no GPU"
    return ", ".join(
        f"GPU {gpu.index}: {bytes_in_words(gpu.used)} of {bytes_in_words(gpu.total)} used "
        f"({gpu.share:.0%}), {bytes_in_words(gpu.by_us)} by this process, "
        f"{bytes_in_words(gpu.reserved)} reserved by it"
        for gpu in memory
    )


def clear_cache() -> str | None:
    """Give back what torch keeps of the GPUs for tensors to come.

    Returns:
        How much that was, in words; None if this process uses no GPU.
    """
    from torch import cuda

    if not cuda.is_initialized():
        return None
    before = _reserved()
    cuda.empty_cache()
    after = _reserved()
    freed = bytes_in_words(before - after)
    return f"cache of the GPU cleared: {freed} given back, {bytes_in_words(after)} reserved still"


def _reserved() -> int:
    from torch import cuda

    return sum(cuda.memory_reserved(index) for index in range(cuda.device_count()))


SHOWN_PLACES = 12  # entries of a device map in one line
SHOWN_NAMES = 3


def placement_lines(model: PreTrainedModel) -> list[str]:
    """Class and device, device map, bytes on each device, memory of each GPU with a part of it."""
    lines = [class_and_device(model), f"device map: {_device_map(model)}"]
    tally = bytes_by_device(model)
    lines.append(
        "parameters: " + ", ".join(f"{bytes_in_words(n)} on {d}" for d, n in tally.items())
    )
    lines.append(in_one_line(gpu_memory(model)))
    return lines


def class_and_device(model: PreTrainedModel) -> str:
    """Say in one line what was loaded and where it begins."""
    return f"model: {type(model).__name__}, its first parameter on {first_device(model)}"


def bytes_by_device(model: PreTrainedModel) -> Counter[str]:
    """Bytes of parameters on each device, as ``cuda:0``; those on ``meta`` have no data."""
    tally: Counter[str] = Counter()
    for parameter in model.parameters():
        tally[str(parameter.device)] += parameter.numel() * parameter.element_size()
    return tally


def offloaded_places(model: PreTrainedModel) -> tuple[str, ...]:
    """Which of ``cpu`` and ``disk`` hold parts of a model that a device map put elsewhere.

    The CPU is an offload only beside a GPU.
    """
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    slow = {"cpu", "disk"} if places - {"cpu", "disk"} else {"disk"}
    return tuple(sorted(places & slow))


def first_device(model: PreTrainedModel) -> device:
    """The device of the first parameter; the CPU for a model that has none."""
    import torch

    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def input_device(model: PreTrainedModel) -> device:
    """Where inputs go: to the first parameter's device, or the first of the map that has data."""
    import torch

    first = first_device(model)
    if first.type != "meta":
        return first
    places = (getattr(model, "hf_device_map", None) or {}).values()
    return torch.device(next((place for place in places if place != "disk"), "cpu"))


def without_data(model: PreTrainedModel) -> list[str]:
    """Names of parameters on the meta device that no offloading hook will ever fill."""
    filled = tuple(_offloaded(model))
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.device.type == "meta" and not name.startswith(filled)
    ]


def are_shared_out(tensors: Iterable[Tensor]) -> bool:
    """Whether each rank holds only a share of these, so that a step with them waits for others."""
    # of DeepSpeed's ZeRO-3, of torch's DTensor (FSDP2, tensor parallel), and of FSDP1
    marks = ("ds_id", "device_mesh", "_is_flat_param", "_fsdp_flattened")
    return any(hasattr(tensor, mark) for tensor in tensors for mark in marks)


def meta_warning(model: PreTrainedModel) -> str | None:
    """Say what is on the meta device and what to do about it; None if nothing is."""
    names = without_data(model)
    if names:
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        return (
            f"{several(len(names), 'parameter')} still on the meta device without data "
            f"({', '.join(names[:SHOWN_NAMES])}{more}): using or moving them fails or never ends; "
            "load without offload_state_dict, offload_folder and torch.device('meta'), and see "
            "whether the weight files hold these names"
        )
    offloaded = bytes_by_device(model)["meta"]
    if offloaded:
        return (
            f"{bytes_in_words(offloaded)} of parameters are offloaded and shown on the meta device"
            ": each forward pass brings them again, and training, DDP, FSDP or model.to() fail on "
            "them; give a max_memory map that holds the whole model, or load in 8 bits"
        )
    return None


def _offloaded(model: PreTrainedModel) -> Iterator[str]:
    """Prefixes of parameter names whose data accelerate's hooks bring when they are needed."""
    for name, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        if any(getattr(one, "offload", False) for one in getattr(hook, "hooks", (hook,))):
            yield f"{name}." if name else ""


def _device_map(model: PreTrainedModel) -> str:
    places = getattr(model, "hf_device_map", None)
    if not places:
        return "none"
    shown = [f"{name or 'all'}: {place}" for name, place in list(places.items())[:SHOWN_PLACES]]
    rest = len(places) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


_told: dict[str, None] = {}


def tell_offloaded(what: str, recorder: Recorder) -> None:
    """Note once that parts of a model are offloaded.

    Args:
        what: The model, where to, and by which setting, in few words.
        recorder: Of this process.
    """
    if what not in _told:
        _told[what] = None
        recorder.note("offloaded", what=what)


def tell_offloaded_parts(model: PreTrainedModel, recorder: Recorder) -> None:
    """Note it of a model whose device map put parts beside the GPU; of any other nothing."""
    places = offloaded_places(model)
    if places:
        name = type(model).__name__
        tell_offloaded(f"{name}, parts on {' and '.join(places)} (device map)", recorder)


def offloaded_so_far() -> tuple[str, ...]:
    """Return what was told of this process, in the order in which it was."""
    return tuple(_told)


# a flag of sampling and the value at which it does nothing; from GenerationConfig.validate
_SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 50,
    "typical_p": 1.0,
    "min_p": None,
    "top_h": None,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
_BEAMS = {"early_stopping": False, "length_penalty": 1.0}
_NO_END = (
    "there is neither a pad token nor an end-of-sequence token, so prompts cannot be batched; "
    "tokenizer.add_special_tokens({'pad_token': '<pad>'}), then "
    "model.resize_token_embeddings(len(tokenizer))"
)


def doubtful_flags(flags: Mapping[str, Any], given: Container[str] | None = None) -> list[str]:
    """Name what is wrong with a set of generation flags, each with the way out.

    Args:
        flags: Those that are set, by name.
        given: Speak only of these; None for all.
    """
    samples = flags.get("do_sample") is True
    beams = flags.get("num_beams") or 1
    found = []
    if not samples:
        found += [
            f"{one} is ignored without do_sample=True; add that, or leave it out"
            for one in _set_among(_SAMPLING, flags, given)
        ]
    elif flags.get("temperature") == 0:
        found.append("temperature=0 with do_sample=True is refused; write do_sample=False")
    if beams == 1:
        found += [
            f"{one} is ignored without num_beams > 1; leave it out"
            for one in _set_among(_BEAMS, flags, given)
        ]
    return found + _lengths(flags) + _returned(flags, samples, beams)


def set_on_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Give a tokenizer its end-of-sequence token as pad token, if it has none.

    Returns:
        What was done or is missing, None if nothing was missing.
    """
    if getattr(tokenizer, "pad_token", "unknown") is not None:
        return None
    if tokenizer.eos_token is None:
        return f"WARNING: {_NO_END}"
    tokenizer.pad_token = tokenizer.eos_token
    return (
        f"the tokenizer had no pad token; it is now its end-of-sequence token "
        f"{tokenizer.eos_token!r} (id {tokenizer.pad_token_id})"
    )


def set_on_model(model: PreTrainedModel) -> str | None:
    """Give a model's config and generation config the end-of-sequence id as pad id, if missing.

    Returns:
        What was done, None if nothing was.
    """
    configs = {
        "config": getattr(model, "config", None),
        "generation_config": getattr(model, "generation_config", None),
    }
    done = {where: _fill(config) for where, config in configs.items() if config is not None}
    changed = {where: pad for where, pad in done.items() if pad is not None}
    if not changed:
        return None
    pad = next(iter(changed.values()))
    return f"no pad_token_id on {' and '.join(changed)}; it is now the end-of-sequence id {pad}"


def _set_among(
    idle: Mapping[str, Any], flags: Mapping[str, Any], given: Container[str] | None
) -> list[str]:
    return [
        f"{name}={flags[name]}"
        for name, value in idle.items()
        if flags.get(name) not in (None, value) and (given is None or name in given)
    ]


def _lengths(flags: Mapping[str, Any]) -> list[str]:
    found = []
    if flags.get("max_length") is not None and flags.get("max_new_tokens") is not None:
        found.append("max_length is ignored beside max_new_tokens; leave one of them out")
    least, most = flags.get("min_new_tokens"), flags.get("max_new_tokens")
    if least is not None and most is not None and least > most:
        found.append(f"min_new_tokens={least} is above max_new_tokens={most}; raise the latter")
    return found


def _returned(flags: Mapping[str, Any], samples: bool, beams: int) -> list[str]:
    wanted = flags.get("num_return_sequences") or 1
    if wanted == 1 or (samples and beams == 1) or wanted <= beams:
        return []
    return [
        f"num_return_sequences={wanted} is refused with num_beams={beams}; raise num_beams, "
        "or set do_sample=True and no beams"
    ]


def _fill(config: PreTrainedConfig | GenerationConfig) -> int | None:
    end = getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, (list, tuple)) and end else end
    if getattr(config, "pad_token_id", 0) is not None or not isinstance(end, int):
        return None
    config.pad_token_id = end
    return end
