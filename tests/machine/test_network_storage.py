"""Which paths other hosts have, too."""

from __future__ import annotations

import pytest

from lightning_hangcheck.machine import OF_NETWORK, mounted_types, type_at

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
