"""The pages of this node's processes, opened as they appear."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lightning_hangcheck.look.proc import has_ended
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.recorder.page.reader import PageReader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lightning_hangcheck.model.evidence import Gap


class Pages:
    """Reads every page of a session; a page outlives its process until the session is removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[int, PageReader] = {}

    def find_new(self) -> None:
        """Open pages that appeared since; a folder that is gone has no pages."""
        try:
            files = [file for file in self._folder.iterdir() if file.suffix == ".page"]
        except OSError:
            return
        for file in files:
            if file.stem.isdecimal() and int(file.stem) not in self._readers:
                self._readers[int(file.stem)] = PageReader(file)

    def read(self) -> tuple[dict[int, Beat], dict[int, Gap]]:
        """Read all pages.

        Returns:
            Readings by process id, and by process id why a page could not be read this time.
        """
        beats: dict[int, Beat] = {}
        gaps: dict[int, Gap] = {}
        for pid, reader in self._readers.items():
            reading = reader.read()
            if isinstance(reading, Beat):
                beats[pid] = reading
            else:
                gaps[pid] = reading
        return beats, gaps

    def holds(self, pid: int) -> bool:
        """Whether the page of this process is read."""
        return pid in self._readers

    def any_alive(self) -> bool:
        """Whether a process that has a page still runs."""
        return not all(has_ended(pid) for pid in self._readers)

    def forget_gone(self, beats: Mapping[int, Beat], count: int | None) -> None:
        """Take away the pages of processes that ended with a round: none of them will be asked for.

        Args:
            beats: Readings by process id.
            count: The launcher's count of that round; pages of later ones stay.
        """
        for pid, beat in beats.items():
            later = beat.round is not None and count is not None and beat.round > count
            if not later and has_ended(pid):
                self._readers.pop(pid).close()
                with suppress(OSError):
                    (self._folder / f"{pid}.page").unlink()

    def close(self) -> None:
        """Close all pages."""
        for reader in self._readers.values():
            reader.close()
