"""Where the parameters of a loaded model are, and which of them have no data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.pretrained.gpu_memory import gpu_memory, in_one_line
from lightning_hangcheck.text.amounts import bytes_in_words, several

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, device
    from transformers import PreTrainedModel

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
