"""Which hosts: a file with one a line, as MPI, DeepSpeed and batch systems write them."""

from __future__ import annotations

import re

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.text.plain_text import visible

HOST = re.compile(
    r"(?:[\w.][\w.-]*@)?(?:[A-Za-z0-9_.][\w.-]*|\[?[0-9a-fA-F:.]+(?:%\w+)?\]?)"
    r"|[a-z][a-z0-9.]*/[a-z0-9][a-z0-9.-]*"
)
"""``[user@]name``, an address, or ``pod/name`` as ``kubectl get -o name`` prints it.

Neither begins with a dash, which ssh would take for an option, nor what follows a slash.
"""
SLOTS = re.compile(r"([^:]+):\d+")
"""Hydra and Intel's MPI write ``host:8`` where others write ``host slots=8``."""
LONGEST_SHOWN = 60


def read_hosts(text: str, name: str) -> tuple[str, ...]:
    """Read the hosts of a hostfile, each once, in the file's order.

    Behind a host anything may stand (``slots=8``), and behind ``#`` a comment. A host that is named
    once a slot, as in PBS_NODEFILE, is one host.

    Args:
        text: Of the file.
        name: Of the file, for the error's sentence.

    Raises:
        BadUsage: A line names no host, or none does.
    """
    hosts: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = SLOTS.fullmatch(words[0])
        host = slots[1] if slots else words[0]
        if not HOST.fullmatch(host):
            raise BadUsage(
                f"line {number} of {name} names no host: {visible(host[:LONGEST_SHOWN])!r}",
                "write one host a line, for example: node0 slots=8",
            )
        hosts[host] = None
    if not hosts:
        raise BadUsage(f"{name} names no host", "write one host a line, for example: node0 slots=8")
    return tuple(hosts)
