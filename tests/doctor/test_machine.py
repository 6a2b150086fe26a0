"""The machine of a plan: given, or found."""

from __future__ import annotations

import os

import pytest

from lightning_hangcheck.doctor.fitting import find_machine
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.look.gpu import gpu_memory
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.planning.plan import GB

FOUND = gpu_memory()
HAS_GPU = not isinstance(FOUND, Gap) and bool(FOUND)


def test_what_is_given_is_taken() -> None:
    machine = find_machine(2, 24, 64)
    assert (machine.gpus, machine.cpu, machine.source) == ((24 * GB,) * 2, 64 * GB, "given")


def test_main_memory_is_found_here() -> None:
    """Some of it, and not all: a tenth of what is free stays for the process itself."""
    machine = find_machine(0)
    assert machine.gpus == ()
    assert 0 < machine.cpu < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.skipif(HAS_GPU, reason="this machine has a GPU")
@pytest.mark.parametrize("arguments", [(None, None), (2, None), (None, 80)])
def test_without_a_gpu_one_sentence_says_what_to_type(
    arguments: tuple[int | None, float | None],
) -> None:
    with pytest.raises(BadUsage, match="no GPU was found here") as raised:
        find_machine(*arguments)
    assert "--gpus 2 --gpu-memory 80" in str(raised.value)


@pytest.mark.skipif(not HAS_GPU, reason="no GPU here: nothing to be found")
def test_gpus_are_found_here() -> None:
    assert not isinstance(FOUND, Gap)
    assert find_machine().gpus == FOUND
    with pytest.raises(BadUsage, match="has only"):
        find_machine(len(FOUND) + 1)
