"""The pages of this node's processes, opened as they appear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.probes.vitals import vitals
from lightning_hangcheck.recorder.page_reader import PageReader

if TYPE_CHECKING:
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

    def any_alive(self) -> bool:
        """Whether a process that has a page still runs."""
        seen = (vitals(pid) for pid in self._readers)
        return any(one is not None and one.state != "Z" for one in seen)

    def close(self) -> None:
        """Close all pages."""
        for reader in self._readers.values():
            reader.close()
