"""Models and optimizers leave the GPU and come back as they were: values, aliases, places."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.evaluation import kept_off_gpu, move, tensors_of

torch = pytest.importorskip("torch", exc_type=ImportError)
# what torch warns of while it is imported is its own
pytestmark = pytest.mark.filterwarnings("ignore")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def trained() -> tuple[Any, Any]:
    """A model with tied weights and a buffer, and an optimizer that has made a step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model.add_module("tied", torch.nn.Linear(4, 4))
    model.tied.weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(3, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def test_tensors_come_back_with_their_values_and_what_they_shared() -> None:
    model, optimizer = trained()
    whole = torch.arange(6.0)
    model.register_buffer("rows", whole.view(2, 3).t())
    model.register_buffer("tail", whole[4:])
    before = [tensor.clone() for tensor in tensors_of([model, optimizer])]
    identities = [id(parameter) for parameter in model.parameters()]
    places = [tensor.data_ptr() for tensor in tensors_of([model, optimizer])]

    cpu = torch.device("cpu")
    move((tensor, cpu) for tensor in tensors_of([model, optimizer]))
    moved = [tensor.data_ptr() for tensor in tensors_of([model, optimizer])]
    assert all(old != new for old, new in zip(places, moved, strict=True))
    assert model.rows.stride() == (1, 3)
    model.tail[0] = 40.0
    assert model.rows[1, 1] == 40.0
    move((tensor, cpu) for tensor in tensors_of([model, optimizer]))
    model.tail[1] = 50.0

    after = tensors_of([model, optimizer])
    assert [id(parameter) for parameter in model.parameters()] == identities
    assert model.rows.tolist() == [[0.0, 3.0], [1.0, 40.0], [2.0, 50.0]]
    same = [torch.equal(one, two) for one, two in zip(before, after, strict=True)]
    assert same.count(False) == 2
    model(torch.rand(3, 4)).sum().backward()
    optimizer.step()


def test_what_cannot_be_moved_is_refused() -> None:
    model, _ = trained()
    next(model.parameters()).ds_id = 0  # as DeepSpeed marks what it has shared out
    for held, why in (
        (model, "shared out over the ranks"),
        (SimpleNamespace(), "neither a model nor an optimizer"),
    ):
        with pytest.raises(BadUsage, match=why):
            kept_off_gpu([held], print).__enter__()


@needs_gpu
def test_a_gpu_is_free_meanwhile_and_holds_all_of_it_again_afterwards() -> None:
    model = torch.nn.Linear(4096, 4096).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(1, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    held, weights = torch.cuda.memory_allocated(), model.weight.detach().cpu().clone()
    said: list[str] = []
    with kept_off_gpu([model, optimizer], said.append):  # workspaces of cuBLAS stay, 64 MiB
        assert torch.cuda.memory_allocated() <= held - 201_000_000
        assert {one.device.type for one in model.parameters()} == {"cpu"}
    assert {one.device.type for one in model.parameters()} == {"cuda"}
    assert torch.equal(model.weight.cpu(), weights)
    assert torch.cuda.memory_allocated() == pytest.approx(held, rel=0.01)
    assert "201.4 MB moved off the GPU" in said[0]
