"""The most bytes that the tensors of a computation took at once, followed tensor by tensor."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorPeak(TorchDispatchMode):
    """Counts storages that operations make, from their first tensor to their last.

    Args:
        known: Tensors that were there before; they don't count.

    Attributes:
        peak: Bytes.
    """

    def __init__(self, known: Any) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._known = {_place(tensor) for tensor in known}
        self._live: dict[int, list[int]] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in given:
                self._add(leaf)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        place = _place(tensor)
        if place in self._known:
            return
        size, tensors = self._live.setdefault(place, [tensor.untyped_storage().nbytes(), 0])
        self._live[place][1] = tensors + 1
        self._now += 0 if tensors else size
        self.peak = max(self.peak, self._now)
        weakref.finalize(tensor, self._drop, place)

    def _drop(self, place: int) -> None:
        self._live[place][1] -= 1
        if not self._live[place][1]:
            self._now -= self._live.pop(place)[0]


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
