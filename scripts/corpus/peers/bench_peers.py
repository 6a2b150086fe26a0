"""Runs cases under the chosen peers, several at a time."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from corpus.peers.comparing import Beside, of_peer
from corpus.peers.registry import PEERS
from corpus.peers.running import run_under
from hangbench.bench import truth_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from corpus.peers.peer import Peer

LIMIT_S = 60.0
"""From the onset; every timeout that the peers are given, 25 s, ends well within it."""


def installed(names: Sequence[str]) -> list[Peer]:
    """The peers of these names with their versions on stderr; who is not installed is left out."""
    for name in names:
        version, distribution = PEERS[name].version, PEERS[name].distribution
        told = f"left out, {distribution} is not installed"
        sys.stderr.write(f"{name}: {f'{distribution} {version}' if version else told}\n")
    return [PEERS[name] for name in names if PEERS[name].version]


def run_peers(
    work: Sequence[tuple[Peer, str]], folder: Path, limit_s: float, jobs: int
) -> list[Beside]:
    """Run cases under peers, and score what they say.

    Args:
        work: Installed peers, each with the name of a case.
        folder: For what the runs write.
        limit_s: Seconds that a peer has from the onset of a hang.
        jobs: Cases at a time.
    """

    def run(peer: Peer, name: str) -> Beside:
        own_folder = folder / f"{peer.name}-{name}"
        own_folder.mkdir()
        transcript = run_under(peer, name, own_folder, limit_s)
        answer = of_peer(peer.name, name, truth_of(name), (transcript, peer.hear(transcript)))
        sys.stderr.write(f"{peer.name} {name}: {answer.words or 'nothing told'}\n")
        return answer

    with ThreadPoolExecutor(jobs) as threads:
        return [done.result() for done in [threads.submit(run, *one) for one in work]]
