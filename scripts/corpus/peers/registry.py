"""The peers that the benchmark knows."""

from __future__ import annotations

from corpus.peers import nvrx, torch_own, torchrun

PEERS = {module.PEER.name: module.PEER for module in (torchrun, torch_own, nvrx)}
