"""What FSDP is asked to keep in main memory, by the arguments of real torch."""

from __future__ import annotations

import inspect

import pytest

from lightning_hangcheck.hooks.zero_code.loops import offload_asked_for
from lightning_hangcheck.hooks.zero_code.start import WATCHED

fsdp = pytest.importorskip("torch.distributed.fsdp", exc_type=ImportError)


def test_both_kinds_of_fsdp_are_told_by_their_arguments() -> None:
    first = offload_asked_for({"cpu_offload": fsdp.CPUOffload(offload_params=True)})
    assert first == "parameters on cpu between their uses (FSDP, cpu_offload)"
    second = offload_asked_for({"offload_policy": fsdp.CPUOffloadPolicy()})
    assert second == "parameters on cpu between their uses (FSDP, offload_policy)"


def test_without_offload_nothing_is_told() -> None:
    given = {"cpu_offload": fsdp.CPUOffload(offload_params=False)}
    assert offload_asked_for(given) == ""
    assert offload_asked_for({"offload_policy": fsdp.OffloadPolicy()}) == ""
    assert offload_asked_for({"cpu_offload": None}) == ""


def test_the_modules_that_are_watched_are_those_that_have_them() -> None:
    watched = {module for module, ours in WATCHED if ours == "zero_code.loops.instrument_sharding"}
    assert fsdp.FullyShardedDataParallel.__module__ in watched
    # fully_shard says that it is its package's; its file says whose it is
    file = inspect.unwrap(fsdp.fully_shard).__code__.co_filename
    assert any(file.endswith(f"/{one.replace('.', '/')}.py") for one in watched)
