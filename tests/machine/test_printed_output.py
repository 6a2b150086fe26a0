"""Whether Python was told to hand on each line that is printed."""

from __future__ import annotations

import os

import pytest

from lightning_hangcheck.machine import is_unbuffered, kept_back_in


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        ("python -u train.py", True),
        ("/usr/bin/python3.11 -X dev -Bu -m package.train", True),
        ("srun -n 2 python -uc code", True),
        ("python train.py -u", False),
        ("python -m unittest", False),
        ("python -W unused train.py", False),
        ("python -c unused", False),
        ("python --help -u", False),
        ("./train -u", False),
        ("", False),
    ],
)
def test_only_the_interpreters_own_option_counts(command: str, unbuffered: bool) -> None:
    assert is_unbuffered({}, command.split()) == unbuffered


def test_the_variable_counts_unless_it_is_empty() -> None:
    assert is_unbuffered({"PYTHONUNBUFFERED": "1"}, ["python", "train.py"])
    assert not is_unbuffered({"PYTHONUNBUFFERED": ""}, ["python", "train.py"])


def test_a_device_hands_on_what_it_gets() -> None:
    assert kept_back_in(os.stat(os.devnull).st_mode) is None  # noqa: PTH116 - a device
    assert kept_back_in(os.stat(__file__).st_mode) == "a file"  # noqa: PTH116 - its mode alone
