"""Models and optimizers wait in the machine's memory while something else needs the GPU's."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.pretrained.gpu_memory import in_one_line, memory_of
from lightning_hangcheck.hooks.pretrained.placement import are_shared_out
from lightning_hangcheck.text.amounts import bytes_in_words, seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from torch import Tensor, UntypedStorage, device

    Held: TypeAlias = Any  # a module or an optimizer of torch
    View: TypeAlias = tuple[Tensor, int, tuple[int, ...], tuple[int, ...]]


@contextmanager
def off_gpu(held: Iterable[Held], say: Callable[[str], None]) -> Iterator[None]:
    """Keep models and optimizers off the GPU while the body runs, and say what that frees.

    They are whole meanwhile, on the CPU. Gradients stay where they are.

    Args:
        held: Modules and optimizers of torch.
        say: Prints a line.

    Raises:
        BadUsage: One of them is neither, or is shared out over the ranks: moved on one rank alone,
            its share would be lost for the others' collectives.
        torch.OutOfMemoryError: What the body left on the GPU takes the room that they had.
    """
    import torch

    tensors = [tensor for tensor in tensors_of(held) if tensor.device.type == "cuda"]
    if not tensors:
        say("nothing is on a GPU that could be moved off it")
        yield
        return
    gpus = {tensor.device for tensor in tensors}
    say(f"before: {in_one_line(memory_of(gpus))}")
    began = time.perf_counter()
    away = Elsewhere(tensors, torch.device("cpu"))
    try:
        _say_moved(say, "off", away.size, began, gpus)
        yield
    finally:
        say(f"after the evaluation: {in_one_line(memory_of(gpus))}")
        gc.collect()
        torch.cuda.empty_cache()
        began = time.perf_counter()
        away.bring_back()
        _say_moved(say, "back to", away.size, began, gpus)


class Elsewhere:
    """Tensors whose data is on another device than it was, with all that they share.

    Each storage moves once and every tensor on it keeps its place there, so that tied weights and
    buffers that are views of others are still that. No tensor is replaced: an optimizer, DDP and
    the graph's hooks know the same ones.

    Args:
        tensors: What to move.
        to: Where to.

    Attributes:
        size: Bytes that were moved.
    """

    def __init__(self, tensors: Iterable[Tensor], to: device) -> None:
        self.size = 0
        self._homes: list[tuple[device, UntypedStorage, list[View]]] = []
        groups: dict[tuple[device, int], list[Tensor]] = {}
        for tensor in tensors:
            place = (tensor.device, tensor.untyped_storage().data_ptr())
            groups.setdefault(place, []).append(tensor)
        try:
            for group in groups.values():
                self._move(group, to)
        except BaseException:
            self.bring_back()
            raise

    def bring_back(self) -> None:
        """Put all of it where it was, with the values that it has now."""
        while self._homes:
            home, storage, views = self._homes[-1]
            _place(views, _copy(storage, home))
            self._homes.pop()

    def _move(self, group: list[Tensor], to: device) -> None:
        storage = group[0].untyped_storage()
        views = [
            (one, one.storage_offset(), tuple(one.shape), tuple(one.stride())) for one in group
        ]
        moved = _copy(storage, to)
        self.size += storage.nbytes()
        self._homes.append((group[0].device, moved, views))
        _place(views, moved)


def tensors_of(held: Iterable[Held]) -> list[Tensor]:
    """Find parameters, buffers, and the state of optimizers, each tensor once.

    Raises:
        BadUsage: One of them holds no tensors, or a share of them only.
    """
    found = {id(tensor): tensor for one in held for tensor in _tensors_of_one(one)}
    if are_shared_out(found.values()):
        raise BadUsage(
            "what is to leave the GPU is shared out over the ranks (FSDP, DeepSpeed, DTensor)",
            "leave it out of off_gpu, or move it with its own library on all ranks",
        )
    return list(found.values())


def _tensors_of_one(one: Held) -> Iterator[Tensor]:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

    if isinstance(one, Module):
        yield from one.parameters()
        yield from one.buffers()
    elif isinstance(one, Optimizer):
        for state in one.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
    else:
        raise BadUsage(
            f"off_gpu has a {type(one).__name__}, which is neither a model nor an optimizer",
            "write off_gpu=[model, optimizer]",
        )


def _copy(storage: UntypedStorage, to: device) -> UntypedStorage:
    import torch

    octets = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return octets.set_(storage).to(to, copy=True).untyped_storage()


def _place(views: Iterable[View], storage: UntypedStorage) -> None:
    import torch

    for tensor, offset, shape, stride in views:
        empty = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        tensor.data = empty.set_(storage, offset, shape, stride)


def _say_moved(
    say: Callable[[str], None], where: str, size: int, began: float, gpus: set[device]
) -> None:
    import torch

    torch.cuda.empty_cache()
    took = seconds_in_words(time.perf_counter() - began)
    say(f"{bytes_in_words(size)} moved {where} the GPU in {took}: {in_one_line(memory_of(gpus))}")
