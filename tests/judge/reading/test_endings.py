"""How a process ended: exit codes in words, and torch's words for a GPU without room."""

from __future__ import annotations

import pytest

from lightning_hangcheck.judge.exit_codes import ending_signal_of, exit_code_in_words
from lightning_hangcheck.judge.records import (
    GpuOutOfMemory,
    gpu_out_of_memory,
)


@pytest.mark.parametrize("code", [137, -9])
def test_a_signal_is_named_with_what_usually_sends_it(code: int) -> None:
    assert exit_code_in_words(code) == (
        "137: killed by SIGKILL (usually the kernel's out-of-memory killer, or somebody's kill -9)"
    )
    assert ending_signal_of(code) == 9


def test_a_signal_of_which_nothing_is_known_is_named_alone() -> None:
    assert exit_code_in_words(-10) == "138: killed by SIGUSR1"


def test_what_a_shell_could_not_run_is_said() -> None:
    assert exit_code_in_words(127) == "127: a command was not found"


@pytest.mark.parametrize("code", [0, 1, 2, 75, 255])
def test_a_programs_own_code_stays_a_number(code: int) -> None:
    assert exit_code_in_words(code) == str(code)
    assert ending_signal_of(code) is None


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


def test_words_that_are_cut_anywhere_tell_what_is_left_of_them() -> None:
    whole = gpu_out_of_memory(NOW)
    for end in range(len("OutOfMemoryError"), len(NOW)):
        read = gpu_out_of_memory(NOW[:end])
        assert read is not None, end
        for name in ("wanted", "total", "free", "in_use", "unused"):
            assert getattr(read, name) in (None, getattr(whole, name)), end


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
