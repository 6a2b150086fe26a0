"""The network between the nodes of a job: it can be slow, lose packets, be cut, and come back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
from launch.nodes.nodes_of_a_job import Network, namespaces
from processes import PROGRAMS, end

if TYPE_CHECKING:
    from collections.abc import Iterator


class Cable:
    """The network between the nodes, in a process of its own."""

    def __init__(self, nodes: list[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "cable.py"), *nodes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._expect("connected")

    def order(self, words: str) -> None:
        """Change the network; done when this returns."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        self._expect("done")

    def _expect(self, word: str) -> None:
        answers: IO[str] | None = self.process.stdout
        assert answers is not None
        assert answers.readline().strip() == word


@pytest.fixture
def cable(request: pytest.FixtureRequest) -> Iterator[tuple[Network, Cable]]:
    """So many network namespaces and the cable between them."""
    if not Path("/dev/net/tun").exists():
        pytest.skip("this kernel has no TUN devices")
    with namespaces(request.param) as nodes:
        cable = Cable(nodes)
        try:
            yield Network(nodes, ["cable"] * len(nodes), "10.231.78.1"), cable
        finally:
            end(cable.process)
