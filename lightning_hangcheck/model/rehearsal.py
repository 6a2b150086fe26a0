"""What `hangcheck rehearse` tells the ranks of a scene, and what they note of it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

VARIABLE = "HANGCHECK_REHEARSAL"
"""Environment variable with a `Part` as JSON: its presence makes a run a rehearsal."""

GLOO = "gloo/transport"
"""In the text of all errors with which gloo ends a collective that ranks do not share."""

SceneName = Literal[
    "as-it-is",
    "fewer-samples",
    "no-samples",
    "smaller-last-batch",
    "unusable-batch",
    "non-finite-loss",
    "save-fails",
    "save-slow",
    "early-stop",
    "sigterm",
    "no-workers",
    "one-worker",
]

NoteKind = Literal[
    "group",  # the rank joined a process group; text: its size
    "loader",  # a DataLoader was used first; key, text: how its samples get to the ranks
    "workers",  # a DataLoader was made; text: its number of workers
    "collate",  # its own collate function makes something of a batch without samples
    "loss",  # a loss of torch.nn.functional that training steps on
    "forward",  # a module's output that training steps on
    "save",  # a checkpoint was saved
    "step",  # an optimizer stepped; text: who answers SIGTERM
    "changed",  # something was replaced so that it runs on CPUs
    "provoked",  # the scene took place
    "raised",  # the rank ends with an exception
    "left",  # the rank ends otherwise, or leaves its process group
]


class Part(Struct, frozen=True, kw_only=True):
    """What a rank is told.

    Attributes:
        folder: For its notes.
        batches: Most batches of a DataLoader's pass.
        uneven: Keys of loaders of which nothing makes sure that all ranks get as many batches.
        by_output: No loss function is known, so outputs of modules are made non-finite.
        names_cuda: The program's source names cuda, so what it puts there must stay on the CPU.
    """

    scene: SceneName
    folder: str
    ranks: int
    batches: int
    uneven: tuple[str, ...] = ()
    by_output: bool = False
    names_cuda: bool = False


class Note(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a rank's notes.

    Attributes:
        key: Which loader; of what was raised, the program's line.
        shared: The loader gives every rank as many batches, by its sampler.
        mark: Stands for the loader's data; empty where nothing tells.
    """

    kind: NoteKind
    rank: int
    text: str = ""
    key: str = ""
    shared: bool = False
    mark: str = ""
