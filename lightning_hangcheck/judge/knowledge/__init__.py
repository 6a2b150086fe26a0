"""Reads the data files once, and rejects a file of the wrong form."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal, TypeVar

import msgspec

from lightning_hangcheck.model.slugs import Cause, Phase

WaitKind = Literal[
    "collective",
    "backward",
    "device",
    "rendezvous_connect",
    "rendezvous_peers",
    "rendezvous_nodes",
    "guard",
    "call",
    "last_calls",
    "dataloader",
    "index_queue",
    "logger",
    "work",
]
JobKind = Literal["several ranks", "one process"]
Content = TypeVar("Content", bound=msgspec.Struct)


class FrameRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[frame]]`` of frames.toml, which explains the fields."""

    file: str
    functions: str
    wait: WaitKind | None = None
    name: str | None = None
    phase: Phase | None = None
    of_file: Phase | None = None
    leaf: bool = False
    under: str | None = None
    wins: bool = False
    starts_process: bool = False
    rests: bool = False
    parked: str | None = None
    one_rank: bool = False
    loop: str | None = None
    handles: str = ""


class FramesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """frames.toml."""

    aliases: dict[str, tuple[str, ...]]
    frame: tuple[FrameRule, ...]


class RemedyKnowledge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A remedy.

    Attributes:
        command: What to type or paste; shown after the text and a colon.
        aspect: It helps only with findings of this aspect of the cause.
        needs: It helps only with jobs of this kind.
        phase: It helps only if the first culprit is in this phase.
        raised: It helps only if this exception ended the first culprit.
        other_than: Aspects of the cause with which it does not help.
    """

    text: str
    command: str = ""
    see: str
    aspect: str | None = None
    needs: JobKind | None = None
    phase: Phase | None = None
    raised: str = ""
    other_than: tuple[str, ...] = ()


class CauseKnowledge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a cause means, in one sentence, and its remedies, most likely first.

    Attributes:
        alone: Explanation for a job of one process; empty if ``explanation`` names no other ranks.
        together: Explanation if all ranks are stuck; empty if ``explanation`` names no single rank.
        recognised: What must be seen before a verdict names the cause, for the cause's page.
    """

    title: str
    explanation: str
    alone: str = ""
    together: str = ""
    recognised: str = ""
    remedies: tuple[RemedyKnowledge, ...]


class CausesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """causes.toml."""

    cause: dict[Cause, CauseKnowledge]
    signals: dict[str, str]


@cache
def frames_file() -> FramesFile:
    """Return frames.toml, with every alias expanded."""
    raw, spelled = _read("frames.toml", FramesFile), list[FrameRule]()
    for rule in raw.frame:
        alias, _, rest = rule.file.removeprefix("@").partition("/")
        named = rule.file.startswith("@")
        files = [f"{path}/{rest}" for path in raw.aliases[alias]] if named else [rule.file]
        spelled += [msgspec.structs.replace(rule, file=file) for file in files]
    return msgspec.structs.replace(raw, frame=tuple(spelled))


@cache
def causes_file() -> CausesFile:
    """Return causes.toml."""
    return _read("causes.toml", CausesFile)


def _read(name: str, shape: type[Content]) -> Content:
    """Read a data file of this package; msgspec uses tomllib, and tomli before Python 3.11."""
    return msgspec.toml.decode(files(__package__).joinpath(name).read_bytes(), type=shape)
