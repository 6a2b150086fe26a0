"""Torch's words for a GPU without room, in the forms of its versions, whole and cut."""

from __future__ import annotations

import pytest

from lightning_hangcheck.reading.records.gpu_out_of_memory import (
    GpuOutOfMemory,
    gpu_out_of_memory,
)

MIB, GIB = 2**20, 2**30
NOW = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity "
    "of 24.00 GiB of which 1.50 GiB is free. Including non-PyTorch memory, this process has 22.40 "
    "GiB memory in use. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 1.00 GiB is "
    "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
)
BEFORE = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.00 GiB total "
    "capacity; 9.00 GiB already allocated; 5.00 MiB free; 9.50 GiB reserved in total by PyTorch)"
)


def test_the_words_of_today_are_read() -> None:
    read = gpu_out_of_memory(NOW)
    assert read == GpuOutOfMemory(
        wanted=2 * GIB, total=24 * GIB, free=GIB * 3 // 2, in_use=20 * GIB, unused=GIB
    )
    assert (read.missing, read.in_pieces) == (GIB // 2, True)


def test_the_words_of_older_versions_are_read() -> None:
    read = gpu_out_of_memory(BEFORE)
    assert read == GpuOutOfMemory(wanted=20 * MIB, total=10 * GIB, free=5 * MIB, in_use=9 * GIB)
    assert (read.missing, read.in_pieces) == (15 * MIB, False)


@pytest.mark.parametrize("end", range(len("OutOfMemoryError"), len(NOW), 7))
def test_words_that_are_cut_tell_what_is_left_of_them(end: int) -> None:
    read = gpu_out_of_memory(NOW[:end])
    assert read is not None
    whole = gpu_out_of_memory(NOW)
    for name in ("wanted", "total", "free", "in_use", "unused"):
        assert getattr(read, name) in (None, getattr(whole, name))


def test_what_is_kept_unused_is_read_before_the_words_that_name_it() -> None:
    read = gpu_out_of_memory(NOW[: NOW.index("reserved by")] + "... in fit (train.py:9)")
    assert read is not None
    assert (read.unused, read.in_pieces) == (GIB, True)


def test_it_is_told_in_words() -> None:
    read = gpu_out_of_memory(BEFORE)
    assert read is not None
    assert read.words == (
        "20.00 MiB more were wanted, 5.00 MiB of 10.00 GiB were free, 15.00 MiB were missing, "
        "9.00 GiB were in tensors"
    )
    assert GpuOutOfMemory().words == ""


@pytest.mark.parametrize(
    "words", ["", "MemoryError", "RuntimeError: CUDA out of memory", "KeyError: 1"]
)
def test_other_words_tell_nothing(words: str) -> None:
    assert gpu_out_of_memory(words) is None
