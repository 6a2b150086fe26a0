"""Merged stacks as speedscope opens them: the width of a frame is the number of ranks in it.

https://github.com/jlfwong/speedscope/blob/main/src/lib/file-format-spec.ts
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.report.traces.rank_process import shown
from lightning_hangcheck.text.plain_text import visible_json
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.model.verdict import StackGroup
    from lightning_hangcheck.report.page.page_facts import PageFacts

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


class ScopeFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call; of what is no ``func (file:line)`` the name is all."""

    name: str
    file: str | None = None
    line: int | None = None


class Shared(msgspec.Struct, frozen=True):
    """What all profiles have in common."""

    frames: tuple[ScopeFrame, ...]


class SampledProfile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Stacks with their weights; frames are places in the shared list, outermost first."""

    type: Literal["sampled"] = "sampled"
    name: str
    unit: Literal["none"] = "none"
    start_value: int = 0
    end_value: int
    samples: tuple[tuple[int, ...], ...]
    weights: tuple[int, ...]


class ScopeFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A whole file."""

    schema: str = msgspec.field(default=SCHEMA, name="$schema")
    version: str = "0.0.1"
    exporter: str
    name: str
    active_profile_index: int = 0
    shared: Shared
    profiles: tuple[SampledProfile, ...]


def render_speedscope(facts: PageFacts) -> str:
    """Write the merged main-thread stacks of a verdict, those of ranks and those of workers.

    Args:
        facts: Of a run; without stacks a profile of nothing is written.
    """
    verdict = facts.verdict
    places: dict[str, int] = {}
    profiles = [
        _profile(name, [one for one in verdict.stack_groups if one.process == process], places)
        for process, name in (("rank", "ranks"), ("worker", "DataLoader workers"))
    ]
    file = ScopeFile(
        exporter=f"lightning-hangcheck {__version__}",
        name=shown(f"{verdict.verdict} of run {verdict.run_id}"),
        shared=Shared(frames=tuple(map(_frame, places))),
        profiles=(profiles[0], *(one for one in profiles[1:] if one.samples)),
    )
    return visible_json(msgspec.json.encode(file)).decode() + "\n"


def _profile(name: str, groups: Iterable[StackGroup], places: dict[str, int]) -> SampledProfile:
    """Number each frame when it is first met."""
    stacks = [
        (tuple(places.setdefault(frame, len(places)) for frame in group.frames), group.count)
        for group in groups
    ]
    return SampledProfile(
        name=name,
        end_value=sum(count for _, count in stacks),
        samples=tuple(stack for stack, _ in stacks),
        weights=tuple(count for _, count in stacks),
    )


def _frame(text: str) -> ScopeFrame:
    frame = Frame.parse(text)
    if frame is None:
        return ScopeFrame(shown(text))
    return ScopeFrame(shown(frame.function), shown(frame.file), frame.line)
