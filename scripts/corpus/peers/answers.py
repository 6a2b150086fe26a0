"""All answers of a run of the benchmark, as its JSON file holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from corpus.peers.comparing import Beside
from hangbench.scoring import Score

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Answers(msgspec.Struct, frozen=True):
    """Our own scores, and what the peers told."""

    scores: list[Score] = []
    peers: list[Beside] = []


def written(answers: Answers) -> bytes:
    """The JSON of a run: a list of our own scores, or an object where peers ran too."""
    return msgspec.json.encode(answers if answers.peers else answers.scores)


def read(files: Iterable[Path], names: Iterable[str]) -> Answers:
    """The answers of earlier runs about these cases."""
    wanted, scores, peers = set(names), [], []
    for file in files:
        found = msgspec.json.decode(file.read_bytes(), type=list[Score] | Answers)
        answers = found if isinstance(found, Answers) else Answers(found)
        scores += [one for one in answers.scores if one.name in wanted]
        peers += [one for one in answers.peers if one.name in wanted]
    return Answers(scores, peers)
