"""Planned activations against the tensors of a real forward, within the promised factor."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest
from planning.tiny_models import KNOWN, VOCABULARY, real_model, save_config

from lightning_hangcheck.planning.config import read_config, read_fields
from lightning_hangcheck.planning.plan import Use
from lightning_hangcheck.planning.planner import activation_bytes, cache_bytes

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", exc_type=ImportError)
pytest.importorskip("transformers", exc_type=ImportError)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

# what the guests warn of while they are imported is theirs
pytestmark = pytest.mark.filterwarnings("ignore")
FACTOR = 1.5
BATCH, CONTEXT = 2, 256


class TensorPeak(TorchDispatchMode):
    """The most bytes that tensors took at once, but for those that were there before.

    Of storages from first tensor to last.
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


@pytest.mark.parametrize(
    ("family", "dtype"),
    [*((family, "bfloat16") for family in (*KNOWN, "bert", "t5")), ("llama", "float32")],
)
def test_planned_activations_are_right_within_the_promised_factor(
    family: str, dtype: Any, tmp_path: Path
) -> None:
    # a window would be shorter than the context, so that the cache is cut while it is counted
    window = {"sliding_window": 4096} if family == "mistral" else {}
    folder = save_config(family, tmp_path, **window)
    fields = read_fields(read_config(folder / "config.json"))
    model = real_model(folder, dtype)
    tokens = torch.randint(2, VOCABULARY, (BATCH, CONTEXT))
    options: dict[str, Any] = {} if family in ("bert", "t5") else {"logits_to_keep": 1}
    if family == "t5":
        options["decoder_input_ids"] = tokens
    measured = TensorPeak([*model.parameters(), *model.buffers(), tokens])
    with torch.no_grad(), measured:
        model(tokens, **options)
    use = Use(dtype=dtype, context=CONTEXT, batch=BATCH)
    grown = measured.peak - cache_bytes(fields, use)
    assert 1 / FACTOR < activation_bytes(fields, use) / grown < FACTOR
