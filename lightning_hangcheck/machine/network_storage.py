"""Which file systems answer over a network, so that other hosts may have the same files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "fuse.")
"""Beginnings of file system types whose answers come over a network (mount(8))."""
ESCAPED = re.compile(r"\\(\d{3})")
MOUNT_POINT = 4


def mounts_of_network(mountinfo: str) -> dict[str, bool]:
    """Return of each mount whether it is of a network.

    Args:
        mountinfo: Text of /proc/PID/mountinfo (proc(5)), which asks no file system.
    """
    found = {}
    for line in mountinfo.splitlines():
        before, dash, behind = line.partition(" - ")
        words = before.split()
        if dash and len(words) > MOUNT_POINT:
            folder = ESCAPED.sub(lambda one: chr(int(one[1], 8)), words[MOUNT_POINT])
            found[folder] = behind.startswith(OF_NETWORK)
    return found


def is_of_network(path: str, mounts: Mapping[str, bool]) -> bool:
    """Whether a path is on storage of a network.

    Args:
        path: Absolute.
        mounts: As `mounts_of_network` tells them; the innermost one counts.
    """
    folder = path
    while folder not in mounts and folder not in ("", "/"):
        folder = folder.rpartition("/")[0] or "/"
    return mounts.get(folder, False)
