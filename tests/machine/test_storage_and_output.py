"""Which paths other hosts have, too; and whether Python was told to hand on each line."""

from __future__ import annotations

import os

import pytest

from lightning_hangcheck.machine import (
    OF_NETWORK,
    is_unbuffered,
    kept_back_in,
    mounted_types,
    type_at,
)

MOUNTS = mounted_types(
    """\
22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/root rw
40 22 0:45 / /data\\040sets rw,relatime shared:20 master:3 - nfs4 nas:/sets rw,vers=4.2
41 40 0:46 / /data\\040sets/scratch rw - tmpfs tmpfs rw
a line that is none
"""
)


@pytest.mark.parametrize(
    ("path", "shared"),
    [
        ("/home/ada/a.lock", False),
        ("/data sets/a.lock", True),
        ("/data sets/scratch/a.lock", False),
        ("/data setsuma/a.lock", False),
        ("", False),
    ],
)
def test_the_innermost_mount_tells(path: str, shared: bool) -> None:
    assert type_at(path, MOUNTS).startswith(OF_NETWORK) == shared


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
