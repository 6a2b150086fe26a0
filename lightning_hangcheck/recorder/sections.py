"""Critical sections: which are open, in all threads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.beat import OpenSection
from lightning_hangcheck.model.slugs import Phase
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from types import TracebackType

    from lightning_hangcheck.recorder.lifecycle import Recorder


class OpenedSection(Struct, eq=False):
    """A section that is open, or was.

    Attributes:
        shown: As the page shows it.
        phase: The phase that its name means, None if none. Only a section of the thread that
            trains shows it as the rank's.
        phase_before: The phase to go back to.
        spoken: Said on the console and in the journal too, not only on the page.
    """

    shown: OpenSection
    phase: Phase | None = None
    phase_before: Phase | None = None
    spoken: bool = True

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return (time.monotonic_ns() - self.shown.since_ns) / NANOSECONDS


class Section:
    """``with section("WandbLogger constructor"):`` says so before and after, and how it ended.

    Sections nest, and several threads may be in some at once. An exception is shown and goes on.
    A guard that ends a wait by itself, after which the program goes on, tells its limit: until
    then the wait is no hang.
    """

    __slots__ = ("_goes_on_after_s", "_name", "_opened", "_recorder", "_spoken")

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        *,
        spoken: bool = True,
        goes_on_after_s: float | None = None,
    ) -> None:
        self._recorder = recorder
        self._name = name
        self._spoken = spoken
        self._goes_on_after_s = goes_on_after_s
        self._opened: list[OpenedSection | None] = []

    def __enter__(self) -> None:
        self._opened.append(
            self._recorder.open_section(
                self._name, spoken=self._spoken, goes_on_after_s=self._goes_on_after_s
            )
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        opened = self._opened.pop()
        if opened is not None:
            self._recorder.close_section(opened, error)
